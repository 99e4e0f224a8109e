"""What the pages show is what happens."""

import configparser
import plistlib
import re
import shlex
import subprocess

import pytest
from conformance.page_programs import needs_packages
from pages import DOCS, ROOT, blocks, environment, fences, follow, prints, rows_of, run, section

from hermes_actor import SessionDB, exit_codes


@pytest.mark.parametrize("page", ["tutorial.md", "how-to/python.md"])
def test_page_works_as_shown(page, home, monkeypatch):
    # A reader of the page has the default, ten minutes.
    monkeypatch.setenv("HERMES_ACTOR_IDLE_EXIT", "60")
    follow(page, home)


def test_other_tools_read_a_store_that_is_in_use(home):
    """The blocks of the page, but for tools that are not installed here."""
    db = SessionDB(home / "state.db")
    db.create_session("s1", "cli")
    db.append_message("s1", "user", "x")
    before = db.db_path.stat().st_ino
    plain, library = blocks("how-to/inspect.md", "python")
    prints(plain, "cli 1\n", home)
    prints(library, "1 1\n", home)
    shell = next(body for body in blocks("how-to/inspect.md", "sh") if "sqlite-utils" in body)
    done = subprocess.run(
        ["sh", "-e", "-c", shell], cwd=home, env=environment(home), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert '"table": "sessions", "count": 1' in done.stdout
    db.append_message("s1", "user", "y")
    assert (db.db_path.stat().st_ino, db.message_count()) == (before, 2)
    db.close()


STORE = """
>>> from hermes_actor import SessionDB
>>> db = SessionDB(mode="embedded")
>>> _ = db.create_session("s1", "cli")
>>> _ = db.create_session("s2", "cron")
>>> _ = db.append_message("s1", "user", "x")
>>> db.close()
"""


def test_commands_print_what_the_page_shows(home):
    follow("reference/commands.md", home, STORE)


TALKS = """
>>> import time
>>> from hermes_actor import SessionDB
>>> db = SessionDB(mode="embedded")
>>> _ = db.create_session("20260301_090000_bbbbbb", "cli")
>>> _ = db.append_message("20260301_090000_bbbbbb", "user", "Fix the flaky parser test")
>>> _ = db.append_message("20260301_090000_bbbbbb", "assistant", "Done.")
>>> db.end_session("20260301_090000_bbbbbb", "cli_close")
>>> _ = db.set_session_title("20260301_090000_bbbbbb", "parser fix")
>>> _ = db.create_session("20260228_200000_cccccc", "telegram")
>>> _ = db.append_message("20260228_200000_cccccc", "user", "Remind me of the dentist")
>>> db.close()
"""


@pytest.mark.parametrize("page", ["sessions", "search", "resume"])
def test_guides_of_the_command_line_work_as_shown(home, page):
    follow(f"how-to/{page}.md", home, TALKS)


def test_readme_example_prints_what_it_says(home):
    (example,) = blocks(ROOT / "README.md", "python")
    assert len([line for line in example.splitlines() if line]) <= 10
    (promised,) = re.findall(r"It prints `(.*?)`", (ROOT / "README.md").read_text())
    prints(example, promised + "\n", home)
    prints(example, promised + "\n", home)  # a person tries it twice


def test_first_screen_of_readme_names_the_pain_and_the_answer():
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) < 150
    first = "\n".join(text.splitlines()[:30])
    for words in ("database is locked", "damaged after an update", "demo.svg",
                  "hermes-actor attach", "hermes-actor doctor"):  # fmt: skip
        assert words in " ".join(first.split()), words


def test_no_page_installs_what_no_index_has():
    """The package is installed from a checkout: by a path, and not by its name."""
    for page in [*DOCS.rglob("*.md"), *ROOT.glob("*.md")]:
        wrong = re.findall(r"pip install (?:--?\w+ )*'?hermes-actor\b(?!/).*", page.read_text())
        assert wrong == [], page


def test_drop_in_lines_replace_the_module(home):
    (lines,) = blocks("how-to/drop-in.md", "python")
    done = run(["-c", lines + "from hermes_state import SessionDB; print(SessionDB())"], home)
    assert "hermes_actor.session_db.SessionDB" in done.stdout, done.stderr


