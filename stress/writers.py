"""Work of the writers of a benchmark: open a store, wait for the common start, write, report.

A worker is ready when its store is open and its text is made. The word to go is the time of the
start, of `time.monotonic`, which all processes of a machine share. After its last write it is done,
and once the pool is stopped it leaves a `Report`. Every message carries its number in the order of
sending, so that the file itself shows what was kept and how.
"""

from __future__ import annotations

import importlib
import random
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import corpus

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hermes_actor.testing.worker import Worker

WORK = "writers:write_turns"

TURN = 4  # writes of a turn: user, assistant with a tool call, tool result, token counts
SIZES = {"user": 200, "assistant": 800, "tool": 2000}  # bytes of text
POOL = 48  # turns of ready-made text; used in a circle, so that making text is never timed
ROW_BYTES = 2_000_000  # text of one row in the memory test: just under two megabytes
INPUT_TOKENS, OUTPUT_TOKENS = 3_100, 240
MARK = 9  # "#0000017 " at the head of every text
OVERTIME = 90  # seconds that the last calls of a round may take


@dataclass(slots=True)
class Report:
    """All writes of one worker, in the order of sending."""

    acked: list[tuple[int, int | None]] = field(default_factory=list)
    """Number of each acknowledged message and the id that the store gave it."""
    tokens: int = 0
    """Acknowledged updates of the token counts."""
    unknown: list[int] = field(default_factory=list)
    """Numbers whose outcome the store itself called unknown."""
    errors: dict[str, int] = field(default_factory=dict)
    sample: str = ""
    """Text of the first error."""
    latency: list[float] = field(default_factory=list)
    """Seconds of every call, the refused ones included."""
    in_time: int = 0
    """Acknowledged writes that ended before the common end."""
    synchronous: int | None = None
    """PRAGMA of the connection that writes, where the worker has it."""


class Write(NamedTuple):
    """One call of `SessionDB`."""

    method: str
    arguments: dict[str, Any]


def open_store(kind: str, store: str) -> Any:
    """Open the store of one side: of the peer, of an alternative, of a server, or else ours."""
    alternative = importlib.import_module("alternatives").ALTERNATIVES.get(kind)
    if alternative is not None:
        return alternative(store)
    if kind == "peer":
        return importlib.import_module("hermes_state").SessionDB(Path(store))
    ours = importlib.import_module("hermes_actor").SessionDB
    return ours(store) if kind == "server" else ours(Path(store), mode="actor")


def _text(rng: random.Random, role: str) -> str:
    size = SIZES[role] - MARK
    if rng.random() < corpus.CJK_SHARE:
        made = corpus.chinese(rng, size)
    else:
        made = (corpus.tool_output if role == "tool" else corpus.words)(rng, size * 2)
    return made.encode()[:size].decode(errors="ignore")


def pool(rng: random.Random, turns: int = POOL) -> list[list[Write]]:
    """Turns of four writes; the texts are without their number yet."""
    made = []
    for _ in range(turns):
        ident = f"call_{rng.getrandbits(48):012x}"
        function = {"name": "read_file", "arguments": '{"path": "src/main.py", "limit": 200}'}
        call = {"id": ident, "type": "function", "function": function}
        said: dict[str, dict[str, Any]] = {
            "user": {},
            "assistant": {"tool_calls": [call], "token_count": 200, "finish_reason": "tool_calls"},
            "tool": {"tool_name": "read_file", "tool_call_id": ident},
        }
        writes = [
            Write("append_message", {"role": role, "content": _text(rng, role), **more})
            for role, more in said.items()
        ]
        counts = {
            "input_tokens": INPUT_TOKENS, "output_tokens": OUTPUT_TOKENS, "api_call_count": 1,
            "model": "hermes-4-405b", "estimated_cost_usd": 0.0129, "cost_status": "estimated",
            "billing_provider": "openrouter", "cache_read_tokens": 2_048,
        }  # fmt: skip
        made.append([*writes, Write("update_token_counts", counts)])
    return made


