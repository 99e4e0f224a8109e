"""The errors of this package, one class per situation.

::

    HermesActorError
    ├── OpenError             the store cannot be opened
    │   ├── AlreadyOwned      another process owns the writer (names it)
    │   ├── NotRunning        there is no actor, and none may be started
    │   ├── SpawnFailed       an actor was started and did not come up (shows the end of its log)
    │   ├── PermissionDenied  this user may not use the store
    │   ├── Unreachable       the database server does not answer
    │   ├── MissingDriver     the provider needs a package that is not installed (names it)
    │   ├── UnknownProvider   no provider of that name is installed
    │   ├── WrongKind         the file is of another kind than the caller needs (names both)
    │   ├── IncompatibleFormat  the store was made by a newer version
    │   └── IncompatibleProtocol
    ├── StorageError          the file or the disk under it
    │   ├── NotADatabase, Damaged, ReadOnly, DiskFull, DiskIOError, CannotOpen
    │   └── CannotRead        a reader cannot use the file
    ├── RequestError          the change was refused; nothing of it is in the file
    │   ├── ConstraintFailed, SqlError, ValueTooLarge, NotAllowed, BadValue, KeyReused, Unsupported
    │   ├── StateChanged      the content to be replaced has changed meanwhile
    │   ├── TitleInUse, TopicLinked, UnknownSession, SessionEnded
    │   ├── TurnBusy          another holder has the turn of the conversation (names it)
    │   ├── TurnLost          the turn that the change was made under has ended
    │   ├── TurnRequired      the settings ask for a turn, and the change was made under none
    │   ├── NotFound          a row of an agent store is missing
    │   └── Conflict          another row of an agent store is in the way
    │       ├── KeyReplaced     a value was encrypted with a key that was replaced
    │       └── KeyChanging     … or that is being replaced
    ├── Busy                  a foreign program holds SQLite's write lock
    ├── DeadlineExceeded      the caller's timeout ended before the change was taken
    │   └── LeaseLost         a transaction was rolled back through no fault of its holder
    ├── OutcomeUnknown        the change was sent, and no answer says whether it was made
    ├── IndexBehind           a search could not be complete in time
    ├── ActorBroken           the writer has stopped for good; names the first cause
    ├── CannotMigrate         a store cannot be moved as asked; nothing is lost on either side
    ├── HandoffFailed         an update could not take over; nothing has changed
    ├── AttachFailed          an installed hermes-agent cannot be attached; nothing has changed
    ├── NotConfigured         there is no key for secrets, or not a usable one
    ├── BadConfig             a setting cannot be understood (names file, key and allowed values)
    └── Closed                this object was closed by its owner

Every error says by ``executed`` whether the operation was executed. A class whose situation callers
know by a built-in or ``sqlite3`` class inherits from that class too, and its message begins with
SQLite's own text; ``sqlite_message`` holds that text alone.
"""

from __future__ import annotations

import errno
from typing import ClassVar, Literal

from hermes_actor.sqlite import primary_code, sqlite3

__all__ = [
    "ActorBroken", "AlreadyOwned", "AttachFailed", "BadConfig", "BadValue", "Busy", "CannotMigrate",
    "CannotOpen", "CannotRead", "Closed", "Conflict", "ConstraintFailed", "Damaged",
    "DeadlineExceeded",
    "DiskFull", "DiskIOError", "Executed", "HandoffFailed", "HermesActorError",
    "IncompatibleFormat", "IncompatibleProtocol", "IndexBehind", "KeyChanging", "KeyReplaced",
    "KeyReused",
    "LeaseLost",
    "MissingDriver",
    "NotADatabase", "NotAllowed", "NotConfigured", "NotFound", "NotRunning", "OpenError",
    "OutcomeUnknown",
    "PermissionDenied", "ReadOnly", "RequestError", "SessionEnded", "SpawnFailed", "SqlError",
    "StateChanged", "StorageError", "TitleInUse", "TopicLinked", "TurnBusy", "TurnLost",
    "TurnRequired",
    "UnknownProvider", "UnknownSession", "Unreachable", "Unsupported", "ValueTooLarge",
    "WrongKind", "by_code",
    "cannot_use", "from_sqlite", "is_no_room", "is_storage_failure", "missing_session",
    "without_origin",
    "wrong_kind",
]  # fmt: skip

