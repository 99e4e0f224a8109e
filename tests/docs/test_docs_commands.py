"""The pages of commands are complete: options, exit codes, and every key of the status."""

import importlib.util
import inspect
import json
import subprocess
import sys

import click
import pytest
from pages import DOCS, rows_of, run, section
from support.actors import wait_for

from hermes_actor import SessionDB, exit_codes

PAGE = "reference/commands.md"


def load_generator():
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GENERATOR = load_generator()
COMMANDS = GENERATOR.COMMANDS


def test_pages_of_commands_are_current(capsys):
    assert GENERATOR.main(["--check"]) == 0, capsys.readouterr().out


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_examples_and_describes_its_options(name):
    command = COMMANDS[name]
    text = inspect.cleandoc(command.help)
    assert f"hermes-actor {name}" in text.partition("\b\nExample")[2]
    for option in command.params:
        if isinstance(option, click.Option) and not option.hidden:
            assert option.help, option.name


def test_every_exit_code_is_described():
    rows = rows_of(section(PAGE, "Exit codes"))[1:]
    named = {int(code): name.strip("`") for code, name, _, _ in rows if name}
    assert named == {getattr(exit_codes, name): name for name in exit_codes.__all__}
    assert [int(row[0]) for row in rows] == sorted({2, *named})


# --- the status document ---------------------------------------------------------------------

MAPS = {"batch_sizes", "checkpoints", "handoff"}
"""Their keys are values, and are described with them."""

FOREIGN = """
import sqlite3, sys
conn = sqlite3.connect(sys.argv[1], isolation_level=None)
conn.execute("INSERT INTO state_meta VALUES ('foreign', 'x')")
print("written", flush=True)
sys.stdin.read()
"""


def paths(value, path=""):
    if isinstance(value, dict) and path not in MAPS:
        for key, inner in value.items():
            yield from paths(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        yield from paths(value[0], f"{path}[]")
    else:
        yield path


def described_keys():
    rows = rows_of(section(PAGE, "The status document"))[1:]
    assert all(meaning for _, meaning in rows)
    return {key.strip("`"): meaning for key, meaning in rows}


def status(home):
    done = run(["-m", "hermes_actor", "status", "--json"], home)
    return json.loads(done.stdout)


def test_every_key_of_a_status_document_is_described_and_no_other(home):
    db = SessionDB(home / "state.db")
    db.create_session("s1", "cli")
    foreign = subprocess.Popen(
        [sys.executable, "-c", FOREIGN, db.db_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with foreign:
        assert foreign.stdout.readline() == b"written\n"
        found = wait_for(lambda: (seen := status(home))["foreign_writers"] and seen)
        assert [writer["pid"] for writer in found["foreign_writers"]] == [foreign.pid]
        foreign.stdin.close()
    db.close()
    assert sorted(paths(found)) == sorted(described_keys())
    assert all(f"`{size}`" in described_keys()["batch_sizes"] for size in found["batch_sizes"])


def test_status_document_without_an_actor(home):
    assert set(status(home)) == {"phase", "database", "rescued"}
