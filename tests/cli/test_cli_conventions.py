"""Manners of the commands, seen from outside: what they load, how they end, where words go."""

import ast
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from unittest.mock import ANY

import click
import pytest
from support.processes import run_python

from hermes_actor import cli, exit_codes
from hermes_actor.cli import main
from hermes_actor.cli.lazy import LazyGroup
from hermes_actor.tools.redaction import redact, register_redactor

LOADED = """
import contextlib, io, json, sys
from hermes_actor.cli import run
with contextlib.redirect_stdout(io.StringIO()):
    code = run(sys.argv[1:])
assert code == 0, code
print(json.dumps(sorted(sys.modules)))
"""


def loaded(*arguments):
    return set(run_python(LOADED, *arguments))


HEAVY = {"rich", "trio", "anyio", "asyncio", "sqlite_utils", "curses", "yaml", "subprocess"}


@pytest.mark.parametrize("arguments", [("--help",), ("sessions", "--help"), ("sessions",)])
def test_help_loads_no_command_and_no_store(arguments):
    found = loaded(*arguments)
    assert not found & (HEAVY | {"sqlite_utils", "hermes_actor.session_db", "hermes_protocol"})
    assert "hermes_actor.cli.sessions.list" not in found


@pytest.mark.parametrize("command", ["list", "stats"])
def test_looking_loads_no_writer(home, command):
    home.add("s", "x")
    found = loaded("sessions", command)
    assert not found & (HEAVY | {"hermes_actor.session_db", "hermes_actor.client.actor_client"})
    assert not any(name.startswith("hermes_actor.api") for name in found)


def groups(group=main):
    yield group
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        if isinstance(command, LazyGroup):
            yield from groups(command)


def test_the_help_of_a_group_says_what_its_commands_say():
    """The lines stand in a table, so that `--help` imports no command."""
    for group in groups():
        for name, line in group.table.items():
            found = group.get_command(click.Context(group), name)
            assert line == found.get_short_help_str(200), name
            assert len(line) <= 78 - 2 - max(map(len, group.table)) - 2, name


def commands(group=main, path=()):
    for name in group.list_commands(click.Context(group)):
        found = group.get_command(click.Context(group), name)
        if isinstance(found, click.Group):
            yield from commands(found, (*path, name))
        else:
            yield " ".join((*path, name)), found


def test_every_manual_has_exit_codes_and_examples():
    for name, found in commands():
        assert "Exit codes:" in found.help, name
        assert "Example" in found.help, name


def leaves(group=main):
    for one in groups(group):
        for name in one.list_commands(click.Context(one)):
            command = one.get_command(click.Context(one), name)
            if not isinstance(command, LazyGroup):
                yield f"{one.name} {name}", command


def test_no_manual_says_a_thing_twice():
    for name, command in leaves():
        text = " ".join((command.help or "").split("\b")[0].split())
        assert text.count("Exit codes:") <= 1, name
        said = [sentence for sentence in re.split(r"(?<=[.:]) ", text) if len(sentence) > 20]
        assert len(set(said)) == len(said), name


@pytest.mark.parametrize("to", ["foo", "foo.db", "./postgres"])
def test_target_that_is_a_mistyped_url_makes_no_file(home, monkeypatch, tmp_path, to):
    """A name without a scheme is a file, which is created only after a question."""
    home.add("s", "x")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    done = home("migrate", "--to", to)
    assert done.code == exit_codes.USAGE
    assert f"Create a new store at {elsewhere / to}?" in done.out + done.err
    assert "--yes" in done.err
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        ("sesions", "Did you mean 'sessions'"),
        ("list", "Did you mean 'sessions list'"),
        ("exprt", "Did you mean 'sessions export'"),
        ("sessions lst", "Did you mean 'list'"),
        ("xyzzy", "See: hermes-actor --help"),
        ("help xyzzy", "See: hermes-actor --help"),
        ("help stpo", "Did you mean 'stop'"),
        ("help backup now", "'hermes-actor backup' has no command 'now'."),
    ],
)
def test_mistyped_command_is_a_wrong_usage_with_a_suggestion(home, typed, answer):
    done = home(*typed.split())
    assert (done.code, done.out) == (2, "")
    assert answer in done.err