Executed = Literal["no", "yes", "unknown"]


by_code: dict[str, type[HermesActorError]] = {}
"""Every code of the wire, and the class of its error."""


class HermesActorError(Exception):
    """Base of all errors that this package raises.

    ``executed``: ``"no"``, nothing of the change is in the file and nothing will be; ``"yes"``, it
    is; ``"unknown"``, it may be. ``code`` is its name on the wire. ``sqlite_message`` is the text
    that SQLite has for the situation, without path and advice.
    """

    code: ClassVar[str] = "error"
    executed: Executed = "no"
    sqlite_message: str

    def __init_subclass__(cls, *, code: str = "") -> None:
        if code:
            cls.code = code
            by_code[code] = cls

    def __init__(
        self, message: str, *, sqlite_message: str | None = None, executed: Executed | None = None
    ) -> None:
        super().__init__(message)
        self.sqlite_message = message if sqlite_message is None else sqlite_message
        if executed is not None:
            self.executed = executed


by_code[HermesActorError.code] = HermesActorError


class OpenError(HermesActorError, code="open"):
    """The store cannot be opened. Not for a damaged file: see :class:`StorageError`."""


class AlreadyOwned(OpenError, sqlite3.OperationalError, code="owned"):
    """Another process owns the store and serves no clients: a program in embedded mode.

    ``pid`` names it, if known. Not while an actor owns the store, and not for reads. End that
    program, or have it use the actor.
    """

    pid: int | None = None


class NotRunning(OpenError, code="not-running"):
    """There is no actor, and this call starts none: status, stop, hand-off. Nothing was done."""


class SpawnFailed(OpenError, code="spawn-failed"):
    """An actor was started and did not come up, several times. Nothing was executed.

    The message ends with the last line of its log, or with how it exited.
    """


class PermissionDenied(OpenError, PermissionError, code="permission"):
    """The store belongs to another user. Run the program as that user, or use another store."""


class IncompatibleProtocol(OpenError, code="protocol"):
    """Client and actor have no protocol in common: one of the two must be updated."""


class IncompatibleFormat(OpenError, code="format"):
    """The tables were made by a newer version. Update this program; the store is untouched."""


class WrongKind(OpenError, sqlite3.DatabaseError, code="wrong-kind"):
    """The file holds something else than the caller needs: a plain file has no sessions.

    The message names the file and both kinds. Use another file, or ``connect()``, which takes any.
    """


class Unreachable(OpenError, sqlite3.OperationalError, code="unreachable"):
    """The database server did not answer, or closed every connection, until the timeout ended."""


class MissingDriver(OpenError, ImportError, code="missing-driver"):
    """A provider needs a Python package that is not installed. The message names the extra."""


class UnknownProvider(OpenError, ValueError, code="unknown-provider"):
    """No provider of that name is installed. The message lists those that are."""


class StorageError(HermesActorError, code="storage"):
    """The file, or the disk under it, failed. Not for an error in the change itself."""


class NotADatabase(StorageError, sqlite3.DatabaseError, code="not-a-database"):
    """The file exists and is something else. It was left untouched."""


class Damaged(StorageError, sqlite3.DatabaseError, code="damaged"):
    """SQLite found the file malformed. Copy it aside, then run ``hermes-actor repair``."""


class ReadOnly(StorageError, sqlite3.OperationalError, code="read-only"):
    """The file, its WAL or its folder is not writable. ``hermes-actor doctor`` names which."""


class DiskFull(StorageError, sqlite3.OperationalError, code="disk-full"):
    """No room for the change. Nothing of it is in the file; retry when there is room."""


class DiskIOError(StorageError, sqlite3.OperationalError, code="io"):
    """The operating system refused a read, a write or a sync.

    ``executed`` is ``"unknown"`` if it was the sync of a commit: the change may be in the file.
    """


class CannotOpen(StorageError, sqlite3.OperationalError, code="cannot-open"):
    """The path cannot be opened as a file: a folder, no rights, no such parent."""


class CannotRead(StorageError, sqlite3.OperationalError, code="cannot-read"):
    """A reader of this process cannot use the file, although its owner may."""


class RequestError(HermesActorError, code="request"):
    """The change was refused for a reason in the change itself. A retry fails again."""


