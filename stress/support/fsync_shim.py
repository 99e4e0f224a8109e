"""Syncs that fail, for a process that asks for it: used inside an actor that the tests run.

The kernel itself refuses, by a filter for system calls, which needs no privileges. So the whole
way is real, from SQLite's fdatasync up. Where filters are forbidden, COMMIT fails in their stead.
"""

import ctypes
import errno
import importlib
import os
import platform
import sqlite3
import struct
from pathlib import Path
from typing import Any

_CALLS = {"x86_64": (0xC000003E, 74, 75), "aarch64": (0xC00000B7, 82, 83)}
"""The architecture as the kernel names it, and its numbers of fsync and fdatasync."""

_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_SET_SECCOMP, _FILTER, _NO_NEW_PRIVILEGES = 22, 2, 38


def forbid_syncs() -> bool:
    """From now on every sync of this thread fails with EIO. False if the kernel declines."""
    if platform.machine() not in _CALLS:
        return False
    architecture, fsync, fdatasync = _CALLS[platform.machine()]
    program = b"".join(
        struct.pack("HBBI", *step)
        for step in (
            (_LOAD, 0, 0, 4),
            (_JUMP_IF_EQUAL, 0, 3, architecture),
            (_LOAD, 0, 0, 0),
            (_JUMP_IF_EQUAL, 2, 0, fsync),
            (_JUMP_IF_EQUAL, 1, 0, fdatasync),
            (_RETURN, 0, 0, _ALLOW),
            (_RETURN, 0, 0, _ERRNO | errno.EIO),
        )
    )
    steps = ctypes.create_string_buffer(program, len(program))
    filter_ = ctypes.create_string_buffer(
        struct.pack("HP", len(program) // 8, ctypes.addressof(steps))
    )
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    if prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) != 0:
        return False
    return bool(prctl(_SET_SECCOMP, _FILTER, ctypes.byref(filter_), 0, 0) == 0)


def _failing(connection: sqlite3.Connection, statement: str, times: float) -> Any:
    """A connection on which a statement fails so often, in the words of SQLite."""

    class Failing:
        left = times

        def execute(self, sql: str, *args: Any) -> sqlite3.Cursor:
            if self.left > 0 and sql.startswith(statement):
                self.left -= 1
                error = sqlite3.OperationalError("disk I/O error")
                error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
                error.sqlite_errorname = "SQLITE_IOERR_FSYNC"
                raise error
            return connection.execute(sql, *args)

        def __getattr__(self, name: str) -> Any:
            return getattr(connection, name)

    return Failing()


def fail_on_order(sign: Path, moment: str, once: str = "") -> None:
    """In the actor that this process will be: when *sign* is there, syncs fail from *moment* on.

    *moment* is the name of a failpoint. A connection that is closed after that leaves the file
    ``closed`` beside the sign. With *once*, only the next statement that begins so fails:
    filters cannot be taken back.
    """
    from hermes_actor.engine import connection
    from hermes_actor.sqlite import Connection

    writer: Any = importlib.import_module("hermes_actor.engine.writer")
    plain_seams, plain_init = writer.Environment, connection.WriteConnection.__init__
    plain_close = Connection.close
    connections: list[Any] = []

    def failpoint(name: str) -> None:
        if name == moment and sign.exists():
            sign.unlink()
            Connection.close = close  # type: ignore[method-assign]
            connection = connections[-1]
            if once:
                connection.conn = _failing(connection.conn, once, 1)
            elif not forbid_syncs():
                connection.conn = _failing(connection.conn, "COMMIT", float("inf"))

    def close(self: Connection) -> None:
        sign.with_name("closed").touch()
        plain_close(self)

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        connections.append(self)
        plain_init(self, *args, **kwargs)

    connection.WriteConnection.__init__ = init  # type: ignore[method-assign]
    writer.Environment = lambda: plain_seams(failpoint=failpoint)


def sign_for(path: Path) -> Path:
    """The file whose presence makes the actor of *path* fail."""
    return path.with_name("fail now")


def prelude(path: Path, moment: str = "commit.before", once: str = "") -> str:
    """What such an actor runs first."""
    return (
        "from pathlib import Path\nfrom support.fsync_shim import fail_on_order\n"
        f"fail_on_order(Path({os.fspath(sign_for(path))!r}), {moment!r}, {once!r})\n"
    )
