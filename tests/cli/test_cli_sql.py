"""``hermes-actor sql``: rows in three forms, a script, a shell, and changes through the actor."""

import csv
import io
import json
import os
import sqlite3
import subprocess
import sys

import pytest
from support.actors import end_actors
from support.terminal import terminal


@pytest.fixture
def board(tmp_path):
    """A database of another program, in WAL mode."""
    file = tmp_path / "board.db"
    conn = sqlite3.connect(file)
    conn.executescript(
        "PRAGMA journal_mode = WAL;"
        "CREATE TABLE tasks (id INTEGER PRIMARY KEY, title, done, data);"
        "INSERT INTO tasks VALUES (1, 'wash', 0, NULL), (2, 'a\x1b[2J漢字\nb', 1.5, x'00ff');"
    )
    conn.close()
    yield file
    end_actors(file)


def run(*words, given=None, width=80):
    environment = {**os.environ, "COLUMNS": str(width)}
    return subprocess.run(
        [sys.executable, "-m", "hermes_actor", "sql", *map(str, words)],
        input=given, capture_output=True, text=True, timeout=100, env=environment,
    )  # fmt: skip


def test_rows_as_a_table(board):
    done = run(board, "SELECT * FROM tasks ORDER BY id")
    assert (done.returncode, done.stderr) == (0, "")
    head, rule, first, second = done.stdout.splitlines()
    assert head.split() == ["id", "title", "done", "data"]
    assert set(rule) == {"─", " "}
    assert first.split() == ["1", "wash", "0", "NULL"]
    assert "\x1b" not in second
    assert second.endswith("<2 bytes>")


@pytest.mark.parametrize("width", [60, 80, 120])
def test_table_fits_the_terminal(board, width):
    wide = ", ".join(f"'{'x' * 50}' AS c{n}" for n in range(5))
    done = run(board, f"SELECT 1 AS n, {wide}", width=width)
    assert max(map(len, done.stdout.splitlines())) <= width
    assert "…" in done.stdout


def test_rows_as_json(board):
    done = run(board, "SELECT id, id, title, data FROM tasks ORDER BY id", "--json")
    rows = json.loads(done.stdout)
    assert rows == [
        {"id": 1, "id_2": 1, "title": "wash", "data": None},
        {"id": 2, "id_2": 2, "title": "a\x1b[2J漢字\nb", "data": {"base64": "AP8="}},
    ]
    assert json.loads(run(board, "SELECT 1 WHERE 0", "--json").stdout) == []


def test_rows_as_csv(board):
    done = run(board, "SELECT id, title, data FROM tasks ORDER BY id", "--csv")
    assert list(csv.reader(io.StringIO(done.stdout))) == [
        ["id", "title", "data"],
        ["1", "wash", ""],
        ["2", "a\x1b[2J漢字\nb", "AP8="],
    ]


def test_values_for_the_statement(board):
    done = run(board, "SELECT title FROM tasks WHERE id = ?", "-p", "1", "--csv")
    assert done.stdout == "title\nwash\n"


def test_script_from_standard_input(board):
    script = "SELECT 1 AS a; SELECT\n 2 AS b;\n-- the end\nSELECT ';' AS c"
    done = run(board, "--csv", given=script)
    assert (done.returncode, done.stdout) == (0, "a\n1\nb\n2\nc\n;\n")


def test_reading_changes_nothing_and_starts_no_actor(board):
    before = board.read_bytes()
    done = run(board, "DELETE FROM tasks")
    assert (done.returncode, done.stdout) == (1, "")
    assert "read-only" in done.stderr
    assert "--write" in done.stderr
    assert board.read_bytes() == before
    assert not (board.parent / f".{board.name}.actor").exists()


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["SELEC 1"], 1, "syntax error"),
        (["SELECT 1", "--json", "--csv"], 2, "exclude each other"),
        (["-p", "1"], 2, "--param needs a STATEMENT"),
    ],
)
def test_mistakes_are_named(board, words, code, text):
    done = run(board, *words)
    assert done.returncode == code
    assert text in done.stderr


def test_error_for_a_script_is_json(board):
    done = run(board, "SELEC 1", "--json")
    assert json.loads(done.stderr)["code"] == 1


def test_file_that_is_not_there_is_not_made(tmp_path):
    done = run(tmp_path / "no.db", "SELECT 1", "--write")
    assert done.returncode == 1
    assert "there is no file" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_statement_without_its_file_is_a_wrong_usage(board):
    done = run("SELECT 1")
    assert done.returncode == 2
    assert "name the file before the statement: hermes-actor sql FILE 'SELECT 1'" in done.stderr


def test_change_goes_through_the_actor(board):
    done = run(board, "--write", "UPDATE tasks SET title = 'dry' WHERE id = 1")
    assert (done.returncode, done.stderr) == (0, "")
    assert (board.parent / f".{board.name}.actor").exists()
    assert run(board, "SELECT title FROM tasks WHERE id = 1", "--csv").stdout == "title\ndry\n"


def test_shell(board, tmp_path):
    """Statements over several lines, dot commands, mistakes, Ctrl-C, and a history that is kept."""
    history = {"XDG_STATE_HOME": str(tmp_path / "state")}
    with terminal(tmp_path, "sql", board, lines=30, **history) as screen:
        screen.wait_for("board.db>")
        screen.type("SELECT title")
        screen.press("Enter")
        screen.wait_for("...>")
        screen.type("FROM tasks WHERE id = 1;")
        screen.press("Enter")
        assert "wash" in screen.wait_for("(1 row)")
        screen.type(".tables")
        screen.press("Enter")
        screen.wait_for("tasks\n")
        screen.type(".nothing")
        screen.press("Enter")
        screen.wait_for("there is no command .nothing")
        screen.type(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i FROM n) SELECT sum(i) FROM n;"
        )
        screen.press("Enter")
        screen.press("C-c")
        screen.wait_for("interrupted")
        screen.type("DELETE FROM tasks;")
        screen.press("Enter")
        screen.wait_for("read-only")
        screen.type(".quit")
        screen.press("Enter")
        screen.wait_for("[exit 0]")
    kept = tmp_path / "state" / "hermes-actor" / "sql-history"
    assert kept.stat().st_mode & 0o777 == 0o600
    (tmp_path / "again").mkdir()
    with terminal(tmp_path / "again", "sql", board, lines=30, **history) as screen:
        screen.wait_for("board.db>")
        screen.press("Up", "Up")
        screen.wait_for("DELETE FROM tasks;")
