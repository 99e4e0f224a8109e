"""A virtual file system that writes down what SQLite asks of the disk, and can refuse it.

The files are real; what is written down is the order of writes, truncations, syncs and deletions,
from which :mod:`power_cuts` makes what a disk may hold after a loss of power. One *fault* can be
set: a kind of call, its position among the calls of that kind, an error, and whether it passes.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import apsw

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["KINDS", "Fault", "Killed", "RecordingVfs"]

Event = tuple[Any, ...]

KINDS = ("open", "read", "write", "sync", "truncate", "delete")
"""What can be refused."""

_CODES = {
    "open": apsw.SQLITE_CANTOPEN,
    "read": apsw.SQLITE_IOERR_READ,
    "write": apsw.SQLITE_IOERR_WRITE,
    "sync": apsw.SQLITE_IOERR_FSYNC,
    "truncate": apsw.SQLITE_IOERR_TRUNCATE,
    "delete": apsw.SQLITE_IOERR_DELETE,
}


class Killed(BaseException):
    """The process is to end here, as if it was killed."""


@dataclass
class Fault:
    """Refuse the *position*-th call of a *kind*: once, or from then on (*sticky*).

    *error* is ``EIO`` or ``ENOSPC``; ``KILL`` ends the process in the middle of the call instead.
    """

    kind: str
    position: int
    error: str = "EIO"
    sticky: bool = False
    hit: bool = field(default=False, init=False)


class RecordingVfs(apsw.VFS):
    """Records into ``log``. ``counts`` tells how many calls of each kind there were."""

    def __init__(self, name: str = "recording") -> None:
        self.log: list[Event] = []
        self.counts = dict.fromkeys(KINDS, 0)
        self.fault: Fault | None = None
        self.on_kill: Callable[[], None] = lambda: None
        super().__init__(name, "")

    def check(self, kind: str, name: str) -> None:
        """Count a call and refuse it if it is the one."""
        self.counts[kind] += 1
        fault = self.fault
        if fault is None or fault.kind != kind:
            return
        if fault.hit if fault.sticky else False:
            self._refuse(fault, kind, name)
        if not fault.hit and self.counts[kind] == fault.position:
            fault.hit = True
            self._refuse(fault, kind, name)

    def _refuse(self, fault: Fault, kind: str, name: str) -> None:
        self.log.append(("refused", name, kind, fault.error))
        if fault.error == "KILL":
            self.on_kill()
        no_room = fault.error == "ENOSPC" and kind in ("write", "truncate")
        error: apsw.Error = apsw.FullError("database or disk is full")
        if not no_room:
            kinds = apsw.CantOpenError if kind == "open" else apsw.IOError
            error = kinds("unable to open database file" if kind == "open" else "disk I/O error")
        error.extendedresult = apsw.SQLITE_FULL if no_room else _CODES[kind]  # type: ignore[attr-defined]
        raise error

    def xOpen(self, name: Any, flags: list[int]) -> RecordingFile:  # noqa: N802
        return RecordingFile(self, name, flags)

    def xDelete(self, name: str, sync: bool) -> None:  # noqa: N802
        short = os.path.basename(name)
        self.check("delete", short)
        super().xDelete(name, sync)
        self.log.append(("delete", short, sync))


class RecordingFile(apsw.VFSFile):
    """One open file."""

    def __init__(self, vfs: RecordingVfs, name: Any, flags: list[int]) -> None:
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        self._name = os.path.basename(path) if path else ""
        self._vfs = vfs
        vfs.check("open", self._name)
        existed = path is None or os.path.exists(path)
        super().__init__("", name, flags)
        if self._name:
            vfs.log.append(("open" if existed else "create", self._name))

    def xRead(self, amount: int, offset: int) -> bytes:  # noqa: N802
        self._vfs.check("read", self._name)
        return super().xRead(amount, offset)

    def xWrite(self, data: Any, offset: int) -> None:  # noqa: N802
        self._vfs.check("write", self._name)
        super().xWrite(data, offset)
        if self._name:
            self._vfs.log.append(("write", self._name, offset, bytes(data)))

    def xTruncate(self, size: int) -> None:  # noqa: N802
        self._vfs.check("truncate", self._name)
        super().xTruncate(size)
        if self._name:
            self._vfs.log.append(("truncate", self._name, size))

    def xSync(self, flags: int) -> None:  # noqa: N802
        self._vfs.check("sync", self._name)
        super().xSync(flags)
        if self._name:
            self._vfs.log.append(("sync", self._name))
