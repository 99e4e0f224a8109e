"""Objects that all users in a process share: one per key, removed by its last user."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from hermes_actor.system import fork

__all__ = ["SharedObjects"]

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class SharedObjects(Generic[K, T]):
    """A registry that counts the users of each object. Safe to use from any thread.

    A caller may hold ``lock`` around its calls, to make an object, or to close one, before any
    other thread can ask for it.
    """

    def __init__(self) -> None:
        self._users: dict[K, tuple[T, int]] = {}
        self.lock = threading.RLock()
        fork.notify(self)

    def get(self, key: K) -> T | None:
        """Return the object of *key* if it has users. Adds none."""
        # Without the lock, which a caller may hold for long around its calls: one lookup is whole.
        return self._users.get(key, (None, 0))[0]

    def acquire(self, key: K, make: Callable[[], T]) -> T:
        """Return the object of *key* for one more user; the first one gets what *make* returns."""
        with self.lock:
            # *make* under the lock: two first users would otherwise get two objects.
            shared, users = self._users.get(key) or (make(), 0)
            self._users[key] = (shared, users + 1)
            return shared

    def release(self, key: K, shared: T) -> bool:
        """Remove one user; return True if it was the last: the caller closes the object then."""
        with self.lock:
            known, users = self._users.get(key, (None, 0))
            # Cleared meanwhile, and perhaps made again: that one has users of its own.
            if known is not shared:
                return False
            if users > 1:
                self._users[key] = (shared, users - 1)
                return False
            del self._users[key]
            return True

    def clear(self) -> list[T]:
        """Forget all objects, and return them."""
        with self.lock:
            users, self._users = self._users, {}
        return [shared for shared, _ in users.values()]

    def after_fork(self) -> None:
        """Replace the lock, in a child. The objects stay, and renew themselves."""
        # The lock may be held by a thread of the parent, which is not here to release it.
        self.lock = threading.RLock()
