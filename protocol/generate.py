"""Writes schema.json, the golden frames of vectors/v1, and the marked parts of README.md.

``python protocol/generate.py`` writes what is not current, ``--check`` only names it and fails.

A golden frame that exists is never written over: what was once sent must be understood for ever.
Add a vector instead. (While a protocol is unreleased, remove the file by hand first.)
"""

from __future__ import annotations

import json
import re
import sys
import types
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import NODEFAULT, Raw, Struct

from hermes_protocol import agents, framing, handoff
from hermes_protocol import messages as wire
from hermes_protocol import operations as ops
from hermes_protocol.values import Blob, Scalar, Value

__all__ = ["HERE", "VECTORS", "Vector", "generated", "main", "plain"]

HERE = Path(__file__).parent
FOLDER = "vectors/v1"

CLIENT: tuple[type[Struct], ...] = typing.get_args(wire.ClientMessage)
SERVER: tuple[type[Struct], ...] = typing.get_args(wire.ServerMessage)
PARTS: tuple[type[Struct], ...] = (
    wire.Limits, ops.MessageRow, ops.Continued, ops.Pruned, ops.SessionRow,
    ops.Imported, ops.Peer, ops.Route, ops.Once, ops.Turn,
    ops.SqlResult, ops.SqlStep, ops.SqlError, ops.SqlReply, Blob,
    agents.PutResult, agents.Comparison, agents.Appended, agents.Identified, agents.Linked,
    agents.Claimed, agents.Completed, agents.Planned,
)  # fmt: skip
"""Maps without a tag, which occur inside others."""
ALL_OPERATIONS = (*ops.OPERATIONS, *agents.AGENT_OPERATIONS)

pack = msgspec.msgpack.encode


DECODE: dict[str, Callable[[bytes], Any]] = {
    "client": framing.decode_client,
    "actor": framing.decode_server,
    "successor": handoff.decode_successor,
    "predecessor": handoff.decode_predecessor,
}
"""Who may send a frame, and how it is read."""


class Vector(NamedTuple):
    """One golden frame.

    *same_as* names the vector whose value this one has, though its bytes differ. *error* says
    what a receiver must find wrong: the ``frame`` (it ends the connection) or the ``operation``
    (it is answered, and the connection lives).
    """

    name: str
    side: str
    data: bytes
    same_as: str | None = None
    error: str | None = None

    @property
    def file(self) -> str:
        return f"{self.name}.bin"

    @property
    def message(self) -> Any:
        return DECODE[self.side](self.data[framing.HEADER_BYTES :])


# --- the values ------------------------------------------------------------------------------

CLIENT_ID = bytes(range(16))
FILE_ID = bytes(range(0xA0, 0xB0))
TIME = 1700000000.25
TEXT = "naïve 北京 🦭 \x00 \U0010ffff"

HELLO = wire.Hello(client_id=CLIENT_ID, name="example", pid=4242, build="0.1.0")
WELCOME = wire.Welcome(
    protocol=1, phase="serving", epoch=7, file_id=FILE_ID, limits=wire.Limits(),
    durability="fsync", schema_version=11, build="0.1.0", pid=4000, commit_no=41,
)  # fmt: skip


def request(seq: int, operation: object, **fields: Any) -> wire.Request:
    return wire.Request(seq=seq, operation=Raw(pack(operation)), **fields)


SELECT = ops.SqlStatement(sql="SELECT 1")

CLIENT_MESSAGES: dict[str, Struct] = {
    "hello": HELLO,
    "hello.defaults": wire.Hello(),
    "hello.range": wire.Hello(
        oldest=1, newest=3, features=["x-one", "x-two"], client_id=CLIENT_ID, name=TEXT
    ),
    "request.1": request(
        1, ops.SessionCreate(id="s1", source="cli", started_at=TIME), after=41, timeout=30.0
    ),
    "request.2": request(
        2,
        ops.MessageAppend(
            session_id="s1",
            message=ops.MessageRow(role="user", timestamp=TIME + 1, content="Grüße aus 北京"),
        ),
        after=41, timeout=30.0,
    ),
    "request.3": request(
        3, ops.SessionTitle(id="s1", title="taken"), after=43, acked_through=2, timeout=30.0
    ),
    "request.defaults": request(1, ops.TopicsMigrate()),
    "request.large-numbers": request(
        2**63 - 1, ops.TopicsMigrate(), after=2**53 + 1, acked_through=2**63 - 2, timeout=0.5
    ),
    "bye": wire.Bye(),
    "catch-up": wire.CatchUp(ask=-1, through=2, timeout=5.0),
    "catch-up.verify": wire.CatchUp(ask=-5, through=0, verify=True),
    "catch-up.damaged": wire.CatchUp(ask=-6, through=0, verify=True, damaged=41),
    "catch-up.defaults": wire.CatchUp(ask=-128, through=0),
    "maintain": wire.Maintain(ask=-6, task="restore", path="/srv/copy", timeout=9.0),
    "maintain.replace": wire.Maintain(
        ask=-7, task="replace", path="/srv/copy", timeout=9.0, expected="0a1b.3.41.2"
    ),
    "maintain.defaults": wire.Maintain(ask=-1, task="rebuild-index"),
    "lease.open": wire.LeaseOpen(ask=-2, lease=4, timeout=30.0),
    "lease.open.defaults": wire.LeaseOpen(ask=-1, lease=1),
    "lease.open.full": wire.LeaseOpen(
        ask=-2, lease=4, timeout=30.0, settings={"foreign_keys": 1}, seconds=60.0,
        first=Raw(pack(ops.SqlRun(steps=[ops.SqlStep(sql="SELECT 1")]))),
    ),
    "lease.open.migration": wire.LeaseOpen(ask=-2, lease=4, seconds=3600.0, pause=10.0),
    "lease.run": wire.LeaseRun(ask=-3, lease=4, statement=Raw(pack(SELECT))),
    "lease.commit": wire.LeaseCommit(seq=4, lease=4, after=43, acked_through=3),
    "lease.commit.defaults": wire.LeaseCommit(seq=1, lease=1),
    "lease.commit.last": wire.LeaseCommit(
        seq=4, lease=4, after=43, acked_through=3,
        last=Raw(pack(ops.SqlRun(steps=[ops.SqlStep(sql="DELETE FROM t")]))),
    ),
    "lease.rollback": wire.LeaseRollback(ask=-4, lease=4),
    "interrupt": wire.Interrupt(number=-3),
    "status": wire.StatusRequest(ask=-1),
    "drain": wire.Drain(ask=-1),
    "handoff": wire.Handoff(ask=-1, python="python3"),
    "handoff.full": wire.Handoff(
        ask=-2, python="/opt/new/bin/python", build="0.2.0+0123456789ab", allow_older=True,
        wait=False,
    ),
    "subscribe": wire.Subscribe(after=43),
    "subscribe.defaults": wire.Subscribe(),
}  # fmt: skip

