"""The messages between a client and an actor: one tagged map a frame.

A conversation begins with :class:`Hello` and its answer. After that the client sends requests,
each with the next number of its own sequence, and the actor answers each one exactly once. See
``protocol/README.md`` for the rules in full.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Raw, Struct, field

from hermes_protocol.operations import Settings

__all__ = [
    "MAGIC",
    "NIL",
    "PROTOCOL",
    "Bye",
    "CatchUp",
    "Changed",
    "ClientMessage",
    "Done",
    "Drain",
    "Executed",
    "Failed",
    "Gap",
    "GoAway",
    "Handoff",
    "Hello",
    "Interrupt",
    "LeaseCommit",
    "LeaseOpen",
    "LeaseRollback",
    "LeaseRun",
    "Limits",
    "Maintain",
    "Ok",
    "Reject",
    "Request",
    "ServerMessage",
    "StatusRequest",
    "StatusReply",
    "Subscribe",
    "Welcome",
]

MAGIC = "hermes-actor"
PROTOCOL = 1
"""The protocol major that this package speaks."""

Executed = Literal["no", "yes", "unknown"]

NIL = Raw(b"\xc0")
"""No value, encoded."""

Seq: TypeAlias = Annotated[int, Meta(ge=1, le=2**63 - 1)]
"""The number of a request of one client."""

MessageId: TypeAlias = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
"""The id of a stored message: what an INTEGER column can hold."""


class _Message(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="t", tag="?"):
    pass


# --- opening ---------------------------------------------------------------------------------


class Hello(_Message, frozen=True, kw_only=True, omit_defaults=False, tag="hello"):
    """The first frame of a client. Its shape never changes.

    A known ``client_id`` supersedes that client's older connection.
    """

    magic: str = MAGIC
    oldest: int = PROTOCOL
    newest: int = PROTOCOL
    features: list[str] = []
    client_id: bytes = b""
    name: str = ""
    pid: int = 0
    build: str = ""


class Limits(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Limits that the actor asks its clients to keep to."""

    window: int = 64
    """Requests that may be unanswered at one time."""
    frame_bytes: int = 2 * 1024 * 1024
    """Largest frame; larger operations travel as staged parts."""
    lease_seconds: float = 1.0
    """Longest interactive transaction."""
    lease_idle_seconds: float = 0.2
    """Longest pause between two of its statements."""


class Welcome(_Message, frozen=True, kw_only=True, tag="welcome"):
    """The actor takes the client, in the named phase; requests may be sent at once.

    Unless ``ready`` is false: then the file is being opened or closed, and the numbers are empty.
    Another Welcome, a Reject, or a GoAway follows on the same connection. Status may be asked
    meanwhile; what needs the file waits, here or at the next actor.
    """

    protocol: int
    phase: str
    epoch: int
    file_id: bytes
    limits: Limits
    durability: str
    schema_version: int
    build: str
    pid: int
    features: list[str] = []
    commit_no: int = 0
    ready: bool = True


class Reject(_Message, frozen=True, kw_only=True, tag="reject"):
    """The actor does not take the client; the connection ends."""

    code: str
    message: str
    # What is not sent means 1 for ever, and not whatever its reader speaks.
    oldest: int = 1
    newest: int = 1
    words: str | None = None


# --- requests --------------------------------------------------------------------------------


class Request(_Message, frozen=True, kw_only=True, tag="request"):
    """One operation.

    ``seq`` counts from 1 without gaps. ``after`` is the highest ``commit_no`` that the client knew
    when it first sent this seq. ``acked_through``: the client has the answers up to this seq, so
    their receipts may go. ``timeout`` is in seconds, from the arrival of the frame.
    """

    seq: Seq
    operation: Raw
    after: int = 0
    acked_through: int = 0
    timeout: float | None = field(default=None, name="patience")


class Ok(_Message, frozen=True, kw_only=True, tag="ok"):
    """The operation is committed and synced, at this place in the order of all changes."""

    seq: int
    commit_no: int
    result: Raw = NIL


class Failed(_Message, frozen=True, kw_only=True, tag="failed"):
    """The operation was refused. ``executed`` says what is known about its effect.

    ``done`` of ``total`` is how far the index was, for ``index-behind``.
    """

    seq: int
    code: str
    message: str
    executed: Executed = "no"
    words: str | None = None
    done: int = 0
    total: int = 0


class Bye(_Message, frozen=True, kw_only=True, tag="bye"):
    """The client has all its answers and will not come back under this id."""


class GoAway(_Message, frozen=True, kw_only=True, tag="goaway"):
    """The actor takes no more on this connection.

    Requests above ``last_seq`` were not executed here; connect again and send everything that has
    no answer, in order, with the same seqs.
    """

    last_seq: int
    reason: str


# --- asking ----------------------------------------------------------------------------------
# Answered by ``Done`` or ``Failed``. An ask counts down from -1, so that it is never a seq.


class CatchUp(_Message, frozen=True, kw_only=True, tag="catch-up"):
    """Bring both full-text indexes up to a message id.

    ``damaged``: a reader has found an index damaged, on a connection of its own, while the schema
    had this number (``PRAGMA schema_version``). Both are rebuilt, unless the schema has changed
    since. ``verify``: earlier readers leave it to the actor to find out; it only looks whether a
    table or a trigger is missing or cannot be used, because writers wait meanwhile.
    """

    ask: int
    through: MessageId
    timeout: float | None = field(default=None, name="patience")
    verify: bool = False
    damaged: int | None = None


