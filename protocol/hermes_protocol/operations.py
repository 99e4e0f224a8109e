"""Every change that a SessionDB can make, as one value each.

An operation is one atomic change. It carries everything that the change depends on, the time
included, so that applying it to the same file always gives the same result. Text, JSON and
titles arrive in their stored form: encoding and cleaning are the caller's work.

Rules of evolution: a tag is never renamed or reused, a default is never changed, a field is only
ever added, with a default. Unknown fields are skipped by older readers.

``Operation[R]`` names the type of the result, so ``submit(operation)`` is typed end to end.
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, Generic, TypeAlias, TypeVar, get_args

import msgspec
from msgspec import Meta, Struct

from hermes_protocol.values import Scalar, Value

__all__ = [
    "Operation",
    "SessionCreate",
    "SessionEnd",
    "SessionReopen",
    "SessionPrompt",
    "SessionTokens",
    "SessionTitle",
    "SessionContinue",
    "Continued",
    "SessionDelete",
    "SessionDeleteIf",
    "SessionsPrune",
    "Pruned",
    "SessionsPruneGhosts",
    "SessionsFinalizeOrphans",
    "SessionTitleDefault",
    "TitleQueue",
    "SessionArchive",
    "SessionsRemove",
    "SessionRow",
    "SessionImport",
    "Imported",
    "MessageRow",
    "MessageAppend",
    "MessagesReplace",
    "MessagesClear",
    "MetaSet",
    "HandoffRequest",
    "HandoffClaim",
    "HandoffFinish",
    "TopicsMigrate",
    "TopicsEnable",
    "TopicsDisable",
    "TopicsBind",
    "Peer",
    "Route",
    "RouteOpen",
    "RouteChange",
    "RouteReset",
    "RouteSwitch",
    "RouteClaim",
    "RoutesMark",
    "RoutesPrune",
    "RoutesWrite",
    "MessageOnce",
    "Once",
    "TranscriptMark",
    "Turn",
    "TurnTake",
    "TurnWait",
    "TurnLeave",
    "TurnRenew",
    "TurnRelease",
    "TurnSteal",
    "SqlStatement",
    "SqlResult",
    "SqlStep",
    "SqlError",
    "SqlReply",
    "SqlRun",
    "SqlLease",
    "StagePart",
    "Staged",
    "Vacuum",
    "IndexMerge",
    "RowsCopy",
    "OPERATIONS",
    "result_type",
]

R = TypeVar("R")

# Lists of small things take many times the room of their bytes. A reader refuses longer ones before
# it makes any of their items.
Ids: TypeAlias = Annotated[list[str], Meta(max_length=100_000)]
Names: TypeAlias = Annotated[list[str], Meta(max_length=2_000)]
Row: TypeAlias = Annotated[list[Value], Meta(max_length=2_000)]
Rows: TypeAlias = Annotated[list[Row], Meta(max_length=100_000)]
Parameters: TypeAlias = Annotated[list[Value], Meta(max_length=250_000)]
NamedParameters: TypeAlias = Annotated[dict[str, Value], Meta(max_length=250_000)]
Notes: TypeAlias = Annotated[dict[str, str], Meta(max_length=1_000)]
Settings: TypeAlias = Annotated[dict[str, int | str], Meta(max_length=100)]


class Operation(
    Struct, Generic[R], frozen=True, kw_only=True, omit_defaults=True, tag_field="op", tag="?"
):
    """Base of all operations; ``R`` is the type of the result.

    ``turn`` is the token of the turn that a change is made under, 0 for none, and ``at`` the time
    at which it is made, with which the end of that turn is compared.
    """


# --- sessions --------------------------------------------------------------------------------


class SessionCreate(Operation[bool], frozen=True, kw_only=True, tag="session.create"):
    """Insert a session unless its id exists. Result: whether a row was inserted."""

    id: Scalar
    source: Scalar
    started_at: float
    user_id: Scalar = None
    model: Scalar = None
    model_config: Scalar = None
    system_prompt: Scalar = None
    parent_session_id: Scalar = None


class SessionEnd(Operation[bool], frozen=True, kw_only=True, tag="session.end"):
    """End an open session; the first end wins. Result: whether this call ended it."""

    id: Scalar
    ended_at: float
    end_reason: Scalar = None
    turn: int = 0


class SessionReopen(Operation[bool], frozen=True, kw_only=True, tag="session.reopen"):
    """Clear the end of a session. Result: whether the session exists."""

    id: Scalar
    turn: int = 0
    at: float = 0.0


class SessionPrompt(Operation[bool], frozen=True, kw_only=True, tag="session.prompt"):
    """Overwrite the system prompt. Result: whether the session exists."""

    id: Scalar
    system_prompt: Scalar = None
    turn: int = 0
    at: float = 0.0


class SessionTokens(Operation[None], frozen=True, kw_only=True, tag="session.tokens"):
    """Book token counts and cost, creating the session with source ``unknown`` if need be.

    ``absolute`` sets the counters instead of adding to them.
    """

    id: Scalar
    started_at: float
    absolute: bool = False
    input_tokens: Scalar = 0
    output_tokens: Scalar = 0
    cache_read_tokens: Scalar = 0
    cache_write_tokens: Scalar = 0
    reasoning_tokens: Scalar = 0
    api_call_count: Scalar = 0
    estimated_cost_usd: Scalar = None
    actual_cost_usd: Scalar = None
    cost_status: Scalar = None
    cost_source: Scalar = None
    pricing_version: Scalar = None
    billing_provider: Scalar = None
    billing_base_url: Scalar = None
    billing_mode: Scalar = None
    model: Scalar = None
    turn: int = 0


class SessionTitle(Operation[bool], frozen=True, kw_only=True, tag="session.title"):
    """Set or clear (``None``) a cleaned title. Result: whether the session exists.

    ``move``: a compression ancestor that holds the title loses it, instead of an error.
    """

    id: Scalar
    title: str | None = None
    move: bool = False
    turn: int = 0
    at: float = 0.0


class Continued(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The child that continues a session, and the title it got (``None``: the parent had none)."""

    id: str
    title: str | None = None