ROWS = ops.SqlResult(
    columns=["n", "text", "blob", "real", "nothing", "flag"],
    rows=[
        [-1, TEXT, Blob(b"\x00\xff"), 0.5, None, True],
        [2**63 - 1, "", Blob(b""), -0.0, None, 0],
    ],
    rowcount=2, lastrowid=7,
)  # fmt: skip

SERVER_MESSAGES: dict[str, Struct] = {
    "welcome": WELCOME,
    "welcome.again": msgspec.structs.replace(WELCOME, epoch=8, pid=4001, commit_no=43),
    "welcome.full": msgspec.structs.replace(
        WELCOME, phase="recovering", features=["x-one"],
        limits=wire.Limits(window=8, frame_bytes=65536),
    ),
    "welcome.not-ready": msgspec.structs.replace(
        WELCOME, phase="migrating 40%", epoch=0, file_id=b"", commit_no=0, ready=False
    ),
    "welcome.defaults": msgspec.structs.replace(WELCOME, commit_no=0),
    "reject": wire.Reject(code="protocol", message="no common protocol"),
    "reject.newer": wire.Reject(code="protocol", message=TEXT, oldest=2, newest=5),
    "reject.words": wire.Reject(
        code="not-a-database", message="file is not a database: state.db",
        words="file is not a database",
    ),
    "ok.1": wire.Ok(seq=1, commit_no=42, result=Raw(pack(True))),
    "ok.2": wire.Ok(seq=2, commit_no=43, result=Raw(pack(1))),
    "ok.no-result": wire.Ok(seq=3, commit_no=44),
    "ok.nil": wire.Ok(seq=3, commit_no=44, result=Raw(pack(None))),
    "ok.upkeep": wire.Ok(seq=5, commit_no=0),
    "ok.pruned": wire.Ok(seq=6, commit_no=45, result=Raw(pack(ops.Pruned(ids=["a", TEXT])))),
    "ok.pruned.more": wire.Ok(
        seq=6, commit_no=45, result=Raw(pack(ops.Pruned(ids=[], more=True)))
    ),
    "ok.continued": wire.Ok(
        seq=7, commit_no=46, result=Raw(pack(ops.Continued(id="s2", title="plan #2")))
    ),
    "ok.rows": wire.Ok(seq=8, commit_no=47, result=Raw(pack(ROWS))),
    "ok.route": wire.Ok(
        seq=9, commit_no=48, result=Raw(pack(ops.Route(entry='{"session_id": "s1"}')))
    ),
    "ok.route.reset": wire.Ok(
        seq=9, commit_no=48, result=Raw(pack(ops.Route(
            entry='{"session_id": "s1"}', outcome="reset", reason="idle", old_id="s0"
        ))),
    ),
    "ok.once": wire.Ok(seq=10, commit_no=49, result=Raw(pack(ops.Once(id=5, appended=False)))),
    "ok.turn": wire.Ok(
        seq=11, commit_no=50, result=Raw(pack(ops.Turn(token=7, root="s0", session_id="s1")))
    ),
    "ok.rows.none": wire.Ok(seq=8, commit_no=47, result=Raw(pack(ops.SqlResult()))),
    "failed": wire.Failed(
        seq=3, code="title-in-use", message="Title 'taken' is already in use by session s0",
        words="Title 'taken' is already in use by session s0",
    ),
    "failed.defaults": wire.Failed(seq=3, code="deadline", message=""),
    "failed.unknown": wire.Failed(
        seq=9, code="unknown", message="the writer has stopped: disk I/O error",
        executed="unknown", words="disk I/O error",
    ),
    "failed.ask": wire.Failed(seq=-1, code="index-behind", message="indexed 1 of 2 in time"),
    "failed.behind": wire.Failed(
        seq=-1, code="index-behind", message="indexed 1 of 2 in time", done=1, total=2
    ),
    "goaway": wire.GoAway(last_seq=3, reason="SIGTERM"),
    "done": wire.Done(ask=-1),
    "done.nil": wire.Done(ask=-2, result=Raw(pack(None))),
    "done.rows": wire.Done(ask=-3, result=Raw(pack(ROWS))),
    "status.reply": wire.StatusReply(ask=-1, status='{"pid": 4000, "phase": "serving"}'),
    "changed": wire.Changed(commit_no=43, op="message.append", session_id="s1"),
    "changed.no-session": wire.Changed(commit_no=44, op="meta.set"),
    "changed.foreign": wire.Changed(),
    "changed.agents": wire.Changed(
        commit_no=45, op="agents.put", table="memories", agent_id="main"
    ),
    "gap": wire.Gap(after=43, through=20000),
}  # fmt: skip