def big_rows(rng: random.Random) -> list[list[Write]]:
    """One write of a row of two megabytes."""
    text = (corpus.words(rng, 20_000) * (ROW_BYTES // 20_000 + 1))[: ROW_BYTES - MARK]
    return [[Write("append_message", {"role": "tool", "content": text, "tool_name": "read_file"})]]


def numbered(turns: list[list[Write]]) -> Iterator[list[tuple[int, Write]]]:
    """Turns without end; every message gets its number in the order of sending."""
    number = 0
    while True:
        for turn in turns:
            sent = []
            for method, arguments in turn:
                if method == "append_message":
                    text = f"#{number:07d} {arguments['content']}"
                    sent.append((number, Write(method, {**arguments, "content": text})))
                else:
                    sent.append((number, Write(method, arguments)))
                number += 1
            yield sent


class Writer:
    """Writes to one session until the time is over and keeps the books."""

    def __init__(self, db: Any, session: str, seconds: float) -> None:
        self._db, self._session, self._seconds = db, session, seconds
        self.report = Report()
        self.end = 0.0

    def run(self, turns: list[list[Write]], start: float, *, in_blocks: bool) -> None:
        """Begin at *start*, end at the first write after the agreed time.

        With *in_blocks* a turn is one block of a pipeline.
        """
        self.end = start + self._seconds
        step = self._pipeline if in_blocks else self._one_by_one
        flow = numbered(turns)
        time.sleep(max(0.0, start - time.monotonic()))
        while time.monotonic() < self.end:
            step(next(flow))

    def _one_by_one(self, turn: list[tuple[int, Write]]) -> None:
        for number, write in turn:
            if time.monotonic() >= self.end:
                return
            call = getattr(self._db, write.method)
            begun = time.monotonic()
            try:
                result = call(self._session, **write.arguments)
            except Exception as error:
                self.report.latency.append(time.monotonic() - begun)
                self._failed(error, [number])
                continue
            ended = time.monotonic()
            self.report.latency.append(ended - begun)
            self._acked(number, write, result, ended)

    def _pipeline(self, turn: list[tuple[int, Write]]) -> None:
        """One turn is one block; leaving it waits for all. Timed as a whole."""
        begun = time.monotonic()
        futures: list[Any] = []
        try:
            with self._db.pipeline() as line:
                for _, write in turn:
                    call = getattr(line, write.method)
                    futures.append(call(self._session, **write.arguments))
        except Exception as error:
            # The block raises the first error of several; each write knows its own.
            self.report.latency.append(time.monotonic() - begun)
            if len(futures) < len(turn) or not all(map(_can_tell, futures)):
                self._failed(error, [number for number, _ in turn], certain=False)
                return
        else:
            self.report.latency.append(time.monotonic() - begun)
        ended = time.monotonic()
        for (number, write), future in zip(turn, futures, strict=True):
            try:
                result = future.result() if _can_tell(future) else future
            except Exception as error:
                self._failed(error, [number])
            else:
                self._acked(number, write, result, ended)

    def _acked(self, number: int, write: Write, result: Any, ended: float) -> None:
        if write.method == "append_message":
            self.report.acked.append((number, result if isinstance(result, int) else None))
        else:
            self.report.tokens += 1
        self.report.in_time += ended <= self.end

    def _failed(self, error: Exception, numbers: list[int], *, certain: bool = True) -> None:
        name = type(error).__name__
        self.report.errors[name] = self.report.errors.get(name, 0) + len(numbers)
        self.report.sample = self.report.sample or f"{name}: {error}"[:200]
        if not certain or getattr(error, "executed", "no") == "unknown":
            self.report.unknown += numbers


def _can_tell(future: Any) -> bool:
    return hasattr(future, "result")


def write_turns(worker: Worker) -> None:
    """Write turns from the common start for so many seconds, and report.

    Options: ``kind`` of the store and of the calls, see `open_store`; ``seconds``.
    """
    kind = worker.options["kind"]
    make = big_rows if kind == "rows" else pool
    turns = make(worker.rng)
    db = open_store(kind, worker.store)
    writer = Writer(db, worker.name, worker.options["seconds"])
    if kind == "peer":
        writer.report.synchronous = db._conn.execute("PRAGMA synchronous").fetchone()[0]
    start = worker.ready()
    if not start:
        return
    writer.run(turns, float(start), in_blocks=kind == "pipeline")
    # Closing and reporting cost time that would count as the last calls of slower workers.
    worker.done()
    while not worker.over(OVERTIME):
        pass  # until the pool is stopped
    db.close()
    worker.report(asdict(writer.report))