class SessionContinue(Operation[Continued], frozen=True, kw_only=True, tag="session.continue"):
    """End *old* with ``compression``, create *new* as its child, give it the lineage's next title.

    The child inherits source, user, model, model configuration and system prompt. Routes to *old*
    lead to *new* from then on, and a turn of the conversation goes on in it.
    """

    old: str
    new: str
    now: float
    turn: int = 0


class SessionDelete(Operation[bool], frozen=True, kw_only=True, tag="session.delete"):
    """Remove a session and its messages; its children lose their parent."""

    id: Scalar


class SessionDeleteIf(Operation[bool], frozen=True, kw_only=True, tag="session.delete_if"):
    """Remove a session that has exactly so many messages, the last of them *newest*, and that no
    delegate works for. Result: whether it was removed.
    """

    id: str
    messages: int
    newest: int = 0


class Pruned(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Ids removed by one slice; ``more`` says that the caller should send the operation again."""

    ids: list[str]
    more: bool = False


class SessionsPrune(Operation[Pruned], frozen=True, kw_only=True, tag="sessions.prune"):
    """Remove ended sessions that started before a time, with their delegates; atomic per session,
    sliced by rows. One with an open delegate stays.
    """

    started_before: float
    source: Scalar = None
    max_rows: int = 2000


class SessionsPruneGhosts(
    Operation[list[str]], frozen=True, kw_only=True, tag="sessions.prune_ghosts"
):
    """Remove ended, untitled, empty sessions of the terminal UI. Result: their ids."""

    started_before: float


class SessionsFinalizeOrphans(
    Operation[int], frozen=True, kw_only=True, tag="sessions.finalize_orphans"
):
    """End abandoned continuations of compressed sessions. Result: how many."""

    now: float
    started_before: float


class SessionTitleDefault(Operation[str], frozen=True, kw_only=True, tag="session.title_default"):
    """Give an untitled session a title, or the lineage's next one if that is taken.

    Result: the title that it got; empty if it has one already, or if there is no such session.
    """

    id: Scalar
    title: str


class TitleQueue(Operation[bool], frozen=True, kw_only=True, tag="title.queue"):
    """Keep a title for a session that does not exist yet; ``None`` forgets it.

    The operation that creates the session gives it the title. Result: false if the session exists,
    and nothing was kept.
    """

    id: str
    title: str | None = None


class SessionArchive(Operation[list[str]], frozen=True, kw_only=True, tag="session.archive"):
    """Hide a session and its compression lineage from lists, or show them again.

    Result: the ids whose mark has changed.
    """

    id: Scalar
    now: float
    archived: bool = True


class SessionsRemove(Operation[Pruned], frozen=True, kw_only=True, tag="sessions.remove"):
    """Remove those of *ids* that have ended, like a prune."""

    ids: Ids
    max_rows: int = 2000


class SessionRow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A session as it is stored. Counters of messages are not in it: they are counted."""

    id: str
    source: str
    started_at: float
    user_id: Scalar = None
    model: Scalar = None
    model_config: Scalar = None
    system_prompt: Scalar = None
    parent_session_id: Scalar = None
    ended_at: float | None = None
    end_reason: Scalar = None
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    billing_provider: Scalar = None
    billing_base_url: Scalar = None
    billing_mode: Scalar = None
    estimated_cost_usd: float | None = None
    actual_cost_usd: float | None = None
    cost_status: Scalar = None
    cost_source: Scalar = None
    pricing_version: Scalar = None
    title: str | None = None
    api_call_count: int = 0


class Imported(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The outcome of one imported session; ``title`` is the one it got."""

    imported: bool = False
    detached: bool = False
    title: str | None = None


# --- messages --------------------------------------------------------------------------------


class MessageRow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One message in its stored form. ``calls`` is what it adds to ``tool_call_count``."""

    role: Scalar
    timestamp: float
    content: Value = None
    tool_call_id: Scalar = None
    tool_calls: Scalar = None
    tool_name: Scalar = None
    token_count: Scalar = None
    finish_reason: Scalar = None
    reasoning: Scalar = None
    reasoning_content: Scalar = None
    reasoning_details: Scalar = None
    codex_reasoning_items: Scalar = None
    codex_message_items: Scalar = None
    calls: int = 0


Messages: TypeAlias = Annotated[list[MessageRow], Meta(max_length=200_000)]


class MessageAppend(Operation[int], frozen=True, kw_only=True, tag="message.append"):
    """Add one message and raise the counters of its session. Result: the message id."""

    session_id: Scalar
    message: MessageRow
    turn: int = 0
    at: float = 0.0


class MessagesReplace(Operation[None], frozen=True, kw_only=True, tag="messages.replace"):
    """Replace the transcript of a session and set its counters."""

    session_id: Scalar
    messages: Messages
    turn: int = 0
    at: float = 0.0


class MessagesClear(Operation[None], frozen=True, kw_only=True, tag="messages.clear"):
    """Remove the transcript of a session and zero its counters."""

    session_id: Scalar
    turn: int = 0
    at: float = 0.0


class SessionImport(Operation[Imported], frozen=True, kw_only=True, tag="session.import"):
    """Insert a session with its messages unless its id exists.

    A parent that does not exist is left out (*detached*); a title that is taken becomes the next
    one of its lineage.
    """

    session: SessionRow
    messages: Messages
    now: float
    archived: bool = False


# --- meta, handoff, Telegram topics ----------------------------------------------------------


class MetaSet(Operation[None], frozen=True, kw_only=True, tag="meta.set"):
    """Insert or overwrite one key of ``state_meta``."""

    key: Scalar
    value: Scalar = None


class HandoffRequest(Operation[bool], frozen=True, kw_only=True, tag="handoff.request"):
    """Ask for a hand-off of the conversation. Result: false while one is under way."""

    id: Scalar
    platform: Scalar = None


class HandoffClaim(Operation[bool], frozen=True, kw_only=True, tag="handoff.claim"):
    """Take a pending hand-off. Result: true for the one caller that got it."""

    id: Scalar


class HandoffFinish(Operation[None], frozen=True, kw_only=True, tag="handoff.finish"):
    """Close a hand-off as ``completed`` or ``failed`` (then with an error)."""

    id: Scalar
    state: str
    error: Scalar = None


class TopicsMigrate(Operation[None], frozen=True, kw_only=True, tag="topics.migrate"):
    """Create or bring up to date the tables of Telegram topic mode."""


class TopicsEnable(Operation[None], frozen=True, kw_only=True, tag="topics.enable"):
    """Switch topic mode on for a chat."""

    chat_id: str
    user_id: str
    now: float
    has_topics_enabled: bool | None = None
    allows_users_to_create_topics: bool | None = None


class TopicsDisable(Operation[None], frozen=True, kw_only=True, tag="topics.disable"):
    """Switch topic mode off for a chat."""

    chat_id: str
    now: float
    clear_bindings: bool = True


class TopicsBind(Operation[None], frozen=True, kw_only=True, tag="topics.bind"):
    """Bind a topic to a session that no other topic holds."""

    chat_id: str
    thread_id: str
    user_id: str
    session_key: str
    session_id: str
    managed_mode: str
    now: float


# --- routes of chats, and turns of conversations ----------------------------------------------


class Peer(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The place and the people of a conversation: columns of a new session."""

    source: str
    user_id: str | None = None
    chat_id: str | None = None
    chat_type: str | None = None
    thread_id: str | None = None
    display_name: str | None = None
    origin_json: str | None = None
    profile_name: str | None = None


class Route(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The entry of a chat, as JSON, and what the operation did with it.

    ``outcome`` is ``kept``, ``created``, ``reset``, ``recovered`` or ``moved``; ``old_id`` is the
    session that a reset or a switch ended, and ``reason`` says why.
    """

    entry: str
    outcome: str = "kept"
    reason: str | None = None
    old_id: str | None = None


class RouteOpen(Operation[Route], frozen=True, kw_only=True, tag="route.open"):
    """Find the session of a chat, or start one: a reset ends the old session in the same change.

    A route whose last activity is before ``idle_before`` or ``daily_before`` is reset, unless it
    is ``held`` or its conversation has a turn; likewise one that waits to be resumed since before
    ``fresh_after``. ``force_new`` starts another session if the route still leads to ``seen``.
    ``entry`` is the entry of a new session, whose id is ``new_id``. ``gone`` is a turn whose
    holder has ended.
    """

    scope: str
    key: str
    now: float
    now_text: str
    new_id: str
    entry: str
    peer: Peer
    idle_before: float | None = None
    daily_before: float | None = None
    fresh_after: str | None = None
    held: bool = False
    force_new: bool = False
    seen: str | None = None
    gone: int = 0
    turn: int = 0


class RouteChange(Operation[Route | None], frozen=True, kw_only=True, tag="route.change"):
    """Merge fields, a JSON object, into the entry of a chat. Result: nothing for an unknown key.

    With ``expect`` only while the route leads to that session, and with ``unless`` only while
    none of these flags of the entry is set.
    """

    scope: str
    key: str
    set: str
    now: float | None = None
    expect: str | None = None
    unless: Names = []
    turn: int = 0
    at: float = 0.0


class RouteReset(Operation[Route | None], frozen=True, kw_only=True, tag="route.reset"):
    """End the session of a chat and start another one. Result: nothing for an unknown key."""

    scope: str
    key: str
    new_id: str
    now: float
    now_text: str
    display_name: str | None = None
    reason: str = "session_reset"
    turn: int = 0


class RouteSwitch(Operation[Route | None], frozen=True, kw_only=True, tag="route.switch"):
    """Have a chat go on in another session, which is opened again; its own one ends."""

    scope: str
    key: str
    target: str
    now: float
    now_text: str
    turn: int = 0


class RouteClaim(Operation[bool], frozen=True, kw_only=True, tag="route.claim"):
    """Mark the expired session of a chat as finished, and end it. True for exactly one caller.

    Nothing happens while the conversation has a turn other than ``turn``, or if the route has been
    used since ``before``.
    """

    scope: str
    key: str
    session_id: str
    now: float
    reason: str
    before: float
    turn: int = 0


class RoutesMark(Operation[int], frozen=True, kw_only=True, tag="routes.mark"):
    """Mark the routes used since a time as interrupted, to be resumed. Result: how many."""

    scope: str
    since: float
    now_text: str
    reason: str


class RoutesPrune(Operation[list[str]], frozen=True, kw_only=True, tag="routes.prune"):
    """Forget routes not used since a time, but no suspended one and none of ``keep``."""

    scope: str
    before: float
    keep: Ids = []


class RoutesWrite(Operation[list[str]], frozen=True, kw_only=True, tag="routes.write"):
    """Write whole entries (JSON by key) and drop others; those that a caller saw as ``expect``.

    ``times`` are the times of last use. Result: the keys that were refused, because the route
    leads elsewhere by now or, with ``only_missing``, because there is one.
    """

    scope: str
    now: float
    put: Annotated[dict[str, str], Meta(max_length=100_000)] = {}
    times: Annotated[dict[str, float], Meta(max_length=100_000)] = {}
    drop: Ids = []
    expect: Annotated[dict[str, str], Meta(max_length=100_000)] = {}
    only_missing: bool = False


class Once(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The id of a message, and whether this operation appended it."""

    id: int
    appended: bool = True


class MessageOnce(Operation[Once], frozen=True, kw_only=True, tag="message.once"):
    """Append a message unless one with this key of its platform is in the session."""

    session_id: str
    message_key: str
    message: MessageRow
    turn: int = 0
    at: float = 0.0


class TranscriptMark(Operation[None], frozen=True, kw_only=True, tag="transcript.mark"):
    """Keep how far the transcript file of a session has come: message, lines, bytes.

    Nothing is kept for a session that does not exist.
    """

    folder: str
    session_id: str
    last_id: int
    lines: int
    bytes: int


class Turn(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The exclusive right to write one conversation. ``session_id`` is its latest session."""

    token: int
    root: str
    session_id: str


class TurnTake(Operation[Turn], frozen=True, kw_only=True, tag="turn.take"):
    """Take the turn of a conversation, or fail while another one has it.

    ``gone`` is a turn whose holder has ended, as the caller has seen. ``place`` says where
    ``pid`` and its start time mean something. ``ticket`` is the caller's place in the line of those
    who wait; while there is a line, only its first one gets the turn.
    """

    session_id: str
    holder: str
    kind: str
    now: float
    seconds: float
    pid: int = 0
    started: float = 0.0
    place: str = ""
    gone: int = 0
    ticket: int = 0


class TurnWait(Operation[int], frozen=True, kw_only=True, tag="turn.wait"):
    """Stand in line for the turn of a conversation, for so many seconds. Result: the ticket."""

    session_id: str
    holder: str
    kind: str
    now: float
    seconds: float
    pid: int = 0
    started: float = 0.0
    place: str = ""


class TurnLeave(Operation[bool], frozen=True, kw_only=True, tag="turn.leave"):
    """Take a ticket out of the line. Result: whether it was in it."""

    ticket: int


class TurnRenew(Operation[None], frozen=True, kw_only=True, tag="turn.renew"):
    """Keep a turn for so many seconds from now on."""

    token: int
    now: float
    seconds: float


class TurnRelease(Operation[bool], frozen=True, kw_only=True, tag="turn.release"):
    """End a turn. Result: whether it was still held."""

    token: int


class TurnSteal(Operation[bool], frozen=True, kw_only=True, tag="turn.steal"):
    """End whatever turn a conversation has, for an operator. Result: whether there was one."""

    session_id: str


# --- private SQL and upkeep ------------------------------------------------------------------


class SqlResult(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of one statement: rows by position, their column names, and the row counters."""

    columns: list[str] = []
    rows: list[list[Value]] = []
    rowcount: int = -1
    lastrowid: int | None = None
    changes: int = 0
    """Rows that the last change of the statement itself has changed, as ``changes()`` says."""
    total_changes: int = 0
    """Rows that the statement has changed, those of its triggers included."""


class SqlStatement(Operation[SqlResult], frozen=True, kw_only=True, tag="sql.statement"):
    """One statement of a caller that reaches into ``SessionDB._conn``; an operation of its own."""

    sql: str
    parameters: Parameters = []
    named: NamedParameters | None = None


class SqlStep(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One statement of a run; with ``rows`` or ``named_rows`` once for each of them."""

    sql: str
    parameters: Parameters = []
    named: NamedParameters | None = None
    rows: Annotated[list[Parameters], Meta(max_length=100_000)] | None = None
    named_rows: Annotated[list[NamedParameters], Meta(max_length=100_000)] | None = None


class SqlError(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The error of a statement exactly as ``sqlite3`` raised it.

    ``kind`` is the name of its class, of ``sqlite3`` or built in; ``code`` and ``name`` are
    SQLite's extended result code, if it has one.
    """

    kind: str
    message: str
    code: int | None = None
    name: str | None = None


class SqlReply(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The results of the steps that ran, and the error of the one after them, if it failed.

    What ran before the error is kept. ``failed`` has the counters of the step with the error: rows
    of a repeated statement that came before the failing one are kept, too.
    """

    results: list[SqlResult] = []
    error: SqlError | None = None
    failed: SqlResult | None = None
    open: bool = True
    """In a lease: false if SQLite has ended the transaction with the error."""
    schema: int | None = None
    """In a lease: the version of the schema after the last step."""


class SqlRun(Operation[SqlReply], frozen=True, kw_only=True, tag="sql.run"):
    """Statements of one connection of a program, in order, up to the first that fails.

    As an operation of its own it is one change, if it changes anything; in a lease it is a part of
    it. ``settings`` are the pragmas of the connection that differ from SQLite's defaults;
    ``lastrowid`` and ``changes`` are what ``last_insert_rowid()`` and ``changes()`` say there.
    """

    steps: Annotated[list[SqlStep], Meta(max_length=1_000)]
    settings: Settings = {}
    lastrowid: int = 0
    changes: int = 0


class SqlLease(Operation[None], frozen=True, kw_only=True, tag="sql.lease"):
    """Commit the interactive transaction that this client holds."""

    lease: int


class StagePart(Operation[None], frozen=True, kw_only=True, tag="stage.part"):
    """Keep one part of an operation that is too large for a frame."""

    key: int
    part: int
    data: bytes


class Staged(Operation[msgspec.Raw], frozen=True, kw_only=True, tag="stage.apply"):
    """Put the parts together and apply the operation that they are. Result: that operation's."""

    key: int
    parts: int


class Vacuum(Operation[None], frozen=True, kw_only=True, tag="upkeep.vacuum"):
    """Fold the WAL back and rewrite the file without holes. Runs alone, outside any batch."""


class IndexMerge(Operation[bool], frozen=True, kw_only=True, tag="index.merge"):
    """Merge the segments of one full-text index, about so many pages of it.

    ``begin`` starts over; then it is sent again until the result, whether there is more, is false.
    """

    table: str
    begin: bool = False
    pages: int = 500


class RowsCopy(Operation[int], frozen=True, kw_only=True, tag="rows.copy"):
    """Part of a migration: rows of one table as they are, with the place to go on from.

    First ``clear`` empties the table, and ``remove`` names sessions that go, or whose messages go.
    Then the rows are inserted, or with ``update`` found by their first column and changed. No
    counter, title or time is touched. ``bookmark`` is kept beside the rows, if what is kept so far
    is as ``expect`` says; ``last_id`` is the highest message id ever given. Result: the number of
    rows.
    """

    table: str
    columns: Names = []
    rows: Rows = []
    update: bool = False
    clear: bool = False
    remove: Ids = []
    bookmark: Notes = {}
    expect: Notes = {}
    last_id: int = 0


OPERATIONS: tuple[type[Operation[object]], ...] = tuple(
    value
    for value in list(globals().values())
    if isinstance(value, type) and issubclass(value, Operation) and value is not Operation
)
"""Every operation, in the order of this module."""


@cache
def result_type(operation: type[Operation[R]]) -> type[R]:
    """The type of the result of an operation class."""
    (base,) = operation.__orig_bases__  # type: ignore[attr-defined]
    (result,) = get_args(base)
    return result  # type: ignore[no-any-return]
