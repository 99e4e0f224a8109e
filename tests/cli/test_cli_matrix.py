"""Every command, as the command tree has it, beside everything that it must not harm.

A new command is part of it by itself; only its required arguments may have to be given, in GIVEN.
"""

import contextlib
import json
import os
import shlex
import sqlite3
import stat
import subprocess
import sys
import threading

import click
import pytest
from support.actors import actors_of, end_actors
from support.cli_home import DAY

from hermes_actor import SessionDB
from hermes_actor.agent_store.store import AgentStore
from hermes_actor.cli import main
from hermes_actor.cli.output.formatting import width

HOSTILE = [
    "../x",
    "/etc/x",
    "*",
    "[a]",
    "-n",
    "e\x1b[2Jsc",
    "b\x07\x9b31m",
    "l\ni\nne",
    "é\u202e漢",
    "~",
    "$(x)",
]


def commands(group=main, path=()):
    for name in group.list_commands(click.Context(group)):
        found = group.get_command(click.Context(group), name)
        if isinstance(found, click.Group):
            yield from commands(found, (*path, name))
        else:
            yield " ".join((*path, name)), found


COMMANDS = dict(commands())

CONTROL = {chr(n) for n in (*range(32), *range(127, 160))} - {"\n"}

APART = {
    "demo",  # in a home of its own
    "completion", "help", "version", "service uninstall", "service status",  # about no store
    "attach",  # about an environment of another program
    "web",  # serves what there is, without an end; see tests/web
}  # fmt: skip
OF_AGENTS = {
    "agents", "channels", "instructions", "mcp", "memories", "sandboxes", "schedules", "secrets",
    "skills", "users",
}  # fmt: skip
"""Groups of commands about a store of agents, which is not a file of sessions."""
APART |= {name for name in COMMANDS if name.split()[0] in OF_AGENTS}

WITHOUT_END = {"serve"}
"""Serves until it is ended; where it must refuse, it does so at once."""

GIVEN = {
    "session_id": "x", "words": ["word"], "query": "word", "arguments": '{"query": "word"}',
    "file": os.devnull, "command": ["true"], "output": "-", "to": "$new", "key": "chat",
}  # fmt: skip
"""Values of arguments and of options that a command cannot do without."""

MORE = {
    "top": ["--json", "--count", "1"],
    "repair": ["--check"],
    "service install": ["--dry-run"],
    "gateway watch": ["--once"],
    "sessions archive": ["--older-than", "0"],
    "sessions unarchive": ["--older-than", "0"],
    "sessions export": ["--force"],
    "migrate": ["--dry-run"],
}

ABOUT_THE_ACTOR = {"status", "metrics", "stop", "handoff", "top", "ps", "doctor", "logs"}
"""They say whether one runs; the store need not be there."""
MAKE = {"sessions import", "title", "restart", "serve", "service install"}
"""They make a store where there is none. A path that is mistyped gets no folder, though."""
ELSEWHERE = {"restore", "update"}
"""Nothing to read, but a copy to bring back, or code to update."""


def line_of(name, command, db, new, **given):
    """A command line for *name* about *db*, without a question."""
    values = {**GIVEN, **given}
    words, behind = [*name.split(), *MORE.get(name, [])], []
    for one in command.params:
        value = str(db) if one.name == "database" else values.get(one.name)
        if isinstance(one, click.Argument):
            if one.required or one.name in given or one.name == "output":
                assert value is not None, f"tell GIVEN a value for {one.name} of {name}"
                behind += value if isinstance(value, list) else [value]
        elif one.required:
            assert value is not None, f"tell GIVEN a value for {one.name} of {name}"
            words += [one.opts[0], str(new) if value == "$new" else value]
        elif one.name == "yes":
            words.append("--yes")
        elif one.name in ("db", "from_"):
            words += [one.opts[0], str(db)]
    return [*words, *(["--"] if behind else []), *behind]


