"""The hook never stops the program: whatever is wrong, hermes goes on, without a traceback."""

import json
import re
from pathlib import Path

import pytest
from support.actors import end_actors

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.timeout(600)

BOUND = """
import json, os, sqlite3, sys
import hermes_state
bound = vars(hermes_state)["__builtins__"]
bound = (bound if isinstance(bound, dict) else vars(bound))["__import__"]("sqlite3")
conn = bound.connect(os.path.join(os.environ["HERMES_HOME"], "state.db"))
print(json.dumps(type(conn).__module__))
conn.execute("CREATE TABLE IF NOT EXISTS things (id INTEGER)")
conn.close()
"""


@pytest.fixture
def attached(newest):
    newest.actor("attach")
    yield newest
    end_actors(newest.db)


def opens_with(host, *options, code=BOUND, **variables):
    """Which module the program's connection comes from, and the lines on standard error."""
    done = host.run("python", *options, "-c", code, **variables)
    return json.loads(done.stdout), done.stderr.splitlines()


def boot_module(host):
    return host.purelib / "hermes_actor_boot.py"


def rewrite(path, text):
    path.unlink()
    path.write_text(text)


def test_bound_in_every_interpreter_that_reads_pth_files(attached):
    assert opens_with(attached) == ("hermes_actor.dbapi.connection", [])
    assert opens_with(attached, "-I") == ("hermes_actor.dbapi.connection", [])
    assert opens_with(attached, "-E") == ("hermes_actor.dbapi.connection", [])


def test_without_site_packages_there_is_no_hook(attached):
    code = f"import sys; sys.path.append({str(attached.purelib)!r})\n{BOUND}"
    assert opens_with(attached, "-S", code=code) == ("sqlite3", [])


@pytest.mark.parametrize("value", ["1", "true"])
def test_switched_off_by_a_variable(attached, value):
    assert opens_with(attached, HERMES_ACTOR_DISABLE=value) == ("sqlite3", [])


@pytest.mark.parametrize(
    "wrong",
    ["def (", "raise RuntimeError('boot')", "raise SystemError", "import nothing_like_it"],
)
def test_a_hook_that_fails_at_its_import_is_silent(attached, wrong):
    rewrite(boot_module(attached), wrong)
    assert opens_with(attached) == ("sqlite3", [])


@pytest.mark.parametrize("settings", ["None", "{}", "{'scheme': 1}", "{'scheme': 99}", "[]"])
def test_settings_that_are_wrong_leave_the_program_alone(attached, settings):
    text = boot_module(attached).read_text().rpartition("\n\ninstall(")[0]
    rewrite(boot_module(attached), f"{text}\n\ninstall({settings})\n")
    module, lines = opens_with(attached)
    assert module == "sqlite3"
    assert len(lines) <= 1
    assert all(line.startswith("hermes-actor: the hook does nothing: ") for line in lines)


@pytest.mark.parametrize("part", ["bind", "_wrapped", "replace"])
def test_an_exception_in_the_hook_leaves_the_program_working(attached, part):
    text, _, settings = boot_module(attached).read_text().rpartition("\n\ninstall(")
    broken = f"def broken(*_): raise KeyError('hook')\n_Finder.{part} = broken"
    rewrite(boot_module(attached), f"{text}\n\n{broken}\n\ninstall({settings}")
    module, (line,) = opens_with(attached)
    assert module == "sqlite3"
    assert re.match(r"hermes-actor: [\w.]+ is not (attached|replaced): KeyError\('hook'\)", line)
    assert line.endswith("; the program opens its databases by itself from now on")


def test_finders_that_ask_all_finders_are_no_endless_loop(attached):
    code = """
import importlib.util, sys

class Asking:
    asked = set()
    def find_spec(self, name, path=None, target=None):
        if name in self.asked:
            return None
        self.asked.add(name)
        return importlib.util.find_spec(name)

sys.meta_path.insert(0, Asking())
sys.meta_path.append(Asking())
"""
    assert opens_with(attached, code=code + BOUND) == ("hermes_actor.dbapi.connection", [])


def test_a_program_that_opens_no_database_loads_nothing_of_ours(attached):
    """What the hook costs is one module, whatever the program imports."""
    code = "import json, sys; import {}; print(json.dumps(sorted(sys.modules)))"
    for module in ("json", "hermes_state"):
        words = ("python", "-c", code.format(module))
        with_hook = json.loads(attached.run(*words).stdout)
        without = json.loads(attached.run(*words, HERMES_ACTOR_DISABLE="1").stdout)
        assert set(with_hook) == set(without)
        assert [name for name in with_hook if name.startswith("hermes_actor")] == [
            "hermes_actor_boot"
        ]


def test_uninstalled_alone_hermes_works_and_says_one_line(attached):
    """With ``attach.required`` it refuses to open the store instead; then the hook goes, too."""
    attached.run("python", "-m", "pip", "uninstall", "--quiet", "--yes", "hermes-actor")
    module, (line,) = opens_with(attached)
    assert module == "sqlite3"
    assert line.startswith("hermes-actor: cannot be imported in this environment (")
    assert f"-m pip install {ROOT}" in line
    done = attached.run("hermes", "chat", "-Q", "-q", "Alone")
    assert "Heard: Alone" in done.stdout
    assert "Traceback" not in done.stderr
    assert "Alone" in attached.hermes("sessions", "list")

    config = attached.home / "config.yaml"
    config.write_text(config.read_text() + "attach:\n  required: true\n")
    done = attached.run("python", "-c", BOUND, code=1)
    assert done.stderr.splitlines()[-1].startswith(
        "sqlite3.OperationalError: unable to open database file: hermes-actor cannot be imported"
    )
    for left in attached.purelib.glob("hermes_actor_*"):
        left.unlink()
    assert opens_with(attached) == ("sqlite3", [])


def test_a_broken_config_is_no_reason_to_refuse_the_store(attached):
    (attached.home / "config.yaml").write_text("model: [unclosed\n  : : :\n")
    module, lines = opens_with(attached)
    assert module == "hermes_actor.dbapi.connection"
    assert len(lines) <= 1


def test_a_hook_that_was_lost_is_named_and_put_back(attached):
    """An environment that was made again has no hook; attaching once more is the way back."""
    for left in attached.purelib.glob("hermes_actor_*"):
        left.unlink()
    told = attached.actor("attach", "--check", code=1)
    assert f"the hook is gone from {attached.purelib}" in told
    assert opens_with(attached)[0] == "sqlite3"
    attached.actor("attach")
    assert opens_with(attached)[0] == "hermes_actor.dbapi.connection"
    attached.actor("attach", "--check")
