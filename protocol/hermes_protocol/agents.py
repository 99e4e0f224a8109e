"""Every change of an agent store, as one value each.

Five general operations change the rows of any table of the registry; the others are changes that
need more than one table, or a decision inside the transaction. Rows travel in their stored form:
times in canonical UTC, JSON as text, secrets as ciphertext. Ids that are not numbers of the store
are made by the caller, so an operation that is sent again is the same change.

``agent_id`` is the scope: a row of another agent can neither be named nor reached. ``key_id`` names
the key of the ciphertexts that a change carries, without telling it; one that was replaced is
refused. The rules of evolution are those of :mod:`hermes_protocol.operations`.
"""

# msgspec makes an empty list or map for every value.
# ruff: noqa: RUF012
from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias, Union

import msgspec
from msgspec import Meta, Struct

from hermes_protocol.decoders import decoder
from hermes_protocol.operations import Operation
from hermes_protocol.values import Scalar

__all__ = [
    "AGENT_OPERATIONS", "AgentRow", "AgentsAppend", "AgentsClaim", "AgentsCompare",
    "AgentsComplete", "AgentsCopy", "AgentsDelete", "AgentsDocument", "AgentsExpire",
    "AgentsFanout", "AgentsIdentify", "AgentsLink", "AgentsMerge", "AgentsMergeMemory",
    "AgentsOwn", "AgentsPatch", "AgentsPlan", "AgentsPromote", "AgentsProvision", "AgentsPut",
    "AgentsRemove", "AgentsRenew", "AgentsReplace", "AgentsSweep", "Appended", "Claimed",
    "Comparison", "Completed", "DECODER", "Identified", "Linked", "Planned", "PutResult",
]  # fmt: skip

AgentRow: TypeAlias = Annotated[dict[str, Scalar], Meta(max_length=200)]
AgentRows: TypeAlias = Annotated[list[AgentRow], Meta(max_length=20_000)]
Counts: TypeAlias = Annotated[dict[str, int], Meta(max_length=1_000)]
Names: TypeAlias = Annotated[list[str], Meta(max_length=100_000)]
Numbers: TypeAlias = Annotated[list[int], Meta(max_length=100_000)]
Texts: TypeAlias = Annotated[list[str], Meta(max_length=20_000)]


# --- general: any table of the registry ------------------------------------------------------