ROW = ops.MessageRow(role="assistant", timestamp=TIME)
FULL_ROW = ops.MessageRow(
    role="tool", timestamp=TIME, content=Blob(b"\x00\xffbytes"), tool_call_id="call-1",
    tool_calls='[{"id": "call-1"}]', tool_name="grep", token_count=12, finish_reason="stop",
    reasoning=TEXT, reasoning_content="", reasoning_details="[]", codex_reasoning_items="[]",
    codex_message_items="[]", calls=1,
)  # fmt: skip

FULL_SESSION = ops.SessionRow(
    id="s1", source="cli", started_at=TIME, user_id="u1", model="m", model_config="{}",
    system_prompt=TEXT, parent_session_id="s0", ended_at=TIME + 60, end_reason="cli_close",
    input_tokens=1, output_tokens=200, cache_read_tokens=70000, cache_write_tokens=2**32,
    reasoning_tokens=5, billing_provider="p", billing_base_url="https://example.org",
    billing_mode="metered", estimated_cost_usd=0.125, actual_cost_usd=0.25, cost_status="exact",
    cost_source="api", pricing_version="v1", title=TEXT, api_call_count=1,
)  # fmt: skip

CHAT = "agent:main:telegram:dm:100"
ENTRY = '{"session_key": "agent:main:telegram:dm:100", "session_id": "s1"}'

