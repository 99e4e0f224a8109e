"""A module in the place of ``sqlite3``, for a process that runs a suite."""

from __future__ import annotations

import contextlib
import importlib
import os
import sqlite3
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from conformance.scratch_files import Connect, ScratchFiles

__all__ = ["CONTROL", "OURS", "SIDE", "install", "scratch_files"]

OURS, CONTROL = "hermes_actor.dbapi", "sqlite3"
"""The sides of a run, by the module that is used."""

SIDE = "HERMES_CONFORMANCE_SIDE"
"""The variable that names the side, also for processes that a suite starts."""

_OF_THE_MODULE = {"__name__", "__loader__", "__spec__", "__package__", "__file__", "__cached__"}

_IN_MEMORY = (":memory:", b":memory:")


def install() -> None:
    """Put the module of this side in the place of ``sqlite3``.

    What has imported the standard module before keeps it: the product itself.
    """
    side = os.environ[SIDE]
    module = importlib.import_module(side)
    connect = module.connect if side == OURS else _with_wal(module.connect)
    files = ScratchFiles(Path(tempfile.mkdtemp(prefix="memory-")), connect)
    stand_in = ModuleType("sqlite3", module.__doc__)
    vars(stand_in).update(
        {name: value for name, value in vars(module).items() if name not in _OF_THE_MODULE},
        __path__=sqlite3.__path__,
        connect=_in_files(connect, files),
        dbapi2=stand_in,
        scratch_files=files,
    )
    sys.modules["sqlite3"] = sys.modules["sqlite3.dbapi2"] = stand_in


def scratch_files() -> ScratchFiles:
    """Return the files that stand for databases in memory in this process."""
    files: ScratchFiles = vars(sys.modules["sqlite3"])["scratch_files"]
    return files


def _in_files(connect: Connect, files: ScratchFiles) -> Connect:
    """Return a ``connect()`` that opens a file where a database in memory is asked for."""

    def connect_(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        asked = args[0] if args else kwargs.get("database")
        if not isinstance(asked, str | bytes) or asked not in _IN_MEMORY:
            return connect(*args, **kwargs)
        path = files.take()
        kwargs.pop("database", None)
        conn = connect(path, *args[1:], **kwargs)
        files.lend(path, conn)
        return conn

    connect_.__doc__ = connect.__doc__
    return connect_


def _with_wal(connect: Connect) -> Connect:
    """Return a ``connect()`` whose new files are in WAL mode, as those of an actor are."""

    def connect_(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        asked = args[0] if args else kwargs.get("database")
        conn = connect(*args, **kwargs)
        with contextlib.suppress(OSError, TypeError, ValueError, sqlite3.Error):
            # An odd path, a URI or a factory of its own: the suite is not about the mode then.
            if os.path.getsize(asked) == 0:  # type: ignore[arg-type]
                with contextlib.closing(connect(asked)) as first:
                    first.execute("PRAGMA journal_mode=WAL")
        return conn

    connect_.__doc__ = connect.__doc__
    return connect_