class PutResult(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The number of rows that were new, and if asked for all of them as they are stored now."""

    inserted: int
    rows: AgentRows = []


class AgentsPut(Operation[PutResult], frozen=True, kw_only=True, tag="agents.put"):
    """Insert rows, update those that exist (``upsert``), or leave them alone (``ignore``)."""

    table: str
    rows: AgentRows
    agent_id: str | None = None
    mode: Literal["insert", "upsert", "ignore"] = "insert"
    returning: bool = False
    key_id: str | None = None


class AgentsPatch(Operation[AgentRow | None], frozen=True, kw_only=True, tag="agents.patch"):
    """Set columns of one row, and add to numbers. Result: the row, ``None`` if it is missing.

    ``expect`` names values that the row must have; otherwise nothing changes and it is a conflict.
    """

    table: str
    key: AgentRow
    set: AgentRow
    agent_id: str | None = None
    add: Counts = {}
    expect: AgentRow = {}
    missing: Literal["error", "nothing"] = "error"


class AgentsDelete(Operation[Counts], frozen=True, kw_only=True, tag="agents.delete"):
    """Delete the rows that have all values of *key*. Result: rows removed, by table."""

    table: str
    key: AgentRow
    agent_id: str | None = None


class AgentsReplace(Operation[int], frozen=True, kw_only=True, tag="agents.replace"):
    """Delete the rows that have all values of *key* and insert *rows*. Result: rows removed."""

    table: str
    key: AgentRow
    rows: AgentRows
    agent_id: str | None = None
    key_id: str | None = None


class Comparison(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One column of one row: its value now, and its value afterwards."""

    table: str
    agent_id: str
    key: AgentRow
    column: str
    old: str
    new: str


class AgentsCompare(Operation[int], frozen=True, kw_only=True, tag="agents.compare"):
    """Change every value that is as expected, or none at all. Result: how many.

    With *complete* every ciphertext of the store must be among them, and afterwards nothing that is
    encrypted with the key *old_key_id* is taken. Without, *old_key_id* alone has those with that
    key wait for it, and *new_key_id* alone ends the wait.
    """

    items: Annotated[list[Comparison], Meta(max_length=100_000)]
    complete: bool = False
    old_key_id: str | None = None
    new_key_id: str | None = None


# --- agents ----------------------------------------------------------------------------------


class AgentsProvision(Operation[AgentRow], frozen=True, kw_only=True, tag="agents.provision"):
    """Create an agent with everything that belongs to a new one. Result: its row."""

    agent_id: str
    now: str
    agent: AgentRow
    sessions: AgentRows = []
    sandboxes: AgentRows = []
    channels: AgentRows = []
    instructions: AgentRows = []
    owner: str | None = None
    key_id: str | None = None


class AgentsRemove(Operation[Counts], frozen=True, kw_only=True, tag="agents.remove"):
    """Delete an agent and its rows in every table. Result: rows removed, by table."""

    agent_id: str


class AgentsOwn(Operation[None], frozen=True, kw_only=True, tag="agents.own"):
    """Make a user an owner of the agent; the user is created if it does not exist."""

    agent_id: str
    user_id: str
    now: str


class AgentsDocument(Operation[None], frozen=True, kw_only=True, tag="agents.document"):
    """Set a value in the config or security document; *path* is dotted, *value* is JSON."""

    agent_id: str
    document: Literal["config", "security"]
    path: str
    value: str
    now: str


# --- sessions, events, memories, instructions --------------------------------------------------


class AgentsSweep(Operation[int], frozen=True, kw_only=True, tag="agents.sweep"):
    """Make sessions inactive whose last activity is before *older_than*. Result: how many."""

    agent_id: str
    older_than: str


class Appended(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Ids of the events; ``appended`` is False if the message id was there already."""

    ids: Numbers
    appended: bool = True
    message_count: int | None = None
    last_activity_at: str | None = None


class AgentsAppend(Operation[Appended], frozen=True, kw_only=True, tag="agents.append"):
    """Append entries, each a JSON object with ``ts`` and ``role``, to the log of a session.

    With *message_id* only if the session has no event of that id. *count* adds to the messages of
    the session, moves its last activity forward, and sets *preview* and a participant.
    """

    agent_id: str
    session_id: str
    entries: Texts
    message_id: str | None = None
    count: int | None = None
    preview: str | None = None
    user_id: str | None = None


class AgentsMergeMemory(Operation[AgentRow], frozen=True, kw_only=True, tag="agents.merge_memory"):
    """Change a memory that exists; *metadata*, a JSON object, is merged one level deep."""

    agent_id: str
    memory_key: str
    set: AgentRow
    metadata: str | None = None


class AgentsFanout(Operation[Names], frozen=True, kw_only=True, tag="agents.fanout"):
    """Change one instruction of one agent, or of every registered one. Result: their ids."""

    mode: str
    key: str
    now: str
    content: str | None = None
    agent_id: str | None = None


# --- users -------------------------------------------------------------------------------------


class Identified(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The user of an identity, and whether it was created."""

    user_id: str
    created: bool = False


class AgentsIdentify(Operation[Identified], frozen=True, kw_only=True, tag="agents.identify"):
    """Resolve an identity, or create the user *user_id* for it."""

    channel: str
    channel_user_id: str
    user_id: str
    now: str
    name: str | None = None


class Linked(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The user that had the identity before, and whether it was absorbed."""

    moved_from: str | None = None
    absorbed: bool = False


class AgentsLink(Operation[Linked], frozen=True, kw_only=True, tag="agents.link"):
    """Give an identity to a user; a former user that has none left is absorbed."""

    user_id: str
    channel: str
    channel_user_id: str
    now: str


class AgentsMerge(Operation[Counts], frozen=True, kw_only=True, tag="agents.merge"):
    """Move everything of one user to another and delete it. Result: what moved."""

    from_user_id: str
    into_user_id: str


class AgentsPromote(Operation[None], frozen=True, kw_only=True, tag="agents.promote"):
    """Make a user the owner of the agent; a conflict if another user is."""

    agent_id: str
    user_id: str
    now: str


# --- schedules ---------------------------------------------------------------------------------


class Claimed(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A schedule that is due, and the run that was started for it."""

    schedule: AgentRow
    run: AgentRow


class AgentsClaim(
    Operation[Annotated[list[Claimed], Meta(max_length=10_000)]],
    frozen=True, kw_only=True, tag="agents.claim",
):  # fmt: skip
    """Claim due schedules, of one agent or of all, and start their runs."""

    now: str
    worker: str
    expires_at: str
    limit: int = 20
    agent_id: str | None = None


class AgentsRenew(Operation[bool], frozen=True, kw_only=True, tag="agents.renew"):
    """Extend a claim. Result: whether it was still held."""

    agent_id: str
    run_id: int
    worker: str
    now: str
    expires_at: str


class Completed(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The run and the schedule after its end."""

    run: AgentRow
    schedule: AgentRow


class AgentsComplete(Operation[Completed], frozen=True, kw_only=True, tag="agents.complete"):
    """End the run of a claim and plan the next one. A claim that was lost is a conflict.

    ``postponed``: the run is forgotten, and the schedule is due again at *until*.
    """

    agent_id: str
    run_id: int
    worker: str
    status: Literal["completed", "failed", "postponed"]
    now: str
    error: str | None = None
    until: str | None = None


class Planned(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Schedules that got a time, and those that can never run."""

    planned: int
    parked: int = 0


class AgentsPlan(Operation[Planned], frozen=True, kw_only=True, tag="agents.plan"):
    """Plan active cron schedules that have no next run."""

    now: str


# --- other -------------------------------------------------------------------------------------


class AgentsExpire(Operation[int], frozen=True, kw_only=True, tag="agents.expire"):
    """Expire pending approvals that are older than their time. Result: how many."""

    now: str


class AgentsCopy(Operation[int], frozen=True, kw_only=True, tag="agents.copy"):
    """Insert rows of any agents as they are; a row whose key exists is left alone.

    Result: how many were new. For import and for moves between providers.
    """

    table: str
    rows: AgentRows


AGENT_OPERATIONS: tuple[type[Operation[object]], ...] = tuple(
    value
    for value in list(globals().values())
    if isinstance(value, type) and issubclass(value, Operation) and value is not Operation
)
"""Every operation of an agent store, in the order of this module."""

DECODER: msgspec.msgpack.Decoder[Operation[Any]] = decoder(
    Union[AGENT_OPERATIONS]  # noqa: UP007 - a union of a tuple has no other spelling
)