OPERATIONS: dict[str, ops.Operation[Any]] = {
    "session.create": ops.SessionCreate(id="s1", source="cli", started_at=TIME),
    "session.create.full": ops.SessionCreate(
        id=TEXT, source="telegram", started_at=0.0, user_id="u1", model="m", model_config="{}",
        system_prompt=TEXT, parent_session_id="s0",
    ),
    "session.create.odd-types": ops.SessionCreate(
        id=7, source=True, started_at=-1.5, user_id=2.5, model=-(2**63), model_config=2**63 - 1
    ),
    "session.end": ops.SessionEnd(id="s1", ended_at=TIME),
    "session.end.full": ops.SessionEnd(id="s1", ended_at=TIME, end_reason="user_exit"),
    "session.reopen": ops.SessionReopen(id="s1"),
    "session.prompt": ops.SessionPrompt(id="s1"),
    "session.prompt.full": ops.SessionPrompt(id="s1", system_prompt=TEXT),
    "session.tokens": ops.SessionTokens(id="s1", started_at=TIME),
    "session.tokens.full": ops.SessionTokens(
        id="s1", started_at=TIME, absolute=True, input_tokens=1, output_tokens=200,
        cache_read_tokens=70000, cache_write_tokens=2**32, reasoning_tokens=5, api_call_count=1,
        estimated_cost_usd=0.125, actual_cost_usd=0.25, cost_status="exact", cost_source="api",
        pricing_version="v1", billing_provider="p", billing_base_url="https://example.org",
        billing_mode="metered", model="m",
    ),
    "session.title": ops.SessionTitle(id="s1"),
    "session.title.full": ops.SessionTitle(id="s1", title=TEXT),
    "session.title.move": ops.SessionTitle(id="s1", title=TEXT, move=True),
    "session.continue": ops.SessionContinue(old="s1", new="s2", now=TIME),
    "session.delete": ops.SessionDelete(id="s1"),
    "session.delete_if": ops.SessionDeleteIf(id="s1", messages=0),
    "session.delete_if.full": ops.SessionDeleteIf(id="s1", messages=2, newest=7),
    "sessions.prune": ops.SessionsPrune(started_before=TIME),
    "sessions.prune.full": ops.SessionsPrune(started_before=TIME, source="cron", max_rows=1),
    "sessions.prune_ghosts": ops.SessionsPruneGhosts(started_before=TIME),
    "sessions.finalize_orphans": ops.SessionsFinalizeOrphans(now=TIME, started_before=TIME - 60),
    "session.title_default": ops.SessionTitleDefault(id="s1", title=TEXT),
    "title.queue": ops.TitleQueue(id="s1"),
    "title.queue.full": ops.TitleQueue(id="s1", title=TEXT),
    "session.archive": ops.SessionArchive(id="s1", now=TIME),
    "session.archive.full": ops.SessionArchive(id="s1", now=TIME, archived=False),
    "sessions.remove": ops.SessionsRemove(ids=["s1"]),
    "sessions.remove.full": ops.SessionsRemove(ids=["s1", "s2"], max_rows=1),
    "message.append": ops.MessageAppend(session_id="s1", message=ROW),
    "message.append.full": ops.MessageAppend(session_id="s1", message=FULL_ROW),
    "messages.replace": ops.MessagesReplace(session_id="s1", messages=[]),
    "messages.replace.full": ops.MessagesReplace(session_id="s1", messages=[ROW, FULL_ROW]),
    "session.import": ops.SessionImport(
        session=ops.SessionRow(id="s1", source="cli", started_at=TIME), messages=[], now=TIME
    ),
    "session.import.full": ops.SessionImport(
        session=FULL_SESSION, messages=[ROW, FULL_ROW], now=TIME, archived=True
    ),
    "messages.clear": ops.MessagesClear(session_id="s1"),
    "meta.set": ops.MetaSet(key="k"),
    "meta.set.full": ops.MetaSet(key="k", value=TEXT),
    "handoff.request": ops.HandoffRequest(id="s1"),
    "handoff.request.full": ops.HandoffRequest(id="s1", platform="telegram"),
    "handoff.claim": ops.HandoffClaim(id="s1"),
    "handoff.finish": ops.HandoffFinish(id="s1", state="completed"),
    "handoff.finish.full": ops.HandoffFinish(id="s1", state="failed", error=TEXT),
    "topics.migrate": ops.TopicsMigrate(),
    "topics.enable": ops.TopicsEnable(chat_id="c", user_id="u", now=TIME),
    "topics.enable.full": ops.TopicsEnable(
        chat_id="c", user_id="u", now=TIME, has_topics_enabled=True,
        allows_users_to_create_topics=False,
    ),
    "topics.disable": ops.TopicsDisable(chat_id="c", now=TIME),
    "topics.disable.full": ops.TopicsDisable(chat_id="c", now=TIME, clear_bindings=False),
    "topics.bind": ops.TopicsBind(
        chat_id="c", thread_id="t", user_id="u", session_key="k", session_id="s1",
        managed_mode="auto", now=TIME,
    ),
    "session.end.turn": ops.SessionEnd(id="s1", ended_at=TIME, turn=7),
    "session.continue.turn": ops.SessionContinue(old="s1", new="s2", now=TIME, turn=7),
    "message.append.turn": ops.MessageAppend(session_id="s1", message=ROW, turn=7),
    "messages.replace.turn": ops.MessagesReplace(session_id="s1", messages=[ROW], turn=7),
    "route.open": ops.RouteOpen(
        scope="/home/sessions", key=CHAT, now=TIME, now_text="2026-03-02T10:00:00", new_id="s1",
        entry=ENTRY, peer=ops.Peer(source="telegram"),
    ),
    "route.open.full": ops.RouteOpen(
        scope="/home/sessions", key=CHAT, now=TIME, now_text="2026-03-02T10:00:00", new_id="s1",
        entry=ENTRY, peer=ops.Peer(
            source="telegram", user_id="u1", chat_id="100", chat_type="dm", thread_id="7",
            display_name=TEXT, origin_json="{}", profile_name="coder",
        ), idle_before=TIME - 60, daily_before=TIME - 600, fresh_after="2026-03-02T09:00:00",
        held=True, force_new=True, seen="s0", gone=6, turn=7,
    ),
    "route.change": ops.RouteChange(scope="/home/sessions", key=CHAT, set="{}"),
    "route.change.full": ops.RouteChange(
        scope="/home/sessions", key=CHAT, set='{"suspended": true}', now=TIME, expect="s1",
        unless=["suspended"], turn=7,
    ),
    "route.reset": ops.RouteReset(
        scope="/home/sessions", key=CHAT, new_id="s2", now=TIME, now_text="2026-03-02T10:00:00"
    ),
    "route.reset.full": ops.RouteReset(
        scope="/home/sessions", key=CHAT, new_id="s2", now=TIME, now_text="2026-03-02T10:00:00",
        display_name=TEXT, reason="idle", turn=7,
    ),
    "route.switch": ops.RouteSwitch(
        scope="/home/sessions", key=CHAT, target="s2", now=TIME, now_text="2026-03-02T10:00:00"
    ),
    "route.switch.turn": ops.RouteSwitch(
        scope="/home/sessions", key=CHAT, target="s2", now=TIME, now_text="2026-03-02T10:00:00",
        turn=7,
    ),
    "route.claim": ops.RouteClaim(
        scope="/home/sessions", key=CHAT, session_id="s1", now=TIME, reason="idle", before=TIME - 60
    ),
    "route.claim.turn": ops.RouteClaim(
        scope="/home/sessions", key=CHAT, session_id="s1", now=TIME, reason="idle",
        before=TIME - 60, turn=7,
    ),
    "routes.mark": ops.RoutesMark(
        scope="/home/sessions", since=TIME, now_text="2026-03-02T10:00:00",
        reason="restart_interrupted",
    ),
    "routes.prune": ops.RoutesPrune(scope="/home/sessions", before=TIME),
    "routes.prune.full": ops.RoutesPrune(scope="/home/sessions", before=TIME, keep=[CHAT]),
    "routes.write": ops.RoutesWrite(scope="/home/sessions", now=TIME),
    "routes.write.full": ops.RoutesWrite(
        scope="/home/sessions", now=TIME, put={CHAT: ENTRY}, times={CHAT: TIME}, drop=["k2"],
        expect={CHAT: "s0"}, only_missing=True,
    ),
    "message.once": ops.MessageOnce(session_id="s1", message_key="tg-5", message=ROW),
    "message.once.turn": ops.MessageOnce(
        session_id="s1", message_key="tg-5", message=FULL_ROW, turn=7
    ),
    "session.reopen.turn": ops.SessionReopen(id="s1", turn=7, at=TIME),
    "session.prompt.turn": ops.SessionPrompt(id="s1", system_prompt=TEXT, turn=7, at=TIME),
    "session.tokens.turn": ops.SessionTokens(id="s1", started_at=TIME, input_tokens=1, turn=7),
    "session.title.turn": ops.SessionTitle(id="s1", title=TEXT, turn=7, at=TIME),
    "message.append.turn-at": ops.MessageAppend(session_id="s1", message=ROW, turn=7, at=TIME),
    "messages.replace.turn-at": ops.MessagesReplace(
        session_id="s1", messages=[], turn=7, at=TIME
    ),
    "message.once.turn-at": ops.MessageOnce(
        session_id="s1", message_key="tg-5", message=ROW, turn=7, at=TIME
    ),
    "route.change.turn-at": ops.RouteChange(scope="s", key="k", set="{}", turn=7, at=TIME),
    "messages.clear.turn": ops.MessagesClear(session_id="s1", turn=7, at=TIME),
    "transcript.mark": ops.TranscriptMark(
        folder="/home/sessions", session_id="s1", last_id=9, lines=3, bytes=1000
    ),
    "turn.take": ops.TurnTake(
        session_id="s1", holder="telegram", kind="turn", now=TIME, seconds=1800.0
    ),
    "turn.take.full": ops.TurnTake(
        session_id="s1", holder="telegram", kind="flush", now=TIME, seconds=1800.0, pid=4242,
        started=TIME - 60, place="host/4026531836", gone=6,
    ),
    "turn.take.ticket": ops.TurnTake(
        session_id="s1", holder="telegram", kind="turn", now=TIME, seconds=1800.0, ticket=3
    ),
    "turn.wait": ops.TurnWait(
        session_id="s1", holder="telegram", kind="turn", now=TIME, seconds=20.0, pid=4242,
        started=TIME - 60, place="host/4026531836",
    ),
    "turn.leave": ops.TurnLeave(ticket=3),
    "turn.renew": ops.TurnRenew(token=7, now=TIME, seconds=1800.0),
    "turn.release": ops.TurnRelease(token=7),
    "turn.steal": ops.TurnSteal(session_id="s1"),
    "sql.statement": SELECT,
    "sql.statement.full": ops.SqlStatement(
        sql="SELECT ?, ?, ?", parameters=[None, Blob(b"\x00"), TEXT]
    ),
    "sql.statement.named": ops.SqlStatement(sql="SELECT :a", named={"a": Blob(b""), "b": 1}),
    "sql.run": ops.SqlRun(steps=[ops.SqlStep(sql="SELECT 1")]),
    "sql.run.full": ops.SqlRun(
        steps=[
            ops.SqlStep(sql="INSERT INTO t VALUES (?)", parameters=[Blob(b"\xff", text=True)]),
            ops.SqlStep(sql="INSERT INTO t VALUES (:a)", named={"a": TEXT}),
            ops.SqlStep(sql="INSERT INTO t VALUES (?)", rows=[[1], [None]]),
            ops.SqlStep(sql="INSERT INTO t VALUES (:a)", named_rows=[{"a": 0.5}]),
        ],
        settings={"foreign_keys": 1, "secure_delete": "fast"}, lastrowid=2**53 + 1,
    ),
    "sql.run.changes": ops.SqlRun(steps=[ops.SqlStep(sql="SELECT changes()")], changes=3),
    "sql.lease": ops.SqlLease(lease=4),
    "stage.part": ops.StagePart(key=1, part=0, data=b""),
    "stage.part.full": ops.StagePart(key=1, part=1, data=bytes(range(256))),
    "stage.apply": ops.Staged(key=1, parts=2),
    "upkeep.vacuum": ops.Vacuum(),
    "index.merge": ops.IndexMerge(table="messages_fts"),
    "index.merge.full": ops.IndexMerge(table="messages_fts", begin=True, pages=16),
    "rows.copy": ops.RowsCopy(table="messages"),
    "rows.copy.full": ops.RowsCopy(
        table="sessions", columns=["id", "title"], rows=[["s1", TEXT], ["s2", Blob(b"\x00")]],
        update=True, clear=True, remove=["s3"], bookmark={"through": "7"},
        expect={"through": ""}, last_id=2**53 + 1,
    ),
}  # fmt: skip


