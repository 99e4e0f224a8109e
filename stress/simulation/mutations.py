"""Deliberate faults of the product, for the selftest of the model."""

from __future__ import annotations

from typing import Any

from disks.mutations import replace

from hermes_actor.engine.connection import WriteConnection
from hermes_actor.engine.index import maintenance
from hermes_actor.engine.index.indexer import newest_id
from hermes_actor.engine.meta_table import set_internal
from hermes_actor.engine.receipts import Receipts
from hermes_protocol.client import ClientProtocol

__all__ = ["BREAKS", "break_model"]


def _no_receipts_looked_at() -> None:
    """What is sent again is applied again."""
    plain = Receipts.record

    def record(self: Receipts, conn: Any, ticket: Any, commit_no: int, result: bytes) -> None:
        conn.execute(
            "DELETE FROM hermes_actor_receipts WHERE client = ? AND seq = ?",
            (ticket.client, ticket.seq),
        )
        plain(self, conn, ticket, commit_no, result)

    def find(self: Receipts, conn: Any, ticket: Any, **_more: Any) -> None:
        if ticket.client not in self._clients:
            self._meet(conn, ticket.client)

    replace(Receipts, "record", record)
    replace(Receipts, "find", find)


def _nothing_sent_again() -> None:
    """A client does not send again what has no answer."""
    replace(ClientProtocol, "resend", lambda self: b"")


def _index_skips_rows() -> None:
    """The watermark goes on, and nothing is indexed."""

    def index_until(conn: Any, watermark: int, *_: Any) -> int:
        newest = newest_id(conn)
        set_internal(conn, "watermark", newest)
        return newest

    replace(maintenance, "index_until", index_until)


def _reply_before_commit() -> None:
    """A batch that cannot be committed is answered as if it was."""
    plain = WriteConnection.commit

    def commit(self: WriteConnection, commit_no: int | None = None, writes: int = 0) -> None:
        try:
            plain(self, commit_no, writes)
        except Exception:
            self.broken = None
            self.roll_back()

    replace(WriteConnection, "commit", commit)


def _number_from_memory() -> None:
    """``commit_no`` is not read again when the file is opened by the next owner."""
    plain = WriteConnection.run_startup_recovery

    def barrier(self: WriteConnection, deadline: float) -> None:
        before = self.recovered
        plain(self, deadline)
        if not before and self.commit_no > 5:
            self.commit_no += 1

    replace(WriteConnection, "run_startup_recovery", barrier)


BREAKS = {
    "applied-again": _no_receipts_looked_at,
    "nothing-sent-again": _nothing_sent_again,
    "index-skips-rows": _index_skips_rows,
    "reply-before-commit": _reply_before_commit,
    "gap-at-start": _number_from_memory,
}


def break_model(name: str | None) -> None:
    """What ``--set break=NAME`` asks for."""
    if name is not None:
        BREAKS[name]()