class Maintain(_Message, frozen=True, kw_only=True, tag="maintain"):
    """Ask for a piece of maintenance, after everything that this client has sent before.

    ``state`` names the present state of the content, for ``expected``. ``hold`` does so and keeps
    all other changes waiting, until this connection ends or is silent for too long. ``replace``
    replaces the content of the file by that of ``path``, a store inside the folder of the side
    files, which the actor writes its own notes into; if the content is no longer in the state
    ``expected``, it is refused with ``state-changed``. ``restore`` does the same whatever the state
    is. ``rebuild-index`` rebuilds both full-text indexes, beginning empty; they fill between
    changes. ``reindex`` rebuilds the other indexes. Another task is answered with ``unsupported``.

    A task does not begin after the connection has ended, nor after ``timeout``.
    """

    ask: int
    task: str
    path: str = ""
    timeout: float | None = field(default=None, name="patience")
    expected: str = ""


class LeaseOpen(_Message, frozen=True, kw_only=True, tag="lease.open"):
    """Begin an interactive transaction; at most one exists, and its limits are short.

    The number of its commit is taken before the lease is opened, so that requests that are sent
    meanwhile come after it; it also names the lease.

    ``first`` is a ``sql.run`` that runs as soon as the lease is granted; its reply is the answer.
    If it is refused, the lease has ended. ``settings`` are those of the connection: see
    ``sql.run``; without them it runs under those of the actor. ``seconds`` asks for a long lease:
    it may take so long in all, and pause as long, or for ``pause``. With ``pause`` it is a
    migration, which every kind of file grants.
    """

    ask: int
    lease: int
    timeout: float | None = field(default=None, name="patience")
    settings: Settings | None = None
    seconds: float | None = None
    pause: float | None = None
    first: Raw = NIL


class LeaseRun(_Message, frozen=True, kw_only=True, tag="lease.run"):
    """Run a ``sql.statement`` or a ``sql.run`` inside a lease of this connection.

    One that is too large for a frame comes as its ``stage.part`` operations, in their order, and a
    ``stage.apply``, each in a message of its own and answered before the next is sent.
    """

    ask: int
    lease: int
    statement: Raw


class LeaseCommit(_Message, frozen=True, kw_only=True, tag="lease.commit"):
    """Commit the lease. Numbered like a request and answered like one, with a receipt.

    ``last`` is a ``sql.run`` that runs before it; its reply is the result. If a statement of it
    fails, the lease is rolled back, and the reply says why. Only to an actor with the feature
    ``lease.commit.last``.
    """

    seq: Seq
    lease: int
    after: int = 0
    acked_through: int = 0
    last: Raw = NIL


class LeaseRollback(_Message, frozen=True, kw_only=True, tag="lease.rollback"):
    """End the lease without a trace."""

    ask: int
    lease: int


class Interrupt(_Message, frozen=True, kw_only=True, tag="interrupt"):
    """End the statement that runs for a request or an ask of this client; it has no answer.

    The statement fails as SQLite's own interrupt makes it fail, and what comes after it does not
    run. A statement that is already done is done. Only to an actor with the feature ``interrupt``.
    """

    number: int


class StatusRequest(_Message, frozen=True, kw_only=True, tag="status"):
    """Ask how the actor is. Answered in every phase."""

    ask: int


class Drain(_Message, frozen=True, kw_only=True, tag="drain"):
    """Ask the actor to finish what it has admitted, close the file and end."""

    ask: int


class Handoff(_Message, frozen=True, kw_only=True, tag="handoff"):
    """Ask the actor to hand itself over to the build that *python* finds.

    With ``wait`` the connection stays, and ``Done`` comes when the successor serves; otherwise at
    once, when the request is taken. ``build`` is for people.
    """

    ask: int
    python: str
    build: str = ""
    allow_older: bool = False
    wait: bool = True


class Done(_Message, frozen=True, kw_only=True, tag="done"):
    """The answer to an ask."""

    ask: int
    result: Raw = NIL


class StatusReply(_Message, frozen=True, kw_only=True, tag="status.reply"):
    """The status of the actor: a JSON document, so that it can grow without a new protocol."""

    ask: int
    status: str


# --- changes ---------------------------------------------------------------------------------


class Subscribe(_Message, frozen=True, kw_only=True, tag="subscribe"):
    """Ask for changes, on a connection of its own. ``after`` is the last one that is known."""

    after: int | None = None


class Changed(_Message, frozen=True, kw_only=True, tag="changed"):
    """A change was committed. Without a ``commit_no``: by a program outside."""

    commit_no: int | None = None
    op: str = "foreign"
    session_id: str | None = None
    table: str | None = None
    """Of an agent store: the table that was changed."""
    agent_id: str | None = None
    """Of an agent store: the agent whose rows were changed; ``*``: those of all."""


class Gap(_Message, frozen=True, kw_only=True, tag="gap"):
    """Changes after ``after`` up to ``through`` are no longer known one by one."""

    after: int
    through: int


ClientMessage: TypeAlias = (
    Hello
    | Request
    | Bye
    | CatchUp
    | Maintain
    | LeaseOpen
    | LeaseRun
    | LeaseCommit
    | LeaseRollback
    | Interrupt
    | StatusRequest
    | Drain
    | Handoff
    | Subscribe
)
ServerMessage: TypeAlias = (
    Welcome | Reject | Ok | Failed | GoAway | Done | StatusReply | Changed | Gap
)
