"""Small workloads, each around one moment at which a loss of power might hurt.

Small, because every write and every sync of them is tried, and because faults of this kind need
few steps and the right place.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
from support.old_files import build

from disks.agent_workload import agent_store
from disks.bench import Bench, Workload
from disks.plain_workload import create_tables, plain_file
from disks.power_cuts import Image
from hermes_actor import limits
from hermes_actor.engine.checkpoint import Action
from hermes_actor.engine.writer import Writer
from hermes_actor.paths import resolve_paths
from hermes_protocol import operations as ops
from hermes_protocol.features import AGENTS, PLAIN, SESSIONS

__all__ = ["WITHOUT_WAL", "WORKLOADS", "append", "create", "prepare", "steady"]

Work = tuple[str, ops.Operation[Any]]

CLIENTS = ("ann", "bob", "cyd")


def create(client: str, session: str | None = None) -> Work:
    return client, ops.SessionCreate(id=session or client, source="cli", started_at=1.0)


def append(client: str, text: str, session: str | None = None) -> Work:
    message = ops.MessageRow(role="user", timestamp=2.0, content=text)
    return client, ops.MessageAppend(session_id=session or client, message=message)


def _text(chance: random.Random, longest: int = 1500) -> str:
    words = ("walrus", "salt", "pepper", "北京烤鸭", "harbour", "lantern")
    return " ".join(chance.choice(words) for _ in range(chance.randrange(1, longest // 8)))


def _batch(chance: random.Random, longest: int = 1500) -> list[Work]:
    count = chance.choice([1, 1, 2, 3, 5])
    return [append(chance.choice(CLIENTS), _text(chance, longest)) for _ in range(count)]


def steady(bench: Bench, batches: int, seed: int = 1, longest: int = 1500) -> None:
    """Sessions, then batches of one to five messages."""
    chance = random.Random(bench.seed + seed)
    bench.do(*map(create, CLIENTS))
    for _ in range(batches):
        bench.do(*_batch(chance, longest))


def first_commit(bench: Bench) -> None:
    """The first commit that a file ever has, and the second."""
    bench.open()
    bench.do(create("ann"), append("ann", "walrus"))
    bench.do(append("ann", "salt"))
    bench.close()


def commits(bench: Bench) -> None:
    bench.open()
    steady(bench, 24)
    bench.close()


def leases(bench: Bench) -> None:
    """Commits of leases that share a sync, between batches and checkpoints."""
    bench.open()
    steady(bench, 1)
    chance = random.Random(bench.seed + 4)
    for turn in range(6):
        count = chance.choice([1, 2, 4])
        bench.leases(*(append(chance.choice(CLIENTS), _text(chance)) for _ in range(count)))
        if turn % 2:
            bench.checkpoint(chance.choice([Action.PASSIVE, Action.TRUNCATE]))
        else:
            bench.do(*_batch(chance))
    bench.leases(append("ann", "last"), append("bob", "last"))
    bench.close()


def after_reset(bench: Bench) -> None:
    """The first commit after a complete checkpoint begins the WAL again, over old frames."""
    bench.open()
    steady(bench, 2)
    chance = random.Random(bench.seed + 2)
    for _ in range(10):
        bench.checkpoint(Action.PASSIVE)
        bench.do(*_batch(chance))
        bench.do(append("ann", "after the reset"))
    bench.close()


def restarts(bench: Bench) -> None:
    bench.open()
    steady(bench, 2)
    chance = random.Random(bench.seed + 3)
    for number in range(8):
        bench.checkpoint(Action.TRUNCATE if number % 2 else Action.RESTART)
        bench.do(*_batch(chance))
        bench.do(*_batch(chance))
    bench.close()


def checkpoints(bench: Bench) -> None:
    """Large checkpoints: many pages on their way into the file."""
    bench.open()
    steady(bench, 8, longest=9000)
    bench.checkpoint(Action.PASSIVE)
    bench.do(append("bob", "between"))
    steady(bench, 4, seed=9, longest=9000)
    bench.checkpoint(Action.TRUNCATE)
    bench.do(append("bob", "last"))
    bench.close()


def indexing(bench: Bench) -> None:
    """Slices of the full-text indexes between batches."""
    bench.open()
    steady(bench, 3, longest=400)
    chance = random.Random(bench.seed + 5)
    for _ in range(6):
        bench.index()
        bench.do(*_batch(chance, 400))
    bench.idle()
    bench.close()


def bulk(bench: Bench) -> None:
    """Chunks of messages that are indexed aside and copied, between batches."""
    limits.BULK_ROWS = 24  # in the process of this workload alone
    bench.open()
    bench.do(*map(create, CLIENTS))
    chance = random.Random(bench.seed + 6)
    for turn in range(4):
        for _ in range(4):
            bench.do(*(append(chance.choice(CLIENTS), _text(chance, 300)) for _ in range(14)))
        bench.bulk()
        if turn == 2:
            bench.index()
            bench.checkpoint()
    bench.close()


def reopening(bench: Bench) -> None:
    """Barrier after barrier, with and without an anchor: the last close unlinks the WAL."""
    for turn in range(5):
        bench.open(anchored=turn % 2 == 0)
        bench.do(create(f"turn {turn}"), append(f"turn {turn}", "walrus"))
        bench.do(append("ann", "again", session=f"turn {turn}"))
        bench.close()


def removal(bench: Bench) -> None:
    """Changes that remove: pages become free, index rows go in the transaction of the change."""
    bench.open()
    steady(bench, 5, longest=3000)
    bench.index()
    rows = [ops.MessageRow(role="user", timestamp=1.0, content=f"new {n}") for n in range(4)]
    bench.do(("ann", ops.MessagesReplace(session_id="ann", messages=rows)))
    bench.do(("bob", ops.MessagesClear(session_id="bob")), append("bob", "salt"))
    bench.do(("cyd", ops.SessionDelete(id="cyd")), ("ann", ops.MetaSet(key="k", value="v")))
    bench.checkpoint()
    bench.do(create("dan"), append("dan", "walrus"))
    bench.close()


def vacuum(bench: Bench) -> None:
    bench.open()
    steady(bench, 3, longest=2500)
    bench.do(("bob", ops.SessionDelete(id="bob")))
    bench.vacuum()
    bench.do(append("ann", "after"))
    bench.close()


def staged(bench: Bench) -> None:
    """A message that comes in parts, and overflow pages."""
    bench.open()
    bench.do(create("ann"))
    _, whole = append("ann", "harbour " * 4000)
    data = msgspec.msgpack.encode(whole)
    parts = [data[n : n + 9000] for n in range(0, len(data), 9000)]
    for number, part in enumerate(parts):
        bench.do(("ann", ops.StagePart(key=1, part=number, data=part)))
    bench.do(("ann", ops.Staged(key=1, parts=len(parts))), append("ann", "salt"))
    bench.index()
    bench.close()


def idle(bench: Bench) -> None:
    """Everything that an idle writer does by itself."""
    bench.open()
    steady(bench, 4, longest=600)
    bench.idle(5.0)
    steady(bench, 3, seed=8, longest=600)
    bench.idle(5.0)
    bench.close()


def migration(bench: Bench) -> None:
    """An old file is brought up to date, and written to."""
    bench.open()
    bench.do(create("ann"), append("ann", "walrus"))
    bench.do(append("ann", "more", session="s1"))
    bench.close()


def without_wal(bench: Bench) -> None:
    """A file system on which WAL does not work: SQLite keeps a rollback journal."""
    bench.open()
    assert bench.writer.connection.conn.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    steady(bench, 6, longest=600)
    bench.index()
    bench.close()


WITHOUT_WAL = frozenset({"without WAL"})
"""Workloads on a file system on which WAL does not work."""

OLD_VERSIONS = {"migration from 1": 1, "migration from 4": 4, "migration from 10": 10}
"""Workloads that begin with a file of an old version."""

WORKLOADS: dict[str, Workload] = {
    "first commit": first_commit,
    "commits": commits,
    "leases": leases,
    "after a reset": after_reset,
    "restarts": restarts,
    "checkpoints": checkpoints,
    "indexing": indexing,
    "bulk": bulk,
    "reopening": reopening,
    "removal": removal,
    "vacuum": vacuum,
    "staged": staged,
    "idle": idle,
    "without WAL": without_wal,
    "agents": agent_store,
    "plain": plain_file,
    **dict.fromkeys(OLD_VERSIONS, migration),
}


NEW_FILES = frozenset({"first commit", "without WAL"})
"""Workloads that begin with no file at all."""


def prepare(name: str, path: Path) -> Image:
    """Put the file there that the workload begins with; what is on the disk then.

    Most begin with an empty store, so that each adds points of its own and not those of the first
    opening again.
    """
    if name in NEW_FILES:
        return {}
    if name in OLD_VERSIONS:
        build(path, OLD_VERSIONS[name])
    else:
        if name == "plain":
            create_tables(path)
        writer = Writer(resolve_paths(path), kind=name if name in (AGENTS, PLAIN) else SESSIONS)
        writer.recover()
        writer.close()
    return {file.name: file.read_bytes() for file in path.parent.iterdir() if file.is_file()}