NOW, LATER = "2026-01-31T09:00:00.000Z", "2026-01-31T09:10:00.000Z"
SECRET = {"name": "TOKEN"}

AGENT_OPERATIONS: dict[str, ops.Operation[Any]] = {
    "agents.put": agents.AgentsPut(table="meta", rows=[{"key": "k", "value": TEXT}]),
    "agents.put.full": agents.AgentsPut(
        table="instructions", rows=[{"key": "rules", "content": "", "updated_at": NOW}],
        agent_id="main", mode="upsert", returning=True,
    ),
    "agents.put.sealed": agents.AgentsPut(
        table="agent_secrets", rows=[SECRET], agent_id="main", key_id="0123456789abcdef"
    ),
    "agents.patch": agents.AgentsPatch(table="agents", key={}, set={"name": None}),
    "agents.patch.full": agents.AgentsPatch(
        table="schedules", key={"schedule_id": "s1"}, set={"next_run_at": NOW}, agent_id="main",
        add={"run_count": 1}, expect={"status": "active"}, missing="nothing",
    ),
    "agents.delete": agents.AgentsDelete(table="meta", key={"key": "k"}),
    "agents.delete.full": agents.AgentsDelete(table="agent_secrets", key=SECRET, agent_id="main"),
    "agents.replace": agents.AgentsReplace(
        table="agent_secrets", key={}, rows=[SECRET], agent_id="main"
    ),
    "agents.replace.sealed": agents.AgentsReplace(
        table="agent_secrets", key={}, rows=[SECRET], agent_id="main", key_id="0123456789abcdef"
    ),
    "agents.compare": agents.AgentsCompare(items=[agents.Comparison(
        table="agent_secrets", agent_id="main", key=SECRET, column="value_ciphertext", old="a:b:c",
        new="d:e:f",
    )]),
    "agents.compare.full": agents.AgentsCompare(items=[agents.Comparison(
        table="agent_secrets", agent_id="main", key=SECRET, column="value_ciphertext", old="a:b:c",
        new="d:e:f",
    )], complete=True),
    "agents.compare.keys": agents.AgentsCompare(
        items=[], complete=True, old_key_id="0123456789abcdef", new_key_id="fedcba9876543210"
    ),
    "agents.provision": agents.AgentsProvision(agent_id="main", now=NOW, agent={"name": TEXT}),
    "agents.provision.full": agents.AgentsProvision(
        agent_id="main", now=NOW, agent={"workspace_dir": "/srv/main"},
        sessions=[{"session_id": "inbox"}], sandboxes=[{"alias": "default"}],
        channels=[{"channel_type": "telegram"}], instructions=[{"key": "rules"}], owner="u1",
    ),
    "agents.provision.sealed": agents.AgentsProvision(
        agent_id="main", now=NOW, agent={}, channels=[], key_id="0123456789abcdef"
    ),
    "agents.remove": agents.AgentsRemove(agent_id="main"),
    "agents.own": agents.AgentsOwn(agent_id="main", user_id="u1", now=NOW),
    "agents.document": agents.AgentsDocument(
        agent_id="main", document="config", path="model.name", value="1", now=NOW
    ),
    "agents.sweep": agents.AgentsSweep(agent_id="main", older_than=NOW),
    "agents.append": agents.AgentsAppend(agent_id="main", session_id="s1", entries=["{}"]),
    "agents.append.full": agents.AgentsAppend(
        agent_id="main", session_id="s1", entries=["{}"], message_id="m1", count=1, preview=TEXT,
        user_id="u1",
    ),
    "agents.merge_memory": agents.AgentsMergeMemory(agent_id="main", memory_key="k", set={}),
    "agents.merge_memory.full": agents.AgentsMergeMemory(
        agent_id="main", memory_key="k", set={"content": TEXT}, metadata="{}"
    ),
    "agents.fanout": agents.AgentsFanout(mode="remove", key="rules", now=NOW),
    "agents.fanout.full": agents.AgentsFanout(
        mode="set", key="rules", now=NOW, content=TEXT, agent_id="main"
    ),
    "agents.identify": agents.AgentsIdentify(
        channel="telegram", channel_user_id="7", user_id="u1", now=NOW
    ),
    "agents.identify.full": agents.AgentsIdentify(
        channel="telegram", channel_user_id="7", user_id="u1", now=NOW, name=TEXT
    ),
    "agents.link": agents.AgentsLink(
        user_id="u1", channel="telegram", channel_user_id="7", now=NOW
    ),
    "agents.merge": agents.AgentsMerge(from_user_id="u2", into_user_id="u1"),
    "agents.promote": agents.AgentsPromote(agent_id="main", user_id="u1", now=NOW),
    "agents.claim": agents.AgentsClaim(now=NOW, worker="w1", expires_at=LATER),
    "agents.claim.full": agents.AgentsClaim(
        now=NOW, worker="w1", expires_at=LATER, limit=1, agent_id="main"
    ),
    "agents.renew": agents.AgentsRenew(
        agent_id="main", run_id=7, worker="w1", now=NOW, expires_at=LATER
    ),
    "agents.complete": agents.AgentsComplete(
        agent_id="main", run_id=7, worker="w1", status="completed", now=NOW
    ),
    "agents.complete.full": agents.AgentsComplete(
        agent_id="main", run_id=7, worker="w1", status="postponed", now=NOW, error=TEXT, until=LATER
    ),
    "agents.plan": agents.AgentsPlan(now=NOW),
    "agents.expire": agents.AgentsExpire(now=NOW),
    "agents.copy": agents.AgentsCopy(table="meta", rows=[{"key": "k", "value": TEXT}]),
}  # fmt: skip

