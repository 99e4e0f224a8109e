"""What can go wrong, one class per situation.

::

    HermesActorError
    ├── OpenError             the store cannot be opened
    │   ├── AlreadyOwned      another process owns the writer (names it)
    │   ├── NotRunning        there is no actor, and none may be started
    │   ├── SpawnFailed       an actor was started and did not come up (tells its last words)
    │   ├── PermissionDenied  this user may not use the store
    │   ├── Unreachable       the database server does not answer
    │   ├── MissingDriver     the provider needs a package that is not installed (names it)
    │   ├── UnknownProvider   nobody offers a store of that name
    │   ├── IncompatibleFormat  the store was made by a newer version
    │   └── IncompatibleProtocol
    ├── StorageError          the file or the disk under it
    │   ├── NotADatabase, Damaged, ReadOnly, DiskFull, DiskIOError, CannotOpen
    │   └── CannotRead        a reader cannot use the file
    ├── RequestError          the change was refused; nothing of it is in the file
    │   ├── ConstraintFailed, SqlError, ValueTooLarge, NotAllowed, BadValue, KeyReused, Unsupported
    │   ├── StateChanged      the content was to be replaced, and is not what it was any more
    │   └── TitleInUse, TopicLinked, UnknownSession, SessionEnded
    ├── Busy                  a foreign program holds SQLite's write lock
    ├── DeadlineExceeded      the caller's timeout ended before the change was taken
    ├── OutcomeUnknown        the one case in which nobody can tell
    ├── IndexBehind           a search could not be complete in time
    ├── ActorBroken           the writer has stopped for good; names the first cause
    ├── CannotMigrate         a store cannot be moved as asked; nothing is lost on either side
    ├── HandoffFailed         an update could not take over; nothing has changed
    ├── BadConfig             a setting cannot be understood (names file, key and what is allowed)
    └── Closed                this object was closed by its owner

Every error says whether the operation was executed. A class that stands for a case where callers
know a built-in or ``sqlite3`` class inherits from it too, and its message begins with SQLite's
words; *words* holds just those.
"""

from __future__ import annotations

import errno
from typing import ClassVar, Literal

from hermes_actor.sqlite import primary_code, sqlite3

__all__ = [
    "ActorBroken",
    "AlreadyOwned",
    "BadConfig",
    "BadValue",
    "Busy",
    "CannotMigrate",
    "CannotOpen",
    "CannotRead",
    "Closed",
    "ConstraintFailed",
    "Damaged",
    "DeadlineExceeded",
    "DiskFull",
    "DiskIOError",
    "Executed",
    "HandoffFailed",
    "HermesActorError",
    "IncompatibleFormat",
    "IncompatibleProtocol",
    "IndexBehind",
    "KeyReused",
    "MissingDriver",
    "NotADatabase",
    "NotAllowed",
    "NotRunning",
    "OpenError",
    "OutcomeUnknown",
    "PermissionDenied",
    "ReadOnly",
    "RequestError",
    "SessionEnded",
    "SpawnFailed",
    "SqlError",
    "StateChanged",
    "StorageError",
    "TitleInUse",
    "TopicLinked",
    "UnknownProvider",
    "UnknownSession",
    "Unreachable",
    "Unsupported",
    "ValueTooLarge",
    "by_code",
    "cannot_use",
    "from_sqlite",
    "is_storage_failure",
    "missing_session",
    "without_origin",
]

Executed = Literal["no", "yes", "unknown"]


class HermesActorError(Exception):
    """Base of everything that this package raises on its own account."""

    code: ClassVar[str] = "error"
    executed: Executed = "no"
    words: str

    def __init__(
        self, message: str, *, words: str | None = None, executed: Executed | None = None
    ) -> None:
        super().__init__(message)
        self.words = message if words is None else words
        if executed is not None:
            self.executed = executed


class OpenError(HermesActorError):
    """The store cannot be opened."""

    code = "open"


class AlreadyOwned(OpenError, sqlite3.OperationalError):
    """Another process owns the writer of this file. You do not get it for a mere reader."""

    code = "owned"
    pid: int | None = None


class NotRunning(OpenError):
    """There is no actor, and this call does not start one."""

    code = "not-running"


class SpawnFailed(OpenError):
    """An actor was started and did not come up. The message ends with its last words."""

    code = "spawn-failed"


class PermissionDenied(OpenError, PermissionError):
    """The store belongs to another user."""

    code = "permission"


class IncompatibleProtocol(OpenError):
    """Client and actor have no protocol in common: one of the two must be updated."""

    code = "protocol"


class IncompatibleFormat(OpenError):
    """The tables of a store are of a newer version than this program knows."""

    code = "format"


