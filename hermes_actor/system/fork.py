"""Forks: what a child does first, and how forks and SQLite are kept apart.

Objects with connections or locks of the parent register with :func:`notify`.

A child of a process in which another thread is inside SQLite inherits SQLite's mutexes as they are,
and hangs in the first call that needs one. So everything that calls SQLite in a client's process
goes through :func:`inside`, and a fork waits until no other thread is in there.

A thread that is inside has a mark, which lives no longer than the call that has made it. So an
exception that a signal handler raises, wherever it strikes, leaves nothing that a fork waits for.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable
from threading import get_ident
from typing import ParamSpec, Protocol, TypeVar

__all__ = ["inside", "notify", "outside"]

P = ParamSpec("P")
R = TypeVar("R")

_FORK_SECONDS = 5.0
"""Longest wait of a fork for other threads: longer than nearly every query takes."""

_LOOK_SECONDS = 0.0002
"""Time between two checks, of either side."""

_now = time.monotonic


class _Mark:
    """The place of a thread, inside SQLite or outside; its newest mark counts."""

    __slots__ = ("__weakref__", "is_inside", "thread")

    def __init__(self, is_inside: bool) -> None:
        self.thread = get_ident()
        self.is_inside = is_inside


_marks: dict[weakref.ref[_Mark], None] = {}
"""The marks of all threads, older ones first."""

_forking: list[int] = []
"""The threads that are about to fork."""


class _Forked(Protocol):
    def after_fork(self) -> None: ...


_notified: weakref.WeakSet[_Forked] = weakref.WeakSet()


def notify(shared: _Forked) -> None:
    """Have ``shared.after_fork()`` called in every child process, as long as *shared* lives."""
    _notified.add(shared)


def inside(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call *function*, which calls SQLite. Waits while another thread forks."""
    # Held by this frame alone, the table has a weak reference: if a signal handler raises before
    # the entry is removed, the mark goes with the frame, and the entry counts no more.
    mark = _Mark(True)
    reference = weakref.ref(mark)
    try:
        # In this order: a thread that begins to fork now sees this mark, or this thread sees it.
        _marks[reference] = None
        # Without a lock, which a fork could copy while it is held. Each step here is one operation
        # of a dict or a list, which other threads see whole.
        if _forking:
            _let_forks_pass()
        return function(*args, **kwargs)
    finally:
        _marks.pop(reference, None)


def outside(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call *function*, which waits for something, in the middle of work that is inside.

    No fork waits for it. The caller must not be in the middle of a call of SQLite.
    """
    try:
        return _pause(function, *args, **kwargs)
    finally:
        if _forking:
            _let_forks_pass()


def _pause(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    mark = _Mark(False)
    reference = weakref.ref(mark)
    try:
        _marks[reference] = None
        return function(*args, **kwargs)
    finally:
        _marks.pop(reference, None)


def _let_forks_pass() -> None:
    """Return, inside again, when no other thread forks."""
    me, give_up = get_ident(), _now() + 2 * _FORK_SECONDS
    while any(thread != me for thread in tuple(_forking)):
        if _now() > give_up:
            # No fork takes that long: one was interrupted before it could note its end.
            _forking.clear()
        _pause(time.sleep, _LOOK_SECONDS)


def _is_any_inside() -> bool:
    """Return True if a thread that is not about to fork is inside."""
    newest: dict[int, bool] = {}
    for reference in list(_marks):
        mark = reference()
        if mark is None:
            _marks.pop(reference, None)
        else:
            # Older ones first: an inner call of outside() hides the outer mark of its thread.
            newest[mark.thread] = mark.is_inside
    return any(there for thread, there in newest.items() if thread not in _forking)


def _before_fork() -> None:
    # As in inside(): each side announces itself first and then checks, so one sees the other.
    _forking.append(get_ident())
    give_up = _now() + _FORK_SECONDS
    # After that the fork goes ahead: a program that hangs in fork() for as long as a query runs is
    # worse off than one whose child may hang.
    while _is_any_inside() and _now() < give_up:
        time.sleep(_LOOK_SECONDS)


def _after_fork_in_parent() -> None:
    me = get_ident()
    _forking[:] = [thread for thread in _forking if thread != me]


def _after_fork_in_child() -> None:
    # Marks of the parent's other threads: these threads are not here.
    _forking.clear()
    me = get_ident()
    for reference in list(_marks):
        mark = reference()
        if mark is None or mark.thread != me:
            _marks.pop(reference, None)
    for shared in list(_notified):
        try:
            shared.after_fork()
        except Exception:  # the others need their turn all the more
            import logging  # late: few children get here

            logging.getLogger("hermes_actor").exception("in a forked child: %r", shared)


os.register_at_fork(
    before=_before_fork,
    after_in_parent=_after_fork_in_parent,
    after_in_child=_after_fork_in_child,
)