def test_help_shows_what_the_option_shows(home):
    assert home("help").out == home("--help").out
    assert home("help", "sessions", "list").out == home("sessions", "list", "--help").out
    document = json.loads(home("help", "stop", "--json").out)
    assert document["command"] == "hermes-actor stop"


def test_further_names_lead_to_one_command_and_stand_in_no_list(home):
    """`drain` and `sessiondb migrate` are written in scripts and in the settings of services."""
    assert home("drain", "--help").out == home("stop", "--help").out.replace(" stop ", " drain ", 1)
    assert home("sessiondb", "migrate", "--help").out == home("migrate", "--help").out
    listed = home("--help").out.split()
    assert not {"drain", "sessiondb"} & {*listed}
    assert "No such command 'sessiondb'" in home("sessiondb").err


def test_every_command_stands_in_one_group_of_the_help(home):
    text = home("--help").out
    for heading, part in main.groups.items():
        lines = text.partition(f"\n{heading}:\n")[2].partition("\n\n")[0].splitlines()
        assert [line.split()[0] for line in lines] == [*part], heading
    assert len(main.table) == sum(map(len, main.groups.values()))


def test_version_names_what_a_report_of_a_fault_needs(home):
    first = home("--version").out.strip()
    assert home("-V").out.strip() == first == home("version").out.splitlines()[0]
    document = json.loads(home("version", "--json").out)
    assert [*document] == ["version", "protocol", "python", "sqlite", "platform", "folder"]


SPEAK_OTHERWISE = {
    "completion", "logs", "serve", "schedules run", "sessions browse",  # a script, a log, a live view, a screen
    "metrics",  # in the format of Prometheus
    "tool session-search",  # speaks JSON anyway
    "service install", "service uninstall", "update",  # steps of other programs; status tells
}  # fmt: skip


def test_every_command_has_a_form_for_scripts():
    for name, found in commands():
        flags = {flag for option in found.params for flag in option.opts}
        assert ("--json" in flags) != (name in SPEAK_OTHERWISE), name