class ConstraintFailed(RequestError, sqlite3.IntegrityError, code="constraint"):
    """A rule of the schema forbids the change."""


class SqlError(RequestError, sqlite3.OperationalError, code="sql"):
    """SQLite refused the statement: syntax, an unknown table, or interrupted by its limits."""


class ValueTooLarge(RequestError, sqlite3.DataError, code="too-big"):
    """A value is larger than SQLite stores, or an operation larger than an actor takes."""


class NotAllowed(RequestError, sqlite3.DatabaseError, code="not-allowed"):
    """A statement that no client may run (transaction control, ATTACH, most pragmas), or a call
    that would wait for the transaction of its own thread."""


class BadValue(RequestError, sqlite3.ProgrammingError, code="bad-value"):
    """A value of a type that cannot be stored."""


class TitleInUse(RequestError, ValueError, code="title-in-use"):
    """Another session has this title."""


class TopicLinked(RequestError, ValueError, code="topic-linked"):
    """The session is bound to another topic."""


class UnknownSession(RequestError, LookupError, code="unknown-session"):
    """No session has this id."""


class KeyReused(RequestError, code="key-reused"):
    """The number of this request was used for another one. A fault of a client, not of data."""


class Unsupported(RequestError, code="unsupported"):
    """The other side does not know this operation; one of the two is older."""


class StateChanged(RequestError, code="state-changed"):
    """The content has changed since the state that a replacement expects: copy it again."""


class SessionEnded(RequestError, ValueError, code="session-ended"):
    """The session has ended for another reason and cannot be continued."""


class TurnBusy(RequestError, code="turn-busy"):
    """Another thread or process has the turn of this conversation; the message names it.

    Nothing was written. Wait for it with ``wait``, or leave the message to that process.
    """


class TurnLost(RequestError, code="turn-lost"):
    """The turn under which the change was made has ended, so nothing was written.

    Its time was over, or an operator has ended it. Another process may have answered meanwhile:
    read the conversation again before taking another turn.
    """


class TurnRequired(RequestError, code="turn-required"):
    """The settings let no program write this conversation without a turn: nothing was written.

    Take one with :meth:`SessionDB.turn`, and pass it to the call. ``turns.required`` asks for it.
    """


class NotFound(RequestError, LookupError, code="not-found"):
    """An agent store has no such row in this scope. The message names it."""


class Conflict(RequestError, code="conflict"):
    """Another row has what must be unique, or the row is not as the change expects."""


class KeyReplaced(Conflict, code="key-replaced"):
    """A value was encrypted with a key that ``secrets rekey`` has replaced; nothing was changed.

    Not for a process whose key is in the key file: it takes the new one. Load the new key.
    """


class KeyChanging(Conflict, code="key-changing"):
    """``secrets rekey`` is replacing the key that a value was encrypted with; nothing was changed.

    An ``AgentStore`` waits for its end by itself.
    """


class Busy(HermesActorError, sqlite3.OperationalError, code="busy"):
    """A foreign program held SQLite's write lock for longer than the caller's timeout.

    The message names the process if it can be found. Never for another client of the actor: their
    changes wait for each other. Nothing was executed; retry, or end that program.
    """


class DeadlineExceeded(HermesActorError, TimeoutError, code="deadline"):
    """The timeout ended before the actor began with the change: it was not executed and never will
    be. Not when the change had begun: that is its result, or :class:`OutcomeUnknown`.

    The message names the time waited and the process that did not answer. Retry at will.
    """


class LeaseLost(DeadlineExceeded, code="lease-lost"):
    """An interactive transaction was rolled back because its connection was lost, or because the
    actor ends or hands over. Not for one that broke a limit of its own.

    Nothing of it was executed: the same statements can be run again in another one.
    """


class OutcomeUnknown(HermesActorError, code="unknown"):
    """The change was sent and no answer came: it may have been made, or be made yet.

    The only error with this outcome besides a failed sync. Not for a lost connection alone: the
    request is sent again, and its receipt answers. Read the store before a retry.
    """

    executed = "unknown"


class IndexBehind(HermesActorError, TimeoutError, code="index-behind"):
    """The full-text indexes could not be brought up to date within the timeout of a search.

    ``done`` of ``total`` messages were indexed; the work continues, so a retry gets further.
    """

    def __init__(self, message: str, *, done: int = 0, total: int = 0) -> None:
        super().__init__(message)
        self.done = done
        self.total = total


