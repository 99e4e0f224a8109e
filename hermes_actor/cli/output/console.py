"""Output of all commands: results, questions, progress, and wait messages."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hermes_actor import exit_codes
from hermes_actor.cli.output.errors import fail, print_error
from hermes_actor.cli.output.formatting import print_json
from hermes_actor.errors import DeadlineExceeded, HermesActorError
from hermes_actor.paths import StorePaths

__all__ = [
    "collected_results", "confirm", "confirm_or_fail", "describe_wait", "now_serving",
    "print_error", "print_result", "progress", "size_text", "waiting", "waiting_for",
]  # fmt: skip

_QUIET_SECONDS = 1.0
"""Wait before the first message."""

_LOOK_SECONDS = 0.5
"""Time between two checks for another message."""


_collected: list[Any] | None = None


@contextlib.contextmanager
def collected_results() -> Iterator[list[Any]]:
    """Give the JSON documents of results in the block, which are not printed then."""
    global _collected
    _collected = []
    try:
        yield _collected
    finally:
        _collected = None


def print_result(document: Any, text: str, as_json: bool) -> None:
    """Print the result of a command at once: *document* as JSON, or *text*."""
    if as_json and _collected is not None:
        _collected.append(document)
        return
    if as_json:
        print_json(document)
    else:
        print(text)
    sys.stdout.flush()


def confirm(question: str, yes: bool) -> None:
    """Ask before something that cannot be undone; end the command if it is declined."""
    if not confirm_or_fail(question, yes):
        fail("Cancelled.", prefix="")


def confirm_or_fail(question: str, yes: bool) -> bool:
    """Return True if *question* is answered with yes. End of input and Ctrl-C decline.

    Without a terminal it fails as wrong usage: a cron job must not take a missing answer for
    success.
    """
    if yes:
        return True
    if not sys.stdin.isatty():
        fail(f"needs --yes without a terminal: {question}", code=exit_codes.USAGE)
    try:
        # On standard error: standard output may be read by a program.
        print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
        answer = sys.stdin.readline()
    except KeyboardInterrupt:
        answer = ""
    if not answer.endswith("\n"):
        print(file=sys.stderr)
    return answer.strip().lower() in ("y", "yes")


def size_text(count: int) -> str:
    """Return a number of bytes with its unit."""
    size, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"


@contextlib.contextmanager
def waiting(describe: Callable[[], str]) -> Iterator[None]:
    """Run the block; after a second, print to standard error what it waits for.

    *describe* is called in a thread of its own; its text is printed again only when it changes.
    """
    done = threading.Event()

    def watch() -> None:
        shown, pause = "", _QUIET_SECONDS
        while not done.wait(pause):
            pause = _LOOK_SECONDS
            with contextlib.suppress(HermesActorError, OSError):
                text = describe()
                if text and text != shown and not done.is_set():
                    shown = text
                    print(f"waiting: {text}", file=sys.stderr, flush=True)

    thread = threading.Thread(target=watch, name="waiting", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()


def waiting_for(paths: StorePaths) -> contextlib.AbstractContextManager[None]:
    """Run a block that waits for the store; print its phase, or the process in the way."""
    return waiting(lambda: describe_wait(paths))


def now_serving(paths: StorePaths, pid: int, build: str) -> str:
    """Return the line for an actor that has taken over the store."""
    return f"pid {pid} serves {paths.db}, build {build}"


def describe_wait(paths: StorePaths) -> str:
    """Return what a call to the store is waiting for."""
    # Late: a command that need not wait does not pay for them.
    from hermes_actor.client.control import ask_status
    from hermes_actor.system.lock_inspection import lock_holder, write_lock_holders
    from hermes_protocol.status import Phase

    owner = lock_holder(paths)
    if owner is None:
        return f"the actor of {paths.db} is starting"
    try:
        status = ask_status(paths, _LOOK_SECONDS)
    except DeadlineExceeded:
        return f"pid {owner} owns {paths.db} and does not answer"
    if status is None:
        return (
            f"pid {owner} owns {paths.db} and accepts no clients: it is starting, stopping, or in"
            " embedded mode"
        )
    if status.phase is Phase.RECOVERING and status.wal.pinned_by:
        return f"recovering, held up by readers: {_pids(status.wal.pinned_by)}"
    if not status.is_serving:
        return status.phase_text
    if others := [pid for pid in write_lock_holders(paths.shm) if pid != status.pid]:
        return f"another program holds the write lock: {_pids(others)}"
    if status.index.lag:
        return f"indexing, {status.index.lag} messages to go"
    queued = f"; {status.queue.count} requests queued" if status.queue.count else ""
    return f"the actor (pid {status.pid}) is busy{queued}"


def _pids(pids: Sequence[int]) -> str:
    return ", ".join(f"pid {pid}" for pid in pids)


@contextlib.contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """Give a function for done and total of a step; show them with rate and time left.

    On a terminal as a bar, else as a line on standard error for every tenth, after a second.
    """
    if sys.stderr.isatty():
        with _bar(what) as tell:
            yield tell
        return
    began, share, text = time.monotonic(), -1, what

    def keep(done: int, total: int) -> None:
        nonlocal share, text
        if total and 10 * done // total != share:
            share = 10 * done // total
            rate = done / max(time.monotonic() - began, 0.001)
            left = f", {(total - done) / rate:.0f} s left" if rate else ""
            text = f"{what}, {10 * share} %, {rate:,.0f}/s{left}"

    with waiting(lambda: text):
        yield keep


@contextlib.contextmanager
def _bar(what: str) -> Iterator[Callable[[int, int], None]]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        Task,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(f"{task.speed:,.0f}/s" if task.speed else "")

    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Rate(),
        TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
