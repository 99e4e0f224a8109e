"""Maintenance by the owner of a store: the actor if one runs, else this process with the lock."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hermes_protocol.messages as wire
from hermes_actor import limits
from hermes_actor.client.control import ControlConnection, ask_status, call, has_owner
from hermes_actor.errors import (
    AlreadyOwned,
    HermesActorError,
    IndexBehind,
    NotRunning,
    StateChanged,
    StorageError,
    Unsupported,
)
from hermes_actor.paths import StorePaths
from hermes_actor.system.lock_inspection import already_owned, lock_holder, lock_owner
from hermes_protocol.client import decode_result
from hermes_protocol.features import SESSIONS

if TYPE_CHECKING:
    from hermes_actor.engine.writer import Writer

__all__ = ["changes_held", "index_fully", "owned_writer", "replace_content", "run_maintenance"]

_SLICE_SECONDS = 0.5
"""Time between two reports of progress."""

_FAILING_SECONDS = 3.0
"""Wait for a text whose indexing failed, when only that is left: until after its third try."""

_TRIES = 3
"""Attempts to replace the content. Changes go on during the first and are held during the others,
so that only a foreign writer can make those fail."""


def run_maintenance(
    paths: StorePaths, task: str, path: Path | None = None, *, kind: str = SESSIONS
) -> dict[str, Any]:
    """Have the owner of *paths* run *task*; become the owner if there is none.

    *kind* is that of a file that does not say its own. Returns the result document of the task.
    Raises :class:`AlreadyOwned` if the owner serves no clients, :class:`Unsupported` if it is too
    old for the task, and the errors of the task.
    """
    with _owner_of(paths, kind) as owner:
        return owner.maintain(task, path)


def replace_content(
    paths: StorePaths,
    prepared: Callable[[], AbstractContextManager[Path]],
    *,
    kind: str = SESSIONS,
) -> dict[str, Any]:
    """Have the owner of *paths* replace its content by the file of *prepared*, whole or not at all.

    *prepared* copies what it needs of the present content. It is called again if that has changed
    meanwhile, with all changes held: so what is replaced is what was copied. Raises as
    :func:`run_maintenance`, and :class:`StateChanged` if another program keeps writing the file.
    """
    with _owner_of(paths, kind) as owner:
        for tries_left in reversed(range(_TRIES)):
            state = owner.maintain("state")["state"]
            try:
                with prepared() as path:
                    return owner.maintain("replace", path, state)
            except StateChanged as error:
                if not tries_left:
                    raise StateChanged(
                        f"{error}; end the other programs that write it: hermes-actor doctor"
                    ) from error
            owner.hold()
    raise AssertionError("unreachable")


@contextlib.contextmanager
def changes_held(paths: StorePaths) -> Iterator[None]:
    """Keep the changes of all clients of the running actor waiting for the block.

    Raises :class:`NotRunning`, and :class:`AlreadyOwned` for an owner that serves no clients.
    """
    with contextlib.closing(_Actor(paths)) as actor:
        actor.hold()
        yield


@contextlib.contextmanager
def _owner_of(paths: StorePaths, kind: str) -> Iterator[_Here | _Actor]:
    """Give the process that can maintain the store: this one if no other owns it."""
    if not has_owner(paths):
        with contextlib.ExitStack() as stack:
            try:
                writer = stack.enter_context(owned_writer(paths, kind))
            except AlreadyOwned:
                pass  # an actor has been started meanwhile
            else:
                yield _Here(writer)
                return
    with contextlib.closing(_Actor(paths)) as actor:
        yield actor


class _Here:
    """This process, which owns the store: no other process changes it."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    def maintain(self, task: str, path: Path | None = None, expected: str = "") -> dict[str, Any]:
        """Run *task* and return its result document. Raises the errors of the task.

        *expected* is the only state of the content that may be replaced.
        """
        from hermes_actor.engine.admin_tasks import maintain as run

        deadline = time.monotonic() + limits.MAINTENANCE_SECONDS
        return run(self._writer, task, str(path or ""), deadline, expected)

    def hold(self) -> None:
        """Do nothing: this process holds the owner lock."""