SUCCESSION: dict[str, tuple[str, Struct]] = {
    "ready": ("successor", handoff.Ready(build="0.2.0+abc", pid=4343)),
    "ready.range": ("successor", handoff.Ready(build="0.2.0", pid=4343, oldest=1, newest=3)),
    "phase": ("successor", handoff.TakingOver(phase="migrating 40%")),
    "serving": ("successor", handoff.Serving(epoch=8)),
    "settled": ("successor", handoff.Settled()),
    "failed": ("successor", handoff.CannotTakeOver(code="newer-file", message=TEXT)),
    "take-over": ("predecessor", handoff.TakeOver(epoch=7, commit_no=2**53 + 1)),
    "take-over.pinned": (
        "predecessor", handoff.TakeOver(epoch=7, commit_no=0, pinned=True)
    ),
}  # fmt: skip


def _with_unknown_fields(message: Struct) -> bytes:
    """What a newer sender might send: fields that nobody knows yet, before, between and after."""
    known = msgspec.msgpack.decode(pack(message))
    return _framed(pack({"future": [1, {"x": None}], **known, "later": b"\x00"}))


def _framed(body: bytes) -> bytes:
    return len(body).to_bytes(framing.HEADER_BYTES, "big") + body


def _backwards(message: Struct) -> bytes:
    known = msgspec.msgpack.decode(pack(message))
    return _framed(pack(dict(reversed(known.items()))))


def _newer_operation() -> bytes:
    newer = {"op": "meta.set", "value": TEXT, "future": {"deep": [[]]}, "key": "k"}
    return framing.frame(request(1, newer))


def _newer_welcome() -> bytes:
    known = msgspec.msgpack.decode(pack(WELCOME))
    return _framed(pack({**known, "limits": {"future_limit": 5}, "later": True}))


def _vectors() -> Iterator[Vector]:
    for name, message in CLIENT_MESSAGES.items():
        yield Vector(name, "client", framing.frame(message))
    for name, message in SERVER_MESSAGES.items():
        yield Vector(name, "actor", framing.frame(message))
    for name, operation in {**OPERATIONS, **AGENT_OPERATIONS}.items():
        yield Vector(f"op.{name}", "client", framing.frame(request(1, operation)))
    for name, (side, message) in SUCCESSION.items():
        yield Vector(f"successor.{name}", side, framing.frame(message))
    newer_ready = _with_unknown_fields(SUCCESSION["ready"][1])
    yield Vector("newer.ready", "successor", newer_ready, same_as="successor.ready")
    yield Vector("newer.hello", "client", _with_unknown_fields(HELLO), same_as="hello")
    yield Vector("newer.welcome", "actor", _newer_welcome(), same_as="welcome")
    yield Vector("newer.ok", "actor", _with_unknown_fields(SERVER_MESSAGES["ok.1"]), same_as="ok.1")
    yield Vector("newer.operation", "client", _newer_operation(), same_as="op.meta.set.full")
    yield Vector("any-order.hello", "client", _backwards(HELLO), same_as="hello")
    for name, operation in {
        "unknown": {"op": "session.levitate", "id": "s1"},
        "no-tag": {"id": "s1"},
        "missing-field": {"op": "session.end", "id": "s1"},
        "wrong-type": {"op": "session.end", "id": "s1", "ended_at": "noon"},
        "not-a-map": 7,
    }.items():
        data = framing.frame(request(1, operation))
        yield Vector(f"bad-operation.{name}", "client", data, error="operation")
    for name, body in {
        "empty": b"",
        "not-a-map": pack([1, 2]),
        "no-tag": pack({"seq": 1}),
        "unknown-tag": pack({"t": "levitate"}),
        "missing-field": pack({"t": "request", "seq": 1}),
        "wrong-type": pack({"t": "request", "seq": 1.0, "operation": {"op": "topics.migrate"}}),
        "key-not-text": pack({"t": "bye", 1: 2}),
        "bad-utf-8": b"\x82\xa1t\xa5hello\xa4name\xa2\xc3\x28",
        "cut-inside": pack(HELLO)[:-1],
        "trailing-bytes": pack(wire.Bye()) + b"\xc0",
    }.items():
        yield Vector(f"bad-frame.{name}", "client", _framed(body), error="frame")
    too_long = (wire.Limits().frame_bytes + 1).to_bytes(framing.HEADER_BYTES, "big")
    yield Vector("bad-frame.too-long", "client", too_long, error="frame")


