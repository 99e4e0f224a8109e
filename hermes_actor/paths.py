"""Paths of a store: the home, the database, and the side files that belong to it."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import NamedTuple

from hermes_actor.errors import CannotOpen, PermissionDenied

__all__ = [
    "StorePaths", "attach_record", "check_not_hijacked", "check_ownership", "columns_of_orphan",
    "default_db_path", "default_home", "is_gone", "prepared_folder", "readable", "resolve_paths",
    "state_folder", "stores_below",
]  # fmt: skip


def default_home() -> Path:
    """``HERMES_HOME`` if it is set and not blank, else ``~/.hermes``."""
    home = os.environ.get("HERMES_HOME", "").strip()
    return Path(home) if home else Path.home() / ".hermes"


def default_db_path() -> Path:
    """The database that every process of one agent shares."""
    return default_home() / "state.db"


def state_folder() -> Path:
    """The folder for what this user keeps beside all homes, below ``XDG_STATE_HOME``."""
    state = os.environ.get("XDG_STATE_HOME", "").strip()
    base = Path(state) if state else Path.home() / ".local" / "state"
    return base / "hermes-actor"


def attach_record(home: Path) -> Path:
    """The file that says that programs of *home* were attached, if they were."""
    # Late: loading it takes 3 ms, a tenth of the import of a client, which needs no record.
    from hashlib import blake2b

    digest = blake2b(os.fsencode(home), digest_size=8).hexdigest()
    return state_folder() / "attached" / f"{digest}.json"


class StorePaths(NamedTuple):
    """A database file and the folder of side files that derives from its resolved path.

    Two spellings of one path meet at one place; two files in one folder have two.
    """

    db: Path

    @property
    def wal(self) -> Path:
        return self.db.with_name(self.db.name + "-wal")

    @property
    def shm(self) -> Path:
        return self.db.with_name(self.db.name + "-shm")

    @property
    def files(self) -> tuple[Path, Path, Path, Path]:
        """The database and what SQLite keeps beside it."""
        return (self.db, self.wal, self.shm, self.db.with_name(self.db.name + "-journal"))

    @property
    def folder(self) -> Path:
        """Mode 0700, created by the first owner."""
        return self.db.with_name(f".{self.db.name}.actor")

    @property
    def owner_lock(self) -> Path:
        """The process that holds its ``flock`` owns the database. Never unlinked."""
        return self.folder / "owner.lock"

    @property
    def address(self) -> Path:
        """Record of where the socket of the owner is; see :mod:`hermes_actor.system.sockets`."""
        return self.folder / "address"

    @property
    def sock(self) -> Path:
        """The socket of an owner of an earlier build, and of one that was asked for it."""
        return self.folder / "sock"

    @property
    def sock_wanted(self) -> Path:
        """Left by a client that does not reach the owner at its address."""
        return self.folder / "sock-wanted"

    @property
    def start_lock(self) -> Path:
        """Held by the one client that is starting an actor."""
        return self.folder / "start.lock"

    @property
    def log(self) -> Path:
        return self.folder / "log"

    @property
    def fsync_failed(self) -> Path:
        """Left behind by an owner that saw an fsync fail; the next one then opens with care."""
        return self.folder / "fsync-failed"


def prepared_folder(given: Path | str) -> Path:
    """Return the path of the database *given*, whose folder exists after this.

    The folder of a ``Path`` is created. A text may be mistyped, and what makes its folder would
    answer a wrong path with an empty store: :class:`CannotOpen` names the missing folder, as
    ``sqlite3.connect`` has none either.
    """
    path = Path(given)
    if not isinstance(given, str):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    elif is_gone(path.parent):
        words = "unable to open database file"
        raise CannotOpen(
            f"{words}: there is no folder {path.absolute().parent} for {path.name}; create it"
            f" first, or name another file",
            sqlite_message=words,
        )
    return path


def resolve_paths(db_path: Path) -> StorePaths:
    """The place of *db_path* with every symbolic link resolved."""
    return StorePaths(db_path.resolve())


def stores_below(home: Path) -> list[StorePaths]:
    """Return the stores of *home* and of every folder below it, by their paths.

    A store is a database with a side folder: one that has, or had, an owner.
    """
    found = set()
    # Links are not followed: another home may be behind one.
    for folder, subfolders, files in os.walk(home):
        for name in files:
            if f".{name}.actor" in subfolders:
                found.add(resolve_paths(Path(folder, name)))
        subfolders[:] = [name for name in subfolders if not name.endswith(".actor")]
    return sorted(found)


def readable(text: object) -> str:
    r"""*text* as UTF-8 can carry it: a byte of a path that is no UTF-8 becomes ``\udcff``.

    Python keeps such bytes in a ``str`` that no encoder takes.
    """
    return str(text).encode("utf-8", "backslashreplace").decode()


def is_gone(path: Path) -> bool:
    """Return True if nothing is at *path*. EACCES, EIO and ESTALE do not prove that."""
    try:
        path.stat()
    except OSError as error:
        return isinstance(error, FileNotFoundError | NotADirectoryError)
    return False


def check_not_hijacked(paths: StorePaths) -> None:
    """Refuse a store that another user could have prepared. Raises :class:`PermissionDenied`.

    The path was resolved, so a symbolic link in it has been put there since. The folder of the
    side files must be a real folder that no other user can change: its socket and its locks are
    believed. A pipe or a device in the place of the database would hold up who opens it: that is a
    :class:`CannotOpen`.
    """
    with contextlib.suppress(OSError):
        mode = paths.db.lstat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)):
            words = "unable to open database file"
            raise CannotOpen(f"{words}: {paths.db} is a pipe or a device", sqlite_message=words)
    try:
        for path in (paths.db, *paths.db.parents, paths.folder):
            if path.is_symlink():
                raise PermissionDenied(f"{path} has become a symbolic link; it is not followed")
        found = paths.folder.lstat()
    except FileNotFoundError:
        return
    except PermissionError as error:
        if isinstance(error, PermissionDenied):
            raise
        raise PermissionDenied(f"{paths.folder} is closed to uid {os.getuid()}") from error
    if not stat.S_ISDIR(found.st_mode):
        raise PermissionDenied(f"{paths.folder} is not a folder; remove it")
    if os.getuid() not in (found.st_uid, 0):
        raise PermissionDenied(f"{paths.folder} belongs to uid {found.st_uid}, not {os.getuid()}")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionDenied(
            f"{paths.folder} can be changed by others; make it private: chmod 700 {paths.folder}"
        )


def check_ownership(paths: StorePaths) -> None:
    """Refuse to own a store in the folder of another user; root may connect there, not serve.

    Raises :class:`PermissionDenied`.
    """
    for path in (paths.db.parent, paths.folder):
        try:
            owner = path.stat().st_uid
        except FileNotFoundError:
            continue
        except PermissionError as error:
            raise PermissionDenied(f"{path} is closed to uid {os.getuid()}") from error
        if owner != os.getuid():
            raise PermissionDenied(
                f"{path} belongs to uid {owner}: only that user may start its actor,"
                f" not uid {os.getuid()}"
            )


def columns_of_orphan(log: Path) -> Path:
    """Beside a saved WAL: in which order the columns of its tables stand."""
    return log.with_name(log.name.replace(".orphan-wal.", ".orphan-columns."))
