"""Histories that never happened: without fault, as a beginning for what is to be found."""

from __future__ import annotations

import random
from typing import Any

from hermes_actor.testing.history import (
    NEVER,
    Answer,
    Read,
    Row,
    Violation,
    Write,
    check,
    digest_of,
)

__all__ = ["WINDOW", "MadeUp"]

WINDOW = 8


class MadeUp:
    """A history without fault: clients, refusals, open ends, reads, silent changes."""

    def __init__(self, count: int, clients: int = 8, reads: float = 0.3, seed: int = 1) -> None:
        rng = random.Random(seed)
        self.writes: list[Write] = []
        self.rows: list[Row] = []
        self.reads: list[Read] = []
        self.answers: list[Answer] = []
        self.places: list[int] = []
        self.orphans: list[int] = []
        self.structure: list[str] = []
        self.calm: float | None = None
        numbers, place, now = [0] * clients, 0, 0.0
        for _ in range(count):
            now += 1.0
            client = rng.randrange(clients)
            numbers[client] += 1
            name, number, payload = f"c{client}", numbers[client], rng.getrandbits(32)
            outcome = rng.choices(["ok", "unknown", "failed"], [90, 6, 4])[0]
            applied = outcome == "ok" or (outcome == "unknown" and rng.random() < 0.5)
            if applied:
                if rng.random() < 0.05:
                    place += 1  # a change that leaves no row
                    self.places.append(place)
                place += 1
                self.places.append(place)
                self.rows.append(Row(place, name, number, payload, place * 10))
            told = (place, place * 10) if outcome == "ok" else (None, None)
            ended = NEVER if outcome == "unknown" else now + 0.4
            self.writes.append(Write(name, number, payload, now, ended, outcome, *told))
            if outcome == "ok" and rng.random() < 0.1:
                self.answers.append(Answer(name, number, *told))
            if rng.random() < reads:
                last = [row.payload for row in self.rows[-WINDOW:]]
                self.reads.append(
                    Read("r", now + 0.5, now + 0.6, place, len(self.rows), WINDOW, digest_of(last))
                )
        self.ok = [n for n, write in enumerate(self.writes) if write.outcome == "ok"]

    def row_of(self, index: int) -> int:
        write = self.writes[index]
        return next(
            n for n, row in enumerate(self.rows) if row[1:3] == (write.client, write.number)
        )

    def change(self, what: str, index: int, **fields: Any) -> None:
        rows = getattr(self, what)
        rows[index] = rows[index]._replace(**fields)

    def check(self) -> list[Violation]:
        return check(
            self.writes,
            self.rows,
            self.reads,
            answers=self.answers,
            places=self.places,
            orphans=self.orphans,
            structure=self.structure,
            calm=self.calm,
        )
