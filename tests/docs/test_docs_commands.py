"""The page of commands is complete: options, exit codes, and every key of the status."""

import json
import subprocess
import sys

import click
import pytest
from pages import rows_of, run, section
from support.actors import wait_for

from hermes_actor import SessionDB, exits
from hermes_actor.cli import main

PAGE = "reference/commands.md"


def commands(group=main, name="hermes-actor"):
    """(name, command) of everything that can be called."""
    context = click.Context(group)
    for word in group.list_commands(context):
        command = group.get_command(context, word)
        if isinstance(command, click.Group):
            yield from commands(command, f"{name} {word}")
        else:
            yield f"{name} {word}", command


COMMANDS = dict(commands())


def test_every_command_is_in_the_first_table():
    intro = section(PAGE, "Commands").partition("## Exit codes")[0]
    listed = [row[0].partition("]")[0].strip("[`") for row in rows_of(intro)[1:]]
    assert sorted(listed) == sorted(COMMANDS)


def shown_as(option):
    value = "" if option.is_flag else f" {option.metavar or option.type.name.upper()}"
    return f"`{max(option.opts, key=len)}{value}`"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_described(name):
    rows = rows_of(section(PAGE, f"`{name}`"))
    described = {row[0]: row[1] for row in rows if row[0].startswith("`--")}
    options = [
        option
        for option in COMMANDS[name].params
        if isinstance(option, click.Option) and not option.hidden
    ]
    assert set(described) == {shown_as(option) for option in options}
    assert all(described.values())


def test_every_exit_code_is_described():
    rows = rows_of(section(PAGE, "Exit codes"))[1:]
    named = {int(code): name.strip("`") for code, name, _, _ in rows if name}
    assert named == {getattr(exits, name): name for name in exits.__all__}
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