VECTORS: dict[str, Vector] = {vector.name: vector for vector in _vectors()}


# --- index and schema ------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """*value* as JSON can hold it: every field, defaults too; bytes as ``{"$bin": hex}``."""
    if isinstance(value, Struct):
        config = type(value).__struct_config__
        tag = {config.tag_field: config.tag} if config.tag_field else {}
        fields = zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
        return tag | {key: plain(getattr(value, name)) for key, name in fields}
    if isinstance(value, Raw):
        return plain(msgspec.msgpack.decode(value))
    if isinstance(value, bytes):
        return {"$bin": value.hex()}
    if isinstance(value, list):
        return [plain(one) for one in value]
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    return value


def _entry(vector: Vector) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": vector.name, "file": vector.file, "sent_by": vector.side}
    if vector.error == "frame":
        return entry | {"error": "frame"}
    message = vector.message
    entry["message"] = type(message).__name__
    if vector.same_as:
        entry["same_as"] = vector.same_as
    value = plain(message)
    if vector.error == "operation":
        return entry | {"error": "operation", "value": value}
    if isinstance(message, wire.Request):
        operation = framing.decode_operation(message.operation)
        entry["operation"] = type(operation).__name__
        value["operation"] = plain(operation)
    elif isinstance(message, wire.LeaseRun):
        value["statement"] = plain(framing.decode_operation(message.statement))
    return entry | {"value": value}


def _index() -> bytes:
    entries = ",\n".join(
        json.dumps(_entry(vector), ensure_ascii=True) for vector in VECTORS.values()
    )
    return f'{{"protocol": {wire.PROTOCOL}, "vectors": [\n{entries}\n]}}\n'.encode()


def _describable(struct: type[Struct]) -> type[Struct]:
    """The same struct for the schema, which cannot show ``Raw`` as a default."""
    if all(not isinstance(field.default, Raw) for field in msgspec.structs.fields(struct)):
        return struct
    fields: list[Any] = []
    for f in msgspec.structs.fields(struct):
        kind, default = (Any, None) if isinstance(f.default, Raw) else (f.type, f.default)
        if f.default_factory is not NODEFAULT:
            default = msgspec.field(default_factory=f.default_factory)
        fields.append(
            (f.encode_name, kind) if default is NODEFAULT else (f.encode_name, kind, default)
        )
    config = struct.__struct_config__
    return msgspec.defstruct(
        struct.__name__, fields, namespace={"__doc__": struct.__doc__}, kw_only=True,
        tag_field=config.tag_field, tag=config.tag,
    )  # fmt: skip


def _schema() -> bytes:
    groups = {"client": CLIENT, "actor": SERVER, "operations": ALL_OPERATIONS}
    structs = [_describable(one) for group in (*groups.values(), PARTS) for one in group]
    results = [ops.result_type(operation) for operation in ALL_OPERATIONS]
    shown, components = msgspec.json.schema_components(
        [*structs, *results], ref_template="#/$defs/{name}"
    )
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"hermes-actor protocol {wire.PROTOCOL}",
        "description": "Bodies of frames and operations, as the JSON that corresponds to their"
        " MessagePack. contentEncoding base64 stands for the type bin. See README.md.",
        **{
            name: {"anyOf": [{"$ref": f"#/$defs/{one.__name__}"} for one in group]}
            for name, group in groups.items()
        },
        "results": {
            operation.__struct_config__.tag: result
            for operation, result in zip(
                ALL_OPERATIONS, shown[len(structs) :], strict=True
            )
        },
        "$defs": dict(sorted(components.items())),
    }  # fmt: skip
    return (json.dumps(schema, indent=1, ensure_ascii=True) + "\n").encode()


# --- the marked parts of the text ------------------------------------------------------------


def _type_name(kind: Any) -> str:
    """A type in the words of README.md."""
    if kind == Scalar:
        return "scalar"
    if kind == Value:
        return "value"
    names = {str: "str", bool: "bool", int: "int", float: "float", bytes: "bin", Raw: "any"}
    if kind in names:
        return names[kind]
    if kind is type(None):
        return "nil"
    if isinstance(kind, type) and issubclass(kind, Struct):
        return kind.__name__
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is list:
        return f"list of {_type_name(arguments[0])}"
    if origin is dict:
        return f"map of {_type_name(arguments[1])}"
    if origin is typing.Literal:
        return " or ".join(json.dumps(one) for one in arguments)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_type_name(one) for one in arguments)
    if hasattr(kind, "__metadata__"):
        most = kind.__metadata__[0].max_length
        return _type_name(kind.__origin__) + (f" (up to {most:,})" if most else "")
    raise TypeError(f"{kind} has no name in the text")