def about_a_store(*without):
    left = [name for name in COMMANDS if name not in APART | {*without}]
    return pytest.mark.parametrize("name", left)


def state_of(folder):
    """Every entry under *folder* with what it is and holds."""
    found = {}
    for path in sorted(folder.rglob("*")):
        kind = stat.S_IFMT(path.lstat().st_mode)
        found[str(path.relative_to(folder))] = (kind, path.read_bytes() if path.is_file() else b"")
    return found


@pytest.fixture
def folder(home):
    made = home.path / "beside"
    made.mkdir()
    (made / "neighbour.txt").write_text("mine")
    yield made
    for file in made.glob("*.db"):
        if file.is_file():
            end_actors(file)


def run(home, name, db, **given):
    return home(*line_of(name, COMMANDS[name], db, db.parent / "new.db", **given))


@about_a_store(*WITHOUT_END)
def test_store_that_is_not_there(home, folder, name):
    before, db = state_of(folder), folder / "state.db"
    done = run(home, name, db)
    if name in MAKE | ELSEWHERE:
        end_actors(db)
    elif name in ABOUT_THE_ACTOR:
        assert state_of(folder) == before
    else:
        assert (done.code, done.out) == (1, "") or name == "tool session-search", done
        what = "file" if name == "sql" else "store at"
        assert f"there is no {what} {db}" in done.err + done.out
        assert state_of(folder) == before


@about_a_store()
def test_folder_that_is_not_there(home, folder, name):
    before = state_of(folder)
    done = run(home, name, folder / "typo" / "state.db")
    assert state_of(folder) == before
    assert done.code != 0 or name in ABOUT_THE_ACTOR | {"service install"}, done


@about_a_store(*WITHOUT_END, *MAKE)
def test_file_that_is_empty(home, folder, name):
    db = folder / "state.db"
    db.touch()
    before = state_of(folder)
    run(home, name, db)
    assert state_of(folder) == before


@about_a_store("sql")  # which works on any database
@pytest.mark.parametrize("table", ["bookmarks (x)", "sessions (id, user, token)"])
def test_database_of_another_program(home, folder, name, table):
    db = folder / "places.db"
    conn = sqlite3.connect(db)
    conn.execute(f"CREATE TABLE {table}")
    conn.close()
    before = state_of(folder)
    done = run(home, name, db)
    assert state_of(folder) == before
    if name not in ABOUT_THE_ACTOR | {"service install"}:
        assert done.code == 1, done
        assert f"{db} is not a store" in done.err + done.out


def agent_line(command, name, store):
    """A command line about an agent store, with a value for everything that it cannot do without."""
    words, behind = name.split(), []
    for one in command.params:
        values = one.type.choices if isinstance(one.type, click.Choice) else ["x"]
        if one.name == "store":
            words += ["--store", str(store)]
        elif one.name == "yes":
            words.append("--yes")
        elif isinstance(one, click.Argument):
            behind += values[:1] * one.required
        elif one.required or one.name in ("agent", "cron"):
            words += [one.opts[0], "0 7 * * *" if one.name == "cron" else values[0]]
    return [*words, "--", *behind]


ABOUT_AGENTS = [name for name in COMMANDS if name.split()[0] in OF_AGENTS]


def about_agents(*without):
    return pytest.mark.parametrize("name", [n for n in ABOUT_AGENTS if n not in without])


@about_agents("agents setup", "agents import")
def test_agent_store_that_is_not_there(home, folder, name):
    before, store = state_of(folder), folder / "it's new.db"
    done = home(*agent_line(COMMANDS[name], name, store))
    assert (done.code, done.out) == (1, ""), done
    assert f"there is no agent store at {store}" in done.err
    make = "hermes-actor agents setup --store " + shlex.quote(str(store))
    assert make in done.err
    assert state_of(folder) == before