def programs():
    """Every program of a guide that is followed by what it prints."""
    for page in ("how-to/async.md", "how-to/follow-changes.md", "how-to/sqlite3.md"):
        found = fences(page)
        assert [kind for kind, _ in found] == ["python", "text"] * (len(found) // 2), page
        for number in range(0, len(found), 2):
            if needs_packages(found[number][1]):
                continue  # run by `make conformance`, in the environment of its suites
            name = f"{page} {number // 2 + 1}"
            yield pytest.param(found[number][1], found[number + 1][1], id=name)


@pytest.mark.parametrize(("program", "promised"), [*programs()])
def test_program_prints_what_the_page_shows(program, promised, home):
    prints(program, promised, home)


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "CONTRIBUTING.md"])
def test_make_targets_exist(page):
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    named = re.findall(r"\bmake ([a-z-]+)", "".join(blocks(page, "sh")))
    assert named
    assert set(named) <= set(targets)


# --- services --------------------------------------------------------------------------------


def serve_options(command):
    """The options after `hermes-actor serve` in a command line."""
    words = shlex.split(command.split("hermes-actor serve")[1])
    return [word for word in words if word.startswith("--")]


def test_systemd_unit():
    (text,) = blocks("how-to/service.md", "ini")
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str
    unit.read_string(text)
    assert serve_options(unit["Service"]["ExecStart"]) == ["--plain"]
    assert {"Unit", "Service", "Install"} == set(unit.sections())


def test_launchd_agent():
    (text,) = blocks("how-to/service.md", "xml")
    agent = plistlib.loads(text.encode())
    assert serve_options(agent["ProgramArguments"][-1]) == ["--plain"]
    assert agent["KeepAlive"] == {"SuccessfulExit": False}


def test_exit_codes_of_a_service_are_those_of_serve():
    codes = rows_of(section("reference/commands.md", "Exit codes"))[1:]
    of_serve = {row[0] for row in codes if row[3] == "`serve`" or row[0] in "01"}
    listed = {row[0] for row in rows_of(section("how-to/service.md", "Exit codes"))[1:]}
    assert listed == of_serve
    assert {
        str(exit_codes.FSYNC_FAILED),
        str(exit_codes.FILES_REPLACED),
        str(exit_codes.FENCED),
    } <= listed


# --- settings --------------------------------------------------------------------------------


def test_every_variable_and_every_key_is_in_the_settings():
    code = "".join(file.read_text() for file in (ROOT / "hermes_actor").rglob("*.py"))
    rows = rows_of(section("operations.md", "Settings"))
    variables = set(re.findall(r"\b(HERMES_HOME|HERMES_ACTOR_[A-Z][A-Z_]*)\b", code))
    cells = {cell.strip("`") for row in rows for cell in row[:2]}
    assert {cell for cell in cells if cell.startswith("HERMES_")} == variables
    keys = set(re.findall(r"\"(actor\.[a-z_]+)\"", code))
    assert {row[0].strip("`") for row in rows if row[0].startswith("`actor.")} == keys


def test_no_page_names_a_machine():
    for page in [*DOCS.rglob("*.md"), *ROOT.glob("*.md")]:
        assert not re.search(
            r"(?<![\w.])/(home(?!/ann/)|root|work|tmp|Users)/", page.read_text()
        ), page


def test_gateway_answers_as_the_page_shows(home):
    example, *_ = blocks("how-to/gateway.md", "python")
    promised, *_ = blocks("how-to/gateway.md", "")
    prints(example, promised, home)
    shell = next(iter(blocks("how-to/gateway.md", "sh")))
    for line in shell.splitlines():
        done = run(["-m", *line.replace("hermes-actor", "hermes_actor", 1).split()], home)
        assert done.returncode == 0, done.stderr


def test_agents_page_works_as_shown(home, monkeypatch):
    monkeypatch.setenv("HERMES_ACTOR_IDLE_EXIT", "60")
    text = (DOCS / "how-to/agents.md").read_text("utf-8")
    example = None
    for language, body in re.findall(r"^```(\w*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        if language == "sh":
            done = subprocess.run(
                ["sh", "-e", "-c", body], cwd=home, env=environment(home), capture_output=True,
                text=True,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
        elif language == "python":
            example = body
        else:
            prints(example, body, home)