def command(*arguments, **options):
    options = {"stdin": subprocess.PIPE, **options}
    return subprocess.Popen(
        [sys.executable, "-m", "hermes_actor", *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options,
    )  # fmt: skip


def test_ctrl_c_at_a_question_declines(home):
    home.add("s", "x")
    ours, theirs = os.openpty()
    with command("sessions", "delete", "s", stdin=theirs) as process:
        asked = process.stderr.read(len("Delete session 's' and all its messages? [y/N] "))
        assert asked.endswith(b"[y/N] ")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    os.close(ours)
    os.close(theirs)
    assert (process.returncode, out, err) == (1, b"", b"\nCancelled.\n")
    assert home.ids() == {"s"}


QUESTIONS = [
    ("sessions", "delete", "s"),
    ("sessions", "prune", "--older-than", "0"),
    ("sessions", "archive", "--older-than", "0"),
    ("sessions", "optimize"),
    ("sessions", "export", "--format", "md", "--session-id", "s", "--delete-after-verified"),
    ("vacuum",),
    ("detach",),
    ("restore",),
    ("migrate", "--to", "new.db"),
    ("repair", "--salvage", "--swap"),
]


@pytest.mark.parametrize("arguments", QUESTIONS, ids=" ".join)
@pytest.mark.parametrize("json_", [(), ("--json",)])
def test_question_without_a_terminal_is_wrong_usage(home, monkeypatch, arguments, json_):
    """A job that believes to have pruned must hear that it has not."""
    monkeypatch.chdir(home.path)
    home.add("s", "x", started=10, ended=5)
    home("backup")
    found = home(*arguments, *json_, stdin="y\n")
    assert found.code == 2, found
    last = found.err.splitlines()[-1]
    if json_:
        document = json.loads(last)
        assert document.pop("code") == 2
        last = f"Error: {document.pop('error')}"
        assert document == {}
    assert re.fullmatch(r"Error: needs --yes without a terminal: .+\?( .+)?", last)
    assert home.ids() == {"s"}
    assert not (home.path / "new.db").exists()


@pytest.mark.parametrize("arguments", QUESTIONS, ids=" ".join)
def test_declined_question_is_not_success(home, monkeypatch, arguments):
    monkeypatch.chdir(home.path)
    home.add("s", "x", started=10, ended=5)
    home("backup")
    found = home(*arguments, "--json", answer="n\n")
    assert found.code in (1, 6), found  # 6: what was damaged still is
    assert "[y/N]" not in found.out
    assert home.ids() == {"s"}
    assert not (home.path / "new.db").exists()


def test_ctrl_c_elsewhere_is_130(home):
    # Standard input is read to its end before anything is done.
    with command("sessions", "import", "-") as process:
        process.stdin.write(b"\n" * 100_000)  # more than a pipe holds: it is being read
        process.stdin.flush()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"Traceback" not in err


def test_reader_that_has_had_enough(home):
    with home.store() as db, db.pipeline() as pipeline:
        for number in range(3000):
            pipeline.create_session(f"{number:060}", "cli")
    with command("sessions", "list", "--limit", 3000) as process:
        process.stdout.read(10)
        process.stdout.close()
        err = process.stderr.read()
        process.wait(60)
    assert (process.returncode, err) == (0, b"")


def test_errors_do_not_disturb_who_parses(home):
    home.add("s", "x")
    found = home("sessions", "delete", "nosuch", "--yes", "--json")
    assert (found.code, found.out) == (1, "")
    assert json.loads(found.err) == {"error": "Session 'nosuch' not found.", "code": 1}
    found = home("sessions", "delete", "nosuch", "--yes")
    assert (found.code, found.out, found.err) == (1, "", "Session 'nosuch' not found.\n")
    found = home("sessions", "list", "--limit", "many", "--json")
    assert (found.code, found.out) == (2, "")
    assert json.loads(found.err)["code"] == 2
    found = home("sessions", "export", "-", "--session-id", "nosuch")
    assert (found.code, found.out) == (1, "")


@pytest.mark.parametrize("group", ["", "sessions", "gateway", "agents"])
def test_group_without_a_command_shows_its_help_and_no_error(home, group):
    done = home(*group.split())
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"Usage: {' '.join(['hermes-actor', *group.split()])} ")
    assert "Error" not in done.out


def test_no_text_leaves_the_plural_to_its_reader():
    """``1 session(s)``: formatting.count() knows."""
    for file in (Path(cli.__file__).parent).rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                assert not re.search(r"[a-z]\(e?s\)", node.value), f"{file.name}: {node.value}"


def test_every_command_has_its_errors_as_json(home):
    """An option that does not exist is an error of every command."""
    for name, found in commands():
        if any("--json" in option.opts for option in found.params):
            done = home(*name.split(), "--no-such-option", "--json")
            assert (done.code, done.out) == (2, ""), name
            assert json.loads(done.err) == {"error": ANY, "code": 2}, name


@pytest.mark.parametrize(
    "arguments",
    [
        ("sessions", "list"),
        ("sessions", "stats"),
        ("sessions", "show", "s"),
        ("sessions", "rename", "s", "t"),
        ("sessions", "prune", "--dry-run"),
        ("sessions", "archive", "--source", "cli", "--dry-run"),
        ("sessions", "delete", "s", "--yes"),
        ("search", "x"),
        ("insights",),
        ("resume", "--peek"),
        ("resume", "--hint", "s"),
        ("title", "s"),
    ],
    ids=" ".join,
)
def test_json_for_scripts(home, arguments):
    home.add("s", "x")
    found = home(*arguments, "--json")
    assert found.code == 0
    json.loads(found.out)
    assert "\x1b" not in found.out


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("key ghp_abcdefghijklmnop123456 end", "key [REDACTED] end"),
        ("AKIAABCDEFGHIJKLMNOP", "[REDACTED]"),
        ("postgres://joe:hunter22@db/x", "postgres://[REDACTED]@db/x"),
        ('{"api_key": "abc123456"}', '{"api_key": "[REDACTED]"}'),
        ("Authorization: Bearer abcdef.ghijkl-123", "Authorization: Bearer [REDACTED]"),
        ("the token of a word, a password", "the token of a word, a password"),
    ],
)
def test_redaction(text, masked):
    assert redact(text) == masked