class Unreachable(OpenError, sqlite3.OperationalError):
    """The database server does not answer, or ended the connection, for as long as we waited."""

    code = "unreachable"


class MissingDriver(OpenError, ImportError):
    """A provider needs a Python package that is not installed. The message names the extra."""

    code = "missing-driver"


class UnknownProvider(OpenError, ValueError):
    """Nobody offers a store of that name; the message lists those that there are."""

    code = "unknown-provider"


class StorageError(HermesActorError):
    """The file, or the disk under it, does not do what it must."""

    code = "storage"


class NotADatabase(StorageError, sqlite3.DatabaseError):
    """The file exists and is something else. It was left untouched."""

    code = "not-a-database"


class Damaged(StorageError, sqlite3.DatabaseError):
    """SQLite found the file malformed."""

    code = "damaged"


class ReadOnly(StorageError, sqlite3.OperationalError):
    """The file or its folder may not be written."""

    code = "read-only"


class DiskFull(StorageError, sqlite3.OperationalError):
    """No room for the change. Nothing of it is in the file; it works again when there is room."""

    code = "disk-full"


class DiskIOError(StorageError, sqlite3.OperationalError):
    """The operating system refused a read, a write or a sync."""

    code = "io"


class CannotOpen(StorageError, sqlite3.OperationalError):
    """The path cannot be opened as a file: a folder, no rights, no such parent."""

    code = "cannot-open"


class CannotRead(StorageError, sqlite3.OperationalError):
    """A reader cannot use the file, although its owner may."""

    code = "cannot-read"


class RequestError(HermesActorError):
    """The change was refused, for a reason that lies in the change itself."""

    code = "request"


class ConstraintFailed(RequestError, sqlite3.IntegrityError):
    """A rule of the schema forbids the change."""

    code = "constraint"


class SqlError(RequestError, sqlite3.OperationalError):
    """SQLite could not make sense of the statement."""

    code = "sql"


class ValueTooLarge(RequestError, sqlite3.DataError):
    """A value is larger than SQLite stores."""

    code = "too-big"


class NotAllowed(RequestError, sqlite3.DatabaseError):
    """A statement that no client may run: transaction control, attaching, foreign pragmas."""

    code = "not-allowed"


class BadValue(RequestError, sqlite3.ProgrammingError):
    """A value of a type that cannot be stored."""

    code = "bad-value"


class TitleInUse(RequestError, ValueError):
    """Another session has this title."""

    code = "title-in-use"


class TopicLinked(RequestError, ValueError):
    """The session is bound to another topic."""

    code = "topic-linked"


class UnknownSession(RequestError, LookupError):
    """There is no such session."""

    code = "unknown-session"


class KeyReused(RequestError):
    """The number of a request was used for another one before."""

    code = "key-reused"


class Unsupported(RequestError):
    """The other side does not know this operation; one of the two is older."""

    code = "unsupported"


class StateChanged(RequestError):
    """The content has changed since the state that a replacement expects: copy it again."""

    code = "state-changed"


class SessionEnded(RequestError, ValueError):
    """The session has ended for another reason and cannot be continued."""

    code = "session-ended"


class Busy(HermesActorError, sqlite3.OperationalError):
    """A foreign program held SQLite's write lock for longer than the caller's timeout."""

    code = "busy"


class DeadlineExceeded(HermesActorError, TimeoutError):
    """The caller's timeout ended before the change was taken: it was not executed."""

    code = "deadline"


class OutcomeUnknown(HermesActorError):
    """Nobody can tell whether the change is in the file."""

    code = "unknown"
    executed = "unknown"


class IndexBehind(HermesActorError, TimeoutError):
    """The full-text index could not be completed within the deadline of a search."""

    code = "index-behind"

    def __init__(self, message: str, *, done: int = 0, total: int = 0) -> None:
        super().__init__(message)
        self.done = done
        self.total = total


class CannotMigrate(HermesActorError):
    """A store cannot be moved as asked; the source is untouched."""

    code = "cannot-migrate"


class HandoffFailed(HermesActorError):
    """The successor could not take over, or may not. The old actor serves on."""

    code = "handoff-failed"


class BadConfig(HermesActorError, ValueError):
    """A setting, or the file it is in, cannot be understood. Nothing was done with it."""

    code = "config"


class ActorBroken(HermesActorError):
    """The writer has stopped for good. The message names the first cause."""

    code = "broken"


class Closed(HermesActorError, AttributeError):
    """The object was closed before this call."""

    code = "closed"


def _tree(cls: type[HermesActorError]) -> list[type[HermesActorError]]:
    return [cls, *(found for child in cls.__subclasses__() for found in _tree(child))]