def _field(field: msgspec.structs.FieldInfo) -> str:
    default = field.default
    if field.default_factory is not NODEFAULT:
        default = field.default_factory()
    shown = f"`{field.encode_name}` {_type_name(field.type)}"
    if default is NODEFAULT:
        return shown
    if isinstance(default, Raw):
        default = None
    if isinstance(default, bytes):
        return f"{shown} = empty"
    return f"{shown} = {'nil' if default is None else json.dumps(default)}"


def _fields(struct: type[Struct]) -> str:
    return ", ".join(_field(field) for field in msgspec.structs.fields(struct))


def _summary(struct: type[Struct]) -> str:
    """The first paragraph of a docstring, on one line."""
    return " ".join((struct.__doc__ or "").strip().partition("\n\n")[0].split())


def _messages(group: tuple[type[Struct], ...]) -> str:
    rows = ["| `t` | message | fields |", "|---|---|---|"]
    rows += [
        f"| `{one.__struct_config__.tag}` | {one.__name__} | {_fields(one)} |" for one in group
    ]
    return "\n".join(rows)


def _parts() -> str:
    rows = ["| map | fields | meaning |", "|---|---|---|"]
    rows += [f"| {one.__name__} | {_fields(one)} | {_summary(one)} |" for one in PARTS]
    return "\n".join(rows).replace("``", "`")


def _operations() -> str:
    rows = ["| `op` | fields | result | meaning |", "|---|---|---|---|"]
    for one in ALL_OPERATIONS:
        tag, result = one.__struct_config__.tag, _type_name(ops.result_type(one))
        rows.append(f"| `{tag}` | {_fields(one)} | {result} | {_summary(one)} |")
    return "\n".join(rows).replace("``", "`")


CONVERSATION: tuple[tuple[str, str], ...] = (
    ("hello", "A client connects and introduces itself."),
    ("welcome", "The actor takes it. The newest change in the file is number 41."),
    ("request.1", "The first request: create a session. `after` is the 41 just learnt."),
    ("request.2", "The second follows at once; it does not wait for the first answer."),
    ("ok.1", "The first is committed as change 42, with result true: a row was inserted."),
    ("hello", "The connection breaks. The client connects again under the same id."),
    (
        "welcome.again",
        "Another actor answers: the epoch is higher. `commit_no` 43 hints that something came"
        " after 42; whether it was request 2, the client cannot know.",
    ),
    ("request.2", "So it sends all that is unanswered again, byte for byte."),
    ("ok.2", "Request 2 had been applied as change 43. This is its receipt: message id 1."),
    (
        "request.3",
        "The next request tells that the answers up to 2 are here, so their receipts may go.",
    ),
    ("failed", "It is refused. `executed` is absent, which means its default, `no`."),
    ("status", "An ask has a negative number."),
    ("status.reply", "Its answer carries the same number."),
    ("bye", "Nothing is unanswered. The client leaves for good and closes."),
)


def _conversation() -> str:
    steps = []
    for number, (name, words) in enumerate(CONVERSATION, 1):
        vector = VECTORS[name]
        arrow = "client → actor" if vector.side == "client" else "actor → client"
        entry = _entry(vector)
        on_the_wire = plain(msgspec.msgpack.decode(vector.data[framing.HEADER_BYTES :]))
        shown = json.dumps(on_the_wire, ensure_ascii=False)
        steps.append(
            f"**{number}. {arrow}: {entry['message']}** (`{vector.file}`). {words}\n\n"
            f"```json\n{shown}\n```\n\n```text\n{_hex(vector.data)}\n```"
        )
    return "\n\n".join(steps)


def _hex(data: bytes) -> str:
    lines = []
    for start in range(0, len(data), 16):
        piece = data[start : start + 16]
        letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in piece)
        lines.append(f"{start:04x}  {piece.hex(' '):<47}  {letters}")
    return "\n".join(lines)


def _readme(text: str) -> str:
    parts = {
        "client messages": _messages(CLIENT),
        "actor messages": _messages(SERVER),
        "inner maps": _parts(),
        "operations": _operations(),
        "conversation": _conversation(),
    }
    for name, content in parts.items():
        begin, end = f"<!-- generated: {name} -->", f"<!-- end: {name} -->"
        pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
        if len(pattern.findall(text)) != 1:
            raise ValueError(f"README.md must have one place for: {name}")
        block = f"{begin}\n\n{content}\n\n{end}"
        text = pattern.sub(lambda _found, block=block: block, text)
    return text


# --- writing ---------------------------------------------------------------------------------


def generated() -> dict[str, bytes]:
    """Everything that this script writes: path below its folder → content."""
    files = {f"{FOLDER}/{vector.file}": vector.data for vector in VECTORS.values()}
    readme = (HERE / "README.md").read_text("utf-8")
    return files | {
        f"{FOLDER}/index.json": _index(),
        "schema.json": _schema(),
        "README.md": _readme(readme).encode(),
    }


def main(arguments: list[str]) -> str | None:
    """Write, or with ``--check`` only look. Returns what is wrong."""
    files = generated()
    stale = [
        path
        for path, content in files.items()
        if not (HERE / path).exists() or (HERE / path).read_bytes() != content
    ]
    known = {f"{FOLDER}/{file.name}" for file in (HERE / FOLDER).glob("*")}
    left_over = sorted(known - set(files))
    if left_over:
        return f"no vector is named like this any more: {', '.join(left_over)}"
    if "--check" in arguments:
        return f"not current: {', '.join(stale)}" if stale else None
    changed = [path for path in stale if path.endswith(".bin") and (HERE / path).exists()]
    if changed:
        return f"golden frames never change: {', '.join(changed)}"
    for path in stale:
        (HERE / path).parent.mkdir(parents=True, exist_ok=True)
        (HERE / path).write_bytes(files[path])
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
