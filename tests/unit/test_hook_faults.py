"""An exception at any line of the hook neither stops the program nor leaves half of it attached."""

import ast
import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from support.actors import end_actors

from hermes_actor.attach import boot

pytestmark = pytest.mark.slow

STATE = "import sqlite3\ndef connect(path):\n    return sqlite3.connect(path)\n"
TOOLS = """
import shutil
import hermes_state

def connect(path):
    import sqlite3
    with open(path + ".bytes", "wb") as file:
        file.write(b"1")
    shutil.rmtree(path + ".none", ignore_errors=True)
    return sqlite3.connect(path)

def copy(source, target):
    return shutil.copy2(source, target)
"""
EACH_LINE = """
import itertools, json, os, sys
import hermes_actor.dbapi  # once for all children

path, name = sys.argv[1], "hermes_actor_boot"

def program(number):
    seen, lines = [], itertools.count(1)

    def trace(frame, event, argument):
        if not frame.f_code.co_filename.endswith(name + ".py"):
            return None
        if event == "line" and next(lines) == number:
            seen.append(frame.f_lineno)
            raise RuntimeError("a fault")
        return trace

    sys.settrace(trace)
    try:
        try:
            __import__(name)
        except Exception:
            pass  # as the line in the environment does
        import hermes_state
        import hermes_tools
        made = [hermes_state.connect(path), hermes_tools.connect(path)]
        hermes_tools.copy(path, path + ".copy")
        return seen, [type(conn.execute("SELECT 1").connection).__module__ for conn in made]
    except BaseException as error:
        return seen, repr(error)
    finally:
        sys.settrace(None)

for number in itertools.count(1):
    reading, writing = os.pipe()
    if os.fork() == 0:
        error = os.open(path + ".stderr", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(error, 2)
        seen, modules = program(number)
        sys.stderr.flush()
        said = open(path + ".stderr").read().splitlines()
        os.write(writing, json.dumps([seen, modules, said]).encode())
        os._exit(0)
    os.close(writing)
    with open(reading) as told:
        found = told.read()
    os.wait()
    print(found)
    if not json.loads(found)[0]:
        break
"""


def own_calls():
    """Lines that only begin a guard, or pass on to what the program has called."""
    text = Path(boot.__file__).read_text()
    lines = text.splitlines()
    names = {"open_file", "connect", "call", "exec_module", "create_module", "open_store"}
    names |= {"find_spec", "get_code", "import_module"}
    found = set()
    for function in ast.walk(ast.parse(text)):
        if isinstance(function, ast.FunctionDef) and function.name in names:
            for statement in function.body:
                last = statement.lineno if isinstance(statement, ast.Try) else statement.end_lineno
                found.update(range(statement.lineno, last + 1))
    found.update(one.lineno for one in ast.walk(ast.parse(text)) if isinstance(one, ast.Try))
    assert len(found) < 50
    return found, lines


def test_a_fault_at_any_line_leaves_the_program_whole(tmp_path, monkeypatch):
    monkeypatch.setenv("HERMES_ACTOR_IDLE_EXIT", "30")
    home, folder = tmp_path / "home", tmp_path / "program"
    home.mkdir()
    folder.mkdir()
    (folder / "hermes_state.py").write_text(STATE)
    (folder / "hermes_tools.py").write_text(TOOLS)
    settings = {
        "scheme": boot.SCHEME, "version": "0", "names": ["hermes_state", "hermes_tools"],
        "folder": str(folder), "editable": True, "homes": [str(home)], "typed": [],
        "warning": None, "advice": "",
    }  # fmt: skip
    text = Path(boot.__file__).read_text()
    (folder / "hermes_actor_boot.py").write_text(f"{text}\n\ninstall({settings!r})\n")
    path = home / "state.db"
    sqlite3.connect(path).execute("CREATE TABLE t (x)").connection.close()
    try:
        done = subprocess.run(
            [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(folder)!r})\n{EACH_LINE}",
             str(path)],
            capture_output=True, text=True, timeout=300, check=True,
        )  # fmt: skip
    finally:
        end_actors(path)
    runs = [json.loads(line) for line in done.stdout.splitlines()]
    ours = "hermes_actor.dbapi.connection"
    assert runs.pop() == [[], [ours, ours], []]
    exempt, lines = own_calls()
    assert len({line for (line,), _, _ in runs}) > 150
    for (line,), modules, said in runs:
        if line in exempt:
            continue
        what = f"line {line}, {lines[line - 1 : line]}: {modules} {said}"
        # Nothing after a fault is attached; what was opened before it stays.
        assert modules in ([ours, ours], [ours, "sqlite3"], ["sqlite3", "sqlite3"]), what
        assert len(said) <= 1, what
        assert all(one.startswith("hermes-actor: ") for one in said), what
        # Silent is only a hook that was not there in the first place.
        assert said or modules != [ours, "sqlite3"], what