by_code: dict[str, type[HermesActorError]] = {cls.code: cls for cls in _tree(HermesActorError)}
"""The closed list of codes and the class that each one becomes."""

_FAULTS: dict[int, tuple[type[HermesActorError], str]] = {
    sqlite3.SQLITE_NOTADB: (NotADatabase, "{path} is not an SQLite database; it was not changed"),
    sqlite3.SQLITE_CORRUPT: (
        Damaged,
        "{path} is damaged; copy it aside, then run: hermes-actor repair",
    ),
    sqlite3.SQLITE_READONLY: (
        ReadOnly,
        "{path}, its -wal or its folder is not writable for this user;"
        " `hermes-actor doctor` names which",
    ),
    sqlite3.SQLITE_FULL: (DiskFull, "no room left for {path}; free some and try again"),
    sqlite3.SQLITE_IOERR: (DiskIOError, "the disk under {path} refused ({name})"),
    sqlite3.SQLITE_CANTOPEN: (CannotOpen, "{path} cannot be opened ({name})"),
    sqlite3.SQLITE_PERM: (CannotOpen, "{path} may not be opened by this user"),
    sqlite3.SQLITE_BUSY: (Busy, "another program is writing {path}"),
    sqlite3.SQLITE_LOCKED: (Busy, "another statement is using {path}"),
    sqlite3.SQLITE_PROTOCOL: (Busy, "locking {path} does not come to an end"),
    sqlite3.SQLITE_CONSTRAINT: (ConstraintFailed, ""),
    sqlite3.SQLITE_MISMATCH: (ConstraintFailed, ""),
    sqlite3.SQLITE_TOOBIG: (ValueTooLarge, ""),
    sqlite3.SQLITE_AUTH: (NotAllowed, "this statement is not open to clients"),
}

_STORAGE = frozenset({
    sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_NOMEM,
})  # fmt: skip


def is_storage_failure(error: BaseException) -> bool:
    """Whether *error* is about the storage and not about one statement."""
    return isinstance(error, StorageError) or primary_code(error) in _STORAGE


def from_sqlite(
    error: sqlite3.Error, path: object = "the database", *, executed: Executed = "no"
) -> HermesActorError:
    """The typed error for an error of SQLite, told apart by its extended result code."""
    words = str(error)
    if isinstance(error, sqlite3.ProgrammingError | sqlite3.InterfaceError):
        return BadValue(words, executed=executed)
    kind, advice = _FAULTS.get(primary_code(error), (SqlError, ""))
    name = getattr(error, "sqlite_errorname", "no code")
    text = f"{words}: {advice.format(path=path, name=name)}" if advice else words
    return kind(text, words=words, executed=executed)


def missing_session(session_id: object, store: object = "this store") -> ConstraintFailed:
    """The error for a change that refers to a session that *store* does not have.

    It begins with SQLite's words, which callers compare, and names the session after them.
    """
    words = "FOREIGN KEY constraint failed"
    return ConstraintFailed(f"{words}: there is no session {session_id!r} in {store}", words=words)


_NOT_WRITABLE = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


def cannot_use(db: object, path: object, error: OSError) -> HermesActorError:
    """The typed error for an operating system that does not let us use *path*, which *db* needs:
    the side folder, or a file in it."""
    read_only = error.errno in _NOT_WRITABLE
    words = "attempt to write a readonly database" if read_only else "unable to open database file"
    kind: type[HermesActorError] = ReadOnly if read_only else CannotOpen
    if error.errno == errno.ENOSPC:
        kind = DiskFull
    return kind(f"{words}: {db} needs {path} ({error.strerror})", words=words)


def without_origin(error: BaseException, length: int = 1000) -> HermesActorError:
    """The same error to tell, not too long, and without the frames that it was raised in.

    *error* loses them too: a frame that raises a local variable is a cycle, which would keep all
    that the frame has worked on until the collector runs.
    """
    chain: list[BaseException | None] = [error]
    while chain:
        link = chain.pop()
        if link is not None and link.__traceback__ is not None:
            link.__traceback__ = None
            chain += (link.__cause__, link.__context__)
    message = str(error)
    if isinstance(error, HermesActorError):
        kind, words = by_code.get(error.code, HermesActorError), error.words
    else:
        wrong_value = isinstance(error, ValueError | TypeError | OverflowError)
        kind = BadValue if wrong_value else HermesActorError
        message = words = f"{type(error).__name__}: {error}"
    told: HermesActorError = kind(message[:length], words=words[:length])
    told.executed = getattr(error, "executed", "no")
    return told
