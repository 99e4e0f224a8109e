"""top in a real terminal, and what it gives to scripts; completion in real shells."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.fake_builds import command, serving
from support.terminal import terminal

from hermes_actor import SessionDB, exit_codes
from hermes_actor.paths import resolve_paths
from hermes_actor.system.lock_inspection import lock_holder


def test_top_in_a_terminal(path, tmp_path):
    with terminal(
        tmp_path, "top", "--db", path, "--interval", "0.1", columns=100, lines=24
    ) as screen:
        screen.wait_for("not running: ")
        with serving(path) as actor:
            screen.wait_for(f"pid {actor.pid}, version")
            db = SessionDB(path)
            db.create_session("s", "cli")
            for _ in range(20):
                db.append_message("s", "user", "x")
            shown = screen.wait_for("writes   21 in")
            for word in ("serving: ", "latency", "queue", "batches", "wal", "index", "client"):
                assert word in shown
            assert f" {os.getpid()} " in shown
            screen.press("Space")
            db.append_message("s", "user", "while it stands still")
            screen.press("Space")
            screen.wait_for("writes   22 in")
            db.close()
        screen.wait_for("not running: ")
        screen.press("q")
        screen.wait_for("[exit 0]")


def test_interrupted_service_leaves_nothing_of_its_panel(path, tmp_path):
    """The panel is as wide as the screen: what the terminal shows of the key comes below it."""
    with terminal(tmp_path, "serve", "--db", path, columns=80, lines=24) as screen:
        screen.wait_for("latency")
        screen.press("C-c")
        shown = screen.wait_for("[exit 0]")
    assert "serving: " not in shown
    assert not set("╭│╰") & set(shown)


def test_top_for_scripts(path):
    with serving(path) as actor:
        done = command("top", "--db", path, "--json", "--count", 2, "--interval", "0.1")
    looks = [json.loads(line) for line in done.stdout.splitlines()]
    assert [look["pid"] for look in looks] == [actor.pid] * 2
    assert looks[0]["time"] < looks[1]["time"]
    done = command("top", "--db", path, "--json", "--count", 1)
    assert json.loads(done.stdout)["phase"] == "not running"


def test_top_without_a_terminal(path):
    done = command("top", "--db", path)
    assert (done.returncode, done.stdout) == (exit_codes.REFUSED, "")
    assert "top needs a terminal" in done.stderr


# --- completion ----------------------------------------------------------------------------------

BIN = str(Path(sys.executable).parent)


def shell(script, *words):
    path = os.pathsep.join([BIN, os.environ["PATH"]])
    done = subprocess.run(
        [*words, script], capture_output=True, text=True, env={**os.environ, "PATH": path}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_bash_completes_commands_and_options():
    script = """
        source <(hermes-actor completion bash)
        COMP_WORDS=(hermes-actor sto) COMP_CWORD=1
        _hermes_actor_completion hermes-actor sto hermes-actor; echo "${COMPREPLY[@]}"
        COMPREPLY=() COMP_WORDS=(hermes-actor stop --f) COMP_CWORD=2
        _hermes_actor_completion hermes-actor --f stop; echo "${COMPREPLY[@]}"
    """
    assert shell(script, "bash", "-c") == ["stop", "--force"]


def test_formats_that_are_not_supported_are_not_offered():
    """They are known, so that a program of the peer learns that they are not."""
    words = {"COMP_WORDS": "hermes-actor sessions export --format ", "COMP_CWORD": "4"}
    done = command(_HERMES_ACTOR_COMPLETE="bash_complete", **words)
    assert done.stdout.splitlines() == ["plain,jsonl", "plain,md", "plain,qmd"]
    shown = command("sessions", "export", "--help").stdout
    assert "--format [jsonl|md|qmd]" in shown
    for kind in ("html", "trace"):
        assert kind not in shown
        refused = command("sessions", "export", "--format", kind, "x")
        assert refused.returncode == 1
        assert f"--format {kind} is not supported; use jsonl, md or qmd" in refused.stderr


@pytest.mark.parametrize("name", ["zsh", "fish"])
def test_scripts_of_the_other_shells(name, tmp_path):
    text = command("completion", name).stdout
    assert "_HERMES_ACTOR_COMPLETE" in text
    assert text.startswith("#compdef hermes-actor\n" if name == "zsh" else "# Completion of")
    if shutil.which(name):
        file = tmp_path / name
        file.write_text(text)
        subprocess.run([name, "-n", file], check=True)
    # What the script asks for, in the form of that shell.
    variables = {
        "zsh": {"COMP_WORDS": "hermes-actor sto", "COMP_CWORD": "1"},
        "fish": {"COMP_WORDS": "hermes-actor sto", "COMP_CWORD": "sto"},
    }[name]
    done = command(_HERMES_ACTOR_COMPLETE=f"{name}_complete", **variables)
    assert "stop" in done.stdout


OFFER = """
    COMP_WORDS=(hermes-actor sessions show --db "$STORE" "$1") COMP_CWORD=5
    source <(hermes-actor completion bash)
    _hermes_actor_completion hermes-actor "$1" "$STORE"; printf '%s\\n' "${COMPREPLY[@]}"