class CannotMigrate(HermesActorError, code="cannot-migrate"):
    """A store cannot be moved as requested; the source is untouched."""


class HandoffFailed(HermesActorError, code="handoff-failed"):
    """The successor could not take over, or may not. The old actor continues to serve."""


class AttachFailed(HermesActorError, code="attach-failed"):
    """An installed hermes-agent cannot be attached, or detached. What had been done was undone."""


class NotConfigured(HermesActorError, code="not-configured"):
    """Secrets need a key, and there is none, or not a usable one. Nothing was done.

    ``hermes-actor agents setup`` makes one.
    """


class BadConfig(HermesActorError, ValueError, code="config"):
    """A setting, or the file it is in, cannot be understood. Nothing was done with it."""


class ActorBroken(HermesActorError, code="broken"):
    """The writer has stopped for good; the message names the first cause.

    Whatever was acknowledged is in the file. A restart of the actor, or of a program in embedded
    mode, recovers the rest.
    """


class Closed(HermesActorError, AttributeError, code="closed"):
    """The object was closed by its owner, before this call or during it."""


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
    """Return True if *error* is about the storage and not about one statement."""
    return isinstance(error, StorageError) or primary_code(error) in _STORAGE


def from_sqlite(
    error: sqlite3.Error, path: object = "the database", *, executed: Executed = "no"
) -> HermesActorError:
    """Return the typed error for an error of SQLite, by its primary result code."""
    words = str(error)
    if isinstance(error, sqlite3.ProgrammingError | sqlite3.InterfaceError):
        return BadValue(words, executed=executed)
    kind, advice = _FAULTS.get(primary_code(error), (SqlError, ""))
    if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_IOERR_SHMSIZE:
        # The shared memory cannot grow. As an I/O error it would send people to look for a broken
        # disk, and to restore a file that is whole.
        kind, advice = _FAULTS[sqlite3.SQLITE_FULL]
    name = getattr(error, "sqlite_errorname", "no code")
    text = f"{words}: {advice.format(path=path, name=name)}" if advice else words
    return kind(text, sqlite_message=words, executed=executed)


def missing_session(session_id: object, store: object = "this store") -> ConstraintFailed:
    """Return the error for a change that refers to a session that *store* does not have.

    Its text begins with SQLite's, which callers compare, and names the session after it.
    """
    words = "FOREIGN KEY constraint failed"
    return ConstraintFailed(
        f"{words}: there is no session {session_id!r} in {store}", sqlite_message=words
    )


def wrong_kind(db: object, found: str, wanted: str) -> WrongKind:
    """Return the error for *db*, whose kind is *found*, of a caller that needs *wanted*."""
    return WrongKind(
        f"{db} is a file of kind {found!r}, and {wanted!r} is needed: name another file, or use"
        f" hermes_actor.connect(), which takes any kind"
    )


_NOT_WRITABLE = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


def is_no_room(error: OSError) -> bool:
    """Return True if *error* says that the disk is full, or what its user may have of it."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def cannot_use(db: object, path: object, error: OSError) -> HermesActorError:
    """Return the typed error for an ``OSError`` about *path*: the side folder of *db*, or a file
    in it."""
    read_only = error.errno in _NOT_WRITABLE
    words = "attempt to write a readonly database" if read_only else "unable to open database file"
    kind: type[HermesActorError] = ReadOnly if read_only else CannotOpen
    if is_no_room(error):
        kind = DiskFull
    return kind(f"{words}: {db} needs {path} ({error.strerror})", sqlite_message=words)


def without_origin(error: BaseException, length: int = 1000) -> HermesActorError:
    """Return a copy of *error* for a reply: not too long, and without the frames it was raised in.

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
        kind, words = by_code.get(error.code, HermesActorError), error.sqlite_message
    else:
        wrong_value = isinstance(error, ValueError | TypeError | OverflowError)
        kind = BadValue if wrong_value else HermesActorError
        message = words = f"{type(error).__name__}: {error}"
    copy: HermesActorError = kind(message[:length], sqlite_message=words[:length])
    copy.executed = getattr(error, "executed", "no")
    return copy
