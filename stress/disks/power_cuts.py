"""What a disk may hold when the power goes: made from the order of writes and syncs.

A write is in the page cache at once and on the disk after the next sync of its file; until then
the disk may have none of it, all of it, or any of its sectors. A file that was deleted may be back
until its folder was synced, which SQLite does with the first sync of a journal or WAL that it has
created. A sync that the disk has refused leaves its writes in the cache, marked as clean: no later
sync will bring them to the disk, which is what the kernel does.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

__all__ = ["SECTOR_BYTES", "Cut", "Disk", "Image", "cuts"]

Event = tuple[Any, ...]
Image = dict[str, bytes]

SECTOR_BYTES = 512
"""The smallest unit that a disk writes whole."""


def _put(content: bytearray, event: Event) -> None:
    if event[0] == "truncate":
        size = event[2]
        del content[size:]
        content.extend(bytes(size - len(content)))
        return
    _, _, offset, data = event
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


def _sectors(event: Event) -> Iterator[Event]:
    if event[0] == "truncate":
        yield event
        return
    kind, name, offset, data = event
    start = 0
    while start < len(data):
        end = min(len(data), ((offset + start) // SECTOR_BYTES + 1) * SECTOR_BYTES - offset)
        yield kind, name, offset + start, data[start:end]
        start = end


class Disk:
    """The durable content of files, and what waits for a sync."""

    def __init__(self, files: Image | None = None, *, folder_syncs: bool = False) -> None:
        """*folder_syncs*: syncs of the folder are events of their own, ``("folder",)``."""
        self._folder_syncs = folder_syncs
        self._durable = {name: bytearray(data) for name, data in (files or {}).items()}
        self._pending: dict[str, list[Event]] = {}
        self._created: set[str] = set()
        self._deleted: dict[str, bytearray] = {}

    def feed(self, event: Event) -> None:
        """Something was asked of the disk. Other events are none of its business."""
        kind, name = event[0], event[1] if len(event) > 1 else ""
        if kind == "create":
            self._durable[name] = bytearray()
            self._pending.pop(name, None)
            self._created.add(name)
        elif kind in ("write", "truncate"):
            self._durable.setdefault(name, bytearray())
            self._pending.setdefault(name, []).append(event)
        elif kind == "sync":
            self._sync(name)
        elif kind == "folder":
            self._sync_folder()
        elif kind == "delete":
            self._delete(name, synced=event[2])
        elif kind == "refused" and event[2] == "sync" and event[3] != "KILL":
            self._pending.pop(name, None)

    def _sync(self, name: str) -> None:
        content = self._durable.setdefault(name, bytearray())
        for event in self._pending.pop(name, ()):
            _put(content, event)
        if name in self._created and not self._folder_syncs:
            # SQLite syncs the folder with the first sync of a journal or WAL that it has made.
            self._sync_folder()

    def _sync_folder(self) -> None:
        self._created.clear()
        self._deleted.clear()

    def _delete(self, name: str, *, synced: bool) -> None:
        content = self._durable.pop(name, None)
        self._pending.pop(name, None)
        if synced:
            self._sync_folder()
        elif content is not None and name not in self._created:
            self._deleted[name] = content
        self._created.discard(name)

    def image(self, mode: str, seed: object = None) -> Image:
        """What may be left: *mode* is ``lost``, ``kept`` or ``torn`` (as *seed* decides)."""
        if mode == "kept":
            return {name: self._with(name, lambda _: True) for name in self._durable}
        if mode == "lost":
            # Neither the creation nor the deletion of a name need have reached the folder.
            there = {n: data for n, data in self._durable.items() if n not in self._created}
            return {name: bytes(data) for name, data in {**self._deleted, **there}.items()}
        chance = random.Random(repr(seed))
        image = {name: self._with(name, lambda _: chance.random() < 0.5) for name in self._durable}
        for name, data in self._deleted.items():
            if chance.random() < 0.5:
                image.setdefault(name, bytes(data))
        return image

    def _with(self, name: str, chosen: Any) -> bytes:
        content = bytearray(self._durable[name])
        for event in self._pending.get(name, ()):
            for sector in _sectors(event):
                if chosen(sector):
                    _put(content, sector)
        return bytes(content)


class Cut(NamedTuple):
    """The power has gone after so many events. To be looked at before the next one is taken."""

    position: int
    mode: str
    made: Callable[[], Image]

    @property
    def image(self) -> Image:
        """What is left. Made when it is asked for: many cuts are only counted."""
        return self.made()


def cuts(
    events: Iterable[Event],
    *,
    start: Image | None = None,
    torn: int = 3,
    seed: object = 0,
    at: frozenset[str] | None = None,
    folder_syncs: bool = False,
) -> Iterator[Cut]:
    """Every cut of a recorded run: after each event, or after those whose kind is in *at*."""
    disk = Disk(start, folder_syncs=folder_syncs)
    for position, event in enumerate(events):
        disk.feed(event)
        if at is not None and event[0] not in at:
            continue
        for mode in ("lost", "kept"):
            yield Cut(position, mode, partial(disk.image, mode))
        for number in range(torn):
            made = partial(disk.image, "torn", (seed, position, number))
            yield Cut(position, f"torn {number}", made)