def test_redactor_of_ones_own():
    register_redactor(lambda text: text.replace("secret", "***"))
    try:
        assert redact("a secret") == "a ***"
    finally:
        register_redactor(None)


def test_export_that_cannot_be_written(home):
    home.add("s", "x")
    program = [sys.executable, "-m", "hermes_actor", "sessions", "export", "-"]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(program, stdout=full, stderr=-1)
    told = b"Error: cannot write standard output: No space left on device\n"
    assert (done.returncode, done.stderr) == (1, told)


@pytest.mark.parametrize("arguments", [("--help",), ("sessions", "list", "--json")], ids=" ".join)
def test_output_that_cannot_be_written(home, arguments):
    home.add("s", "x")
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "hermes_actor", *arguments], stdout=full, stderr=-1
        )
    assert done.returncode == 1
    said = done.stderr.decode().strip()
    said = json.loads(said)["error"] if "--json" in arguments else said.removeprefix("Error: ")
    assert said == "No space left on device"


def test_output_that_is_closed(home):
    home.add("s", "x")
    shell = f'exec "{sys.executable}" -m hermes_actor sessions list >&-'
    done = subprocess.run(["/bin/sh", "-c", shell], stderr=-1)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize(
    "arguments",
    [("sessions", "list"), ("sessions", "export", "-"), ("doctor",), ("sessions", "show", "zzz"),
     ("backup", "--to", "copy.db"), ("search", "x")],
    ids=" ".join,
)  # fmt: skip
@pytest.mark.parametrize("closed", [0, 2])
def test_streams_that_are_closed(home, tmp_path, arguments, closed):
    """A service may start a command without standard input or without standard error."""
    home.add("s", "x")
    program = [sys.executable, "-m", "hermes_actor", *arguments]
    ends = []
    for close in ((), (closed,)):
        folder = tmp_path / f"{len(close)}"
        folder.mkdir()
        done = subprocess.run(
            ["sh", "-c", " ".join(['exec "$@"', *(f"{n}<&-" for n in close)]), "sh", *program],
            capture_output=True, text=True, timeout=100, cwd=folder,
        )  # fmt: skip
        ends.append((done.returncode, done.stdout))
    assert ends[0] == ends[1]


HUGE = ["99999999999999999999", "9223372036854775807", "1e308", "inf", "nan", "-1", "0", "x"]


def options_of(*without):
    for name, command in leaves():
        name = name.removeprefix("main ").removeprefix("hermes-actor ")
        for one in command.params:
            number = isinstance(one.type, click.types.IntParamType | click.types.FloatParamType)
            if (number or one.name in ("older_than", "newer_than")) and name not in without:
                yield pytest.param(name, one, id=f"{name} {one.opts[0]}")


@pytest.mark.parametrize(
    ("name", "option"),
    # Those have no end, or start processes; their numbers are bounded, or have tests of their own.
    list(
        options_of(
            "serve", "demo", "web", "metrics", "gateway watch", "restart", "stop", "top", "update"
        )
    ),
)
def test_numbers_of_any_size_have_an_answer(home, monkeypatch, tmp_path, name, option):
    home.add("s", "x", started=10, ended=5)
    monkeypatch.chdir(tmp_path)
    given = {"search": ["x"], "sql": [str(home.db_path), "SELECT 1"], "sessions export": ["-"]}
    ask = {"sessions archive", "sessions unarchive", "sessions prune", "sessions export"}
    for value in HUGE:
        words = [*name.split(), option.opts[0], value, *(["--dry-run"] if name in ask else [])]
        done = home(*words, *given.get(name, []))
        assert done.code in (0, 1, 2), done
        assert "Traceback" not in done.err
    assert home.ids() == {"s"}