"""
HOSTILE = [
    "$(touch harm)", "`touch harm`", "*", "a b", "x;touch harm", "-rf", "l\ni", "e\x1b[2J", "~",
    "q'q", "é", "\\e", "<x", "a|b", "#a", "{a,b}", "!!", "&",
]  # fmt: skip
TITLE = "Title {}, $(touch harm) `touch harm` %Fx\\n"


@pytest.fixture
def talks(path, tmp_path, monkeypatch):
    """A store of sessions, and a folder in which their names do no harm."""
    with SessionDB(path, mode="embedded") as db:
        for number, one in enumerate(["2026_a", "kept_b", "chat:1", *HOSTILE]):
            db.create_session(one, "cli")
            db.append_message(one, "user", f"said in {number}, and\nmore")
            db.set_session_title(one, TITLE.format(number))
        db.archive_session("kept_b")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STORE", str(path))
    yield path
    assert not (tmp_path / "harm").exists()
    assert lock_holder(resolve_paths(path)) is None, "a key has started an actor"


def offered(typed, kind="zsh", where="show", **env):
    words = ["hermes-actor", "sessions", where, *([typed] if kind != "zsh" or typed else [])]
    given = {"COMP_WORDS": " ".join(words), "COMP_CWORD": "3"} | env
    return command(_HERMES_ACTOR_COMPLETE=f"{kind}_complete", **given)


def run_shell(*words, **env):
    path = os.pathsep.join([BIN, os.environ["PATH"]])
    done = subprocess.run(
        words, capture_output=True, text=True, env={**os.environ, "PATH": path, **env}
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("2", ["2026_a"]),
        ("", ["chat:1", "2026_a"]),
        ("title", ["chat:1", "2026_a"]),  # no id begins so, but titles do
        ("nothing", [""]),
        ("$(touch", [""]),
    ],
)
def test_bash_completes_sessions(talks, typed, found):
    assert run_shell("bash", "-c", OFFER, "bash", typed) == found


def test_sessions_are_completed_with_their_titles(talks):
    done = offered("2", HERMES_HOME=str(talks.parent))
    kind, one, told = done.stdout.splitlines()
    assert (kind, one) == ("plain", "2026_a")
    assert told == TITLE.format(0)
    done = offered("", where="unarchive", HERMES_HOME=str(talks.parent))
    assert [line for line in done.stdout.splitlines() if "_" in line] == ["kept_b"]


IN_FISH = 'hermes-actor completion fish | source; complete -C "hermes-actor sessions show 2"'
IN_ZSH = """
    compdef() {}
    _describe() { print -rl -- "${(@P)3}" }
    compadd() { print -rl -- "${@[$#]}" }
    source <(hermes-actor completion zsh)
    words=(hermes-actor sessions show 2) CURRENT=4
    _hermes_actor_completion
"""


@pytest.mark.parametrize(
    ("words", "between"),
    [(("fish", "--no-config", "-c", IN_FISH), "\t"), (("zsh", "-fc", IN_ZSH), ":")],
)
def test_other_shells_complete_sessions(talks, words, between):
    if shutil.which(words[0]) is None:
        pytest.skip(f"{words[0]} is not installed; make test installs it where it may")
    (line,) = run_shell(*words, HERMES_HOME=str(talks.parent))
    assert line == f"2026_a{between}{TITLE.format(0)}"


def test_completion_of_a_store_that_cannot_be_read_offers_nothing(tmp_path, path):
    for made in (None, b"", b"no database" * 500, "pipe"):
        path.unlink(missing_ok=True)
        if made == "pipe":
            os.mkfifo(path)
        elif made is not None:
            path.write_bytes(made)
        done = offered("2", HERMES_HOME=str(path.parent))
        assert (done.returncode, done.stdout, done.stderr) == (0, "\n", "")


def test_completion_is_installed_where_the_shell_looks(tmp_path):
    done = command("completion", "--install", HOME=str(tmp_path), SHELL="/usr/bin/fish")
    assert done.returncode == 0
    assert (tmp_path / ".config/fish/completions/hermes-actor.fish").exists()
    done = command("completion", SHELL="/bin/tcsh")
    assert (done.returncode, done.stdout) == (exit_codes.REFUSED, "")
    assert "no completion for tcsh" in done.stderr


def test_windows_gets_one_sentence():
    code = "import sys; sys.platform = 'win32'; import hermes_actor.__main__ as m; exit(m.main())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    assert "does not support Windows yet" in done.stderr