class _Actor:
    """The actor that serves the store."""

    def __init__(self, paths: StorePaths) -> None:
        self._paths = paths
        self._held: ControlConnection | None = None
        self._guard = threading.Lock()
        self._ended = threading.Event()

    def maintain(
        self,
        task: str,
        path: Path | None = None,
        expected: str = "",
        seconds: float = limits.MAINTENANCE_SECONDS,
    ) -> dict[str, Any]:
        """Have the actor run *task*. Raises :class:`Unsupported` if it is too old to know it."""

        def make(number: int) -> wire.Maintain:
            return wire.Maintain(
                ask=number, task=task, path=str(path or ""), timeout=seconds, expected=expected
            )

        try:
            if self._held is None:
                result = self._ask(make, task)
            else:
                with self._guard:
                    result = self._held.call(make, time.monotonic() + seconds)
        except Unsupported as error:
            raise Unsupported(
                f"the actor of {self._paths.db}, pid {lock_holder(self._paths)}, is older than this"
                f" command and cannot do that; give it the new code: hermes-actor handoff"
            ) from error
        document: dict[str, Any] = decode_result(result, dict[str, Any])
        return document

    def _ask(self, make: Callable[[int], wire.Maintain], task: str) -> bytes:
        """Ask once an actor listens: the owner may be one that a client has just started."""
        seen: int | None = None
        give_up = 0.0
        while True:
            try:
                return call(self._paths, make, limits.MAINTENANCE_SECONDS, name=task)
            except NotRunning as error:  # nothing was asked
                owner = lock_owner(self._paths)
                if owner is None:
                    raise
                # From when this owner was first seen: one that was silent may have used up the time
                # before it was replaced.
                if owner.pid != seen:
                    seen, give_up = owner.pid, time.monotonic() + limits.OWNED_SECONDS
                if time.monotonic() > give_up:
                    raise already_owned(self._paths, owner) from error
            time.sleep(limits.RECONNECT_MAX_SECONDS)

    def hold(self) -> None:
        """Keep changes of other clients waiting until :meth:`close`.

        Needs a connection for that time, and signs of life on it.
        """
        if self._held is None:
            deadline = time.monotonic() + limits.MAINTENANCE_SECONDS
            self._held = ControlConnection(self._paths, deadline, name="restore")
            self.maintain("hold")
            threading.Thread(target=self._give_signs, name="hold", daemon=True).start()

    def _give_signs(self) -> None:
        """Send heartbeats: the actor does not wait for a holder that is stopped."""
        with contextlib.suppress(HermesActorError, OSError):
            while not self._ended.wait(limits.HOLD_SIGN_SECONDS):
                # The command itself cannot ask meanwhile. After so long the hold is lost anyway.
                self.maintain("state", seconds=limits.HOLD_SILENT_SECONDS)

    def close(self) -> None:
        """End the hold: changes of other clients continue."""
        self._ended.set()
        if self._held is not None:
            self._held.close()


@contextlib.contextmanager
def owned_writer(paths: StorePaths, kind: str = SESSIONS) -> Iterator[Writer]:
    """Own the store in this process, and give its writer, for the block.

    *kind* is that of a file that does not say its own. Raises :class:`AlreadyOwned` if another
    process owns it.
    """
    from hermes_actor.engine.ownership import OwnerLock
    from hermes_actor.engine.writer import Writer

    lock = OwnerLock.acquire(paths, "command")
    try:
        writer = Writer(
            paths, on_epoch=lock.describe, timeout=limits.ACTOR_OPEN_BUSY_SECONDS, kind=kind
        )
        try:
            yield writer
        finally:
            writer.close()
    finally:
        lock.release()


def index_fully(
    paths: StorePaths, through: int, report: Callable[[int, int], None] = lambda _done, _total: None
) -> None:
    """Have both full-text indexes cover the messages up to *through*, in slices.

    Changes go on meanwhile. *report* gets the highest message that is indexed, and *through*.
    Raises :class:`StorageError` if a very large text fails again and again.
    """
    if not has_owner(paths):
        with owned_writer(paths) as writer:
            writer.index.complete(lambda: report(min(writer.index.watermark, through), through))
        return
    failing = 0
    while True:
        status = ask_status(paths)
        if status is None:
            raise NotRunning(f"the actor of {paths.db} has exited")
        report(min(status.index.watermark, through), through)
        with contextlib.suppress(IndexBehind):
            call(
                paths,
                lambda n: wire.CatchUp(ask=n, through=through, timeout=_SLICE_SECONDS),
                limits.MAINTENANCE_SECONDS,
                name="catch-up",
            )
            return
        # Such a text is tried again for as long as it is there; a command is not.
        state = status.index.aside
        failing = failing + 1 if state.startswith("failing: ") else 0
        if failing * _SLICE_SECONDS >= _FAILING_SECONDS:
            raise StorageError(state.removeprefix("failing: "))