@about_agents()
def test_folder_of_an_agent_store_that_is_not_there(home, folder, name):
    before = state_of(folder)
    done = home(*agent_line(COMMANDS[name], name, folder / "typo" / "agents.db"))
    assert done.code == 1, done
    assert state_of(folder) == before
    if name == "agents setup":
        assert f"there is no folder {folder}/typo for agents.db; create it first" in done.err


def test_lists_of_agents_start_no_actor(hostile_agents):
    end_actors(hostile_agents.path / "agents.db")
    for name in LOOKS:
        words = agent_line(COMMANDS[name], name, hostile_agents.path / "agents.db")
        assert "Traceback" not in hostile_agents(*words).err
    assert actors_of(hostile_agents.path / "agents.db") == set()


@about_agents("agents import")  # which reads a server first
def test_pipe_in_the_place_of_an_agent_store(home, folder, name):
    store = folder / "agents.db"
    os.mkfifo(store)
    before = state_of(folder)
    done = home(*agent_line(COMMANDS[name], name, store))
    assert (done.code, state_of(folder)) == (1, before)
    assert f"{store} is a pipe or a device, not a store" in done.err


@pytest.fixture
def hostile_agents(home):
    """An agent store full of names that others chose."""
    store = home.path / "agents.db"
    assert home("agents", "setup").code == 0
    assert home("agents", "create", "x", "--workspace", "/srv").code == 0
    with contextlib.closing(AgentStore.global_(store)) as every:
        for number, one in enumerate(HOSTILE):
            every.of(f"a{number}").agents.create(one, name=one)
            every.users.upsert({"user_id": f"u{number}", "name": one})
            every.of("x").memories.put(one, key=f"m{number}")
    yield home
    end_actors(store)


LOOKS = [name for name in ABOUT_AGENTS if name.split()[1] in ("list", "show", "check", "search")]


@pytest.mark.parametrize("name", LOOKS)
def test_names_of_agents_move_no_cursor_and_fit_the_terminal(hostile_agents, monkeypatch, name):
    words = agent_line(COMMANDS[name], name, hostile_agents.path / "agents.db")
    for columns, more in ((60, ()), (80, ()), (120, ()), (80, ("--json",))):
        monkeypatch.setenv("COLUMNS", str(columns))
        done = hostile_agents(*words[: len(name.split())], *more, *words[len(name.split()) :])
        told = done.out + done.err
        assert not CONTROL & set(told), repr(told)
        assert "l\ni\nne" not in told
        assert "\u202e" not in told or more  # JSON is data as it is
        if name.endswith(("list", "search")) and not more:
            assert all(width(line) <= columns for line in done.out.splitlines()), done.out


@pytest.mark.parametrize("kind", ["foreign", "sessions"])
@pytest.mark.parametrize("name", ABOUT_AGENTS)
def test_file_that_is_no_agent_store(home, folder, name, kind):
    """The file of another program got the tables of an agent store, also from a mere list."""
    db = folder / "places.db"
    if kind == "sessions":
        SessionDB(db, mode="embedded").close()
    else:
        with contextlib.closing(sqlite3.connect(db)) as conn:
            conn.execute("CREATE TABLE agents (x)")
    before = state_of(folder)
    done = home(*agent_line(COMMANDS[name], name, db))
    after = state_of(folder)
    if kind == "sessions":  # a reader of a file in WAL mode makes these
        for side in ("-wal", "-shm"):
            after.pop(f"{db.name}{side}", None)
    assert after == before
    assert done.code == 1, done
    if name != "agents import":  # which reads a server first
        assert f"{db} is not an agent store" in done.err


@about_a_store()
def test_pipe_in_the_place_of_a_store(home, folder, name):
    db = folder / "state.db"
    os.mkfifo(db)
    before = state_of(folder)
    result = []
    thread = threading.Thread(target=lambda: result.append(run(home, name, db)), daemon=True)
    thread.start()
    thread.join(60)
    assert result, "it hangs"
    assert state_of(folder) == before
    assert result[0].code != 0 or name in ABOUT_THE_ACTOR | {"service install"}


