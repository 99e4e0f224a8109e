"""Stores of the released agent program, unmodified, with ``sqlite3`` or with what replaces it.

Run in processes of its own: ``python -m conformance.agent_programs MODULE use HOME`` makes a
scripted use of three stores and prints what it saw; ``... MODULE work FILE NAME TASKS`` takes tasks
of a kanban board from creation to completion and prints how many, and every error. *MODULE* is
``sqlite3`` or ``hermes_actor.dbapi``. The program is run, never read.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import sqlite3
import sys
import time
from pathlib import Path
from typing import Any

__all__ = ["AGENT", "environment"]

ROOT = Path(__file__).resolve().parents[2]

AGENT = ROOT / ".venv" / "agent"
"""The program, without its dependencies. ``make`` puts it there."""

_ROLLED_BACK = ("database is locked", "cannot commit - no transaction is active")
"""Words of errors after which nothing of a transaction may be there. The second ones follow if the
program has caught the first by itself."""

_MOST_TRIES = 50
"""Of one step. Its transaction is lost with its actor, and what it has read changes meanwhile."""

_ID = re.compile(r"\b(?:[tp]_[0-9a-f]{8}|[0-9a-f]{32})\b")
_TIME = re.compile(r"\b\d{4}-\d\d-\d\dT[\d:.+]+|\b1[789]\d{8}(?:\.\d+)?\b")


def environment(home: Path) -> dict[str, str]:
    """Return the variables of a process that runs the program with *home*."""
    paths = (ROOT / "stress", ROOT, ROOT / "protocol", AGENT)
    return {
        **os.environ,
        "HERMES_HOME": str(home),
        # Last: the program has top-level packages with plain names.
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
    }


def _load(name: str, module: str) -> Any:
    """Import *name* of the program and have it use *module* in the place of ``sqlite3``."""
    loaded = importlib.import_module(name)
    loaded.sqlite3 = importlib.import_module(module)  # type: ignore[attr-defined]
    return loaded


def use(module: str, home: Path) -> list[Any]:
    """Use what the stores offer; return every answer, and all rows in the end."""
    seen: list[Any] = [*_kanban(module, home), *_projects(module, home), *_executions(module)]
    return _without_chance(seen)


def _kanban(module: str, home: Path) -> list[Any]:
    board = _load("hermes_cli.kanban_db", module)
    conn = board.connect(home / "kanban.db")
    parent = board.create_task(conn, title="one", body="text", assignee="worker")
    child = board.create_task(conn, title="two", assignee="worker")
    seen = [
        board.link_tasks(conn, parent, child),
        board.claim_task(conn, child, claimer="me"),
        board.claim_task(conn, parent, claimer="me"),
        board.claim_task(conn, parent, claimer="you"),
        board.add_comment(conn, parent, "me", "a comment"),
        board.heartbeat_claim(conn, parent, claimer="me"),
        board.complete_task(conn, parent, result="done", summary="short"),
        board.recompute_ready(conn),
        board.block_task(conn, child, reason="why"),
        board.unblock_task(conn, child),
        board.assign_task(conn, child, "another"),
        board.add_notify_sub(conn, task_id=child, platform="p", chat_id="c"),
        board.unseen_events_for_sub(conn, task_id=child, platform="p", chat_id="c"),
        board.list_events(conn, parent),
        board.list_runs(conn, parent),
        board.list_comments(conn, parent),
        board.parent_results(conn, child),
        board.archive_task(conn, child),
        board.list_tasks(conn, include_archived=True),
        _rows(conn),
    ]
    conn.close()
    return seen


def _projects(module: str, home: Path) -> list[Any]:
    projects = _load("hermes_cli.projects_db", module)
    conn = projects.connect(home / "projects.db")
    one = projects.create_project(conn, name="One", folders=["/nowhere/x"])
    seen = [
        projects.update_project(conn, one, description="text"),
        projects.add_folder(conn, one, "/nowhere/y"),
        projects.set_primary(conn, one, "/nowhere/y"),
        projects.remove_folder(conn, one, "/nowhere/x"),
        projects.set_active(conn, one),
        projects.get_active_id(conn),
        projects.record_discovered_repos(conn, [("/nowhere/r", "r")]),
        projects.list_discovered_repos(conn),
        projects.archive_project(conn, one),
        projects.restore_project(conn, one),
        projects.project_for_path(conn, "/nowhere/y/deep"),
        projects.list_projects(conn),
        _rows(conn),
    ]
    conn.close()
    return seen


def _executions(module: str) -> list[Any]:
    executions = _load("cron.executions", module)
    one = executions.create_execution("job", source="manual")["id"]
    two = executions.create_execution("job", source="cron")["id"]
    return [
        executions.mark_execution_running(one),
        executions.finish_execution(one, success=True),
        executions.finish_execution(two, success=False, error="why"),
        executions.latest_executions(["job"]),
        executions.recover_interrupted_executions(),
        executions.list_executions(job_id="job"),
    ]


def _rows(conn: Any) -> dict[str, list[list[Any]]]:
    names = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'hermes_actor_%'"
    return {
        name: [list(row) for row in conn.execute(f'SELECT * FROM "{name}"')]
        for (name,) in conn.execute(names + " ORDER BY name").fetchall()
    }


def _without_chance(seen: list[Any]) -> list[Any]:
    """Replace ids by their order, and leave out times and the number of the process."""
    text = json.dumps(seen, default=lambda value: getattr(value, "__dict__", repr(value)))
    for number, found in enumerate(dict.fromkeys(_ID.findall(text))):
        text = text.replace(found, f"id-{number}")
    text = _TIME.sub("TIME", text.replace(f'"pid": {os.getpid()}', '"pid": 0'))
    # A time is a number of JSON, or a part of a text.
    result: list[Any] = json.loads(re.sub(r"(?<=[\[ ])TIME", "0", text))
    return result


def work(module: str, path: Path, name: str, tasks: int) -> dict[str, Any]:
    """Take so many tasks of the board in *path* from creation to completion."""
    board = _load("hermes_cli.kanban_db", module)
    done: list[str] = []
    errors: list[str] = []
    counts = {"retries": 0, "own checks": 0}

    def make(step: Any) -> Any:
        """Make *step*, again if it was rolled back: then nothing of it may be there."""
        for _ in range(_MOST_TRIES):
            made = False
            try:
                with contextlib.closing(board.connect(path)) as conn:
                    made = True
                    return step(conn)
            except sqlite3.OperationalError as error:
                if not str(error).startswith(_ROLLED_BACK):
                    raise
                counts["retries"] += 1
            except sqlite3.DatabaseError as error:
                # The program compares the header of the file with its size, before its statements
                # and after its commits, and takes half a checkpoint for damage.
                if not str(error).startswith("torn-extend"):
                    raise
                counts["own checks"] += 1
                if made:
                    return None
                time.sleep(0.1)
        raise TimeoutError(f"rolled back {_MOST_TRIES} times")

    for number in range(tasks):
        title = f"{name} {number}"
        try:
            make(lambda conn: board.create_task(conn, title=title, assignee=name))  # noqa: B023
            (task,) = make(lambda conn: _named(conn, title))  # noqa: B023
            make(lambda conn: board.claim_task(conn, task, claimer=name))  # noqa: B023
            make(lambda conn: board.add_comment(conn, task, name, "a comment"))  # noqa: B023
            make(lambda conn: board.complete_task(conn, task, result="done"))  # noqa: B023
            done.append(task)
        except Exception as error:
            errors.append(f"{title}: {type(error).__name__}: {error}")
    return {"done": done, "errors": errors, "counts": counts}


def _named(conn: Any, title: str) -> list[str]:
    return [task for (task,) in conn.execute("SELECT id FROM tasks WHERE title = ?", (title,))]


def main() -> int:
    module, what, path, *more = sys.argv[1:]
    said: Any = use(module, Path(path)) if what == "use" else None
    if what == "work":
        said = work(module, Path(path), more[0], int(more[1]))
    print(json.dumps(said))
    return 0


if __name__ == "__main__":
    sys.exit(main())