@pytest.fixture
def hostile(home):
    """A store full of names that others chose, and files that they might lead to."""
    for number, one in enumerate(HOSTILE):
        home.add(
            one, "word " + one.replace("\n", " "), title=f"t{number} {one}", source=one,
            started=100 * DAY + number, ended=99 * DAY, reason=one, model=one,
        )  # fmt: skip
    (home.path / "sessions").mkdir()
    (home.path / "sessions" / "a.json").write_text("mine")
    (home.path / "x.json").write_text("mine")
    return home


READ = [name for name in COMMANDS if name not in APART | WITHOUT_END | {"top", "logs", "update"}]


FORMS = [
    *READ,
    "sessions export --older-than 0 --dry-run",
    "sessions prune --older-than 0 --dry-run",
    "sessions list --limit 50",
    "search --context word",
    "search word",
    "insights --days 3650 --top 20",
    "resume --peek -r",
    "resume --hint",
    "resume --json --hint",
    "sessions list --json --limit 50",
    "sessions stats --json",
    "search word --json",
]


@pytest.mark.parametrize("form", FORMS)
def test_names_that_others_chose_move_no_cursor(hostile, form):
    takes_id = form.endswith(("-r", "--hint")) or (
        form in COMMANDS and any(one.name == "session_id" for one in COMMANDS[form].params)
    )
    for given in HOSTILE if takes_id else [""]:
        if form in COMMANDS:
            options = {"session_id": given} if takes_id else {}
            if form == "sessions export":
                options["output"] = str(hostile.path / "out")  # data as it is
            done = run(hostile, form, hostile.db_path, **options)
        else:
            done = hostile(*form.split(), *([given] if takes_id else []))
        told = done.out + done.err
        assert not CONTROL & set(told), repr(told)
        assert "l\ni\nne" not in told
    assert (hostile.path / "x.json").exists()
    assert (hostile.path / "sessions" / "a.json").exists()


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
@pytest.mark.parametrize("form", ["sessions list", "sessions stats", "search word --context",
                                  "insights --days 3650", "sessions show é", "resume --peek -r é"])  # fmt: skip
def test_every_output_can_be_encoded(hostile, monkeypatch, form, encoding):
    """Also that of a terminal of long ago; JSON loses nothing by it."""
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}
    for more in ((), ("--json",)):
        done = subprocess.run(
            [sys.executable, "-m", "hermes_actor", *form.split(), *more],
            env=environment, capture_output=True, timeout=100,
        )  # fmt: skip
        # A busy machine may keep it waiting for its actor for so long that it says so.
        told = [line for line in done.stderr.splitlines() if not line.startswith(b"waiting: ")]
        assert (done.returncode, told) == (0, [])
        text = done.stdout.decode(encoding)
        if more and form == "sessions list":
            assert {row["id"] for row in json.loads(text)} == set(HOSTILE)


def test_path_that_is_not_text_is_printed_as_it_is(home):
    """A script gets the bytes of the path, a person reads them in an error."""
    home.add("s", "x")
    folder = os.fsencode(home.path) + b"/caf\xe9"
    os.mkdir(folder)
    program = [sys.executable, "-m", "hermes_actor", "backup", "--to", folder + b"/copy.db"]
    done = subprocess.run(program, capture_output=True, timeout=100)
    assert (done.returncode, done.stdout) == (0, folder + b"/copy.db\n")
    done = subprocess.run(program, capture_output=True, timeout=100)
    assert done.returncode == 1
    assert b"caf\\xe9/copy.db exists" in done.stderr


def test_every_command_with_force_is_tested_with_all_kinds_of_output():
    from test_cli_output import COMMANDS as TRIED

    tried = {" ".join(word for word in line("to")[:2] if word in {"sessions", "export", "backup", "migrate"})
             for line in TRIED.values()}  # fmt: skip
    writes = {
        name
        for name, one in COMMANDS.items()
        if "--force" in {o for p in one.params for o in p.opts}
    }
    assert writes - tried == {"completion", "stop"}
