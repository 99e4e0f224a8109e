"""One sync for the commits of several leases.

Each lease commits a transaction of its own, without a sync: its frames are in the WAL, where
readers see them. Its answer is withheld until a sync of the WAL that began after the commit has
ended (G1). While one is under way the next leases run, and the next sync is for all of them.

Rules. What a sync covers is fixed before it begins. After a sync that fails nothing is answered as
kept, and the writer is broken (R2). Whatever else the writer does with the file waits until
nothing is withheld: its own syncs would take the report of a failed one, and the descriptor is
SQLite's (G6).
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

__all__ = ["SharedSync"]

Answer = Callable[[BaseException | None], None]
"""Sends an answer, or the reason why it is not known whether the change is kept."""


class SharedSync:
    """Answers that wait for a sync, and the thread that syncs."""

    def __init__(
        self,
        sync: Callable[[], None],
        failed: Callable[[Exception], BaseException],
        sent: Callable[[], None],
    ) -> None:
        """*sync* returns when everything committed is on the disk. *failed* gets its error, breaks
        the writer, and returns what the answers say. *sent* is called after the answers."""
        self._sync = sync
        self._failed = failed
        self._sent = sent
        self._withheld: queue.SimpleQueue[Answer | threading.Event | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        # Each is changed in one thread: the writer's, and that of the syncs.
        self._given = self._done = 0

    @property
    def is_idle(self) -> bool:
        """True if nothing is withheld. Writer thread only."""
        return self._given == self._done

    def withhold(self, answer: Answer) -> None:
        """Have *answer* called, in another thread, after a sync that begins after this."""
        if self._thread is None:
            # A daemon: a disk that does not answer must not keep the process from ending.
            self._thread = threading.Thread(target=self._run, name="sync", daemon=True)
            self._thread.start()
        self._given += 1
        self._withheld.put(answer)

    def settle(self) -> None:
        """Return when nothing is withheld. Writer thread only."""
        if not self.is_idle:
            passed = threading.Event()
            self._withheld.put(passed)
            passed.wait()

    def close(self) -> None:
        """End the thread when nothing is withheld any more. Waits for nothing."""
        self._withheld.put(None)

    def _run(self) -> None:
        over = False
        while not over:
            taken = [self._withheld.get()]
            # All that is committed by now, and nothing that comes during the sync.
            while not self._withheld.empty():
                taken.append(self._withheld.get_nowait())
            answers = [one for one in taken if one is not None]
            over = len(answers) < len(taken)
            if answers:
                self._answer(answers)

    def _answer(self, answers: list[Answer | threading.Event]) -> None:
        error: BaseException | None = None
        try:
            self._sync()
        except Exception as cause:
            error = self._failed(cause)
        for answer in answers:
            if not isinstance(answer, threading.Event):
                answer(error)
        self._sent()
        # After the answers have left: who settles may close everything next.
        for answer in answers:
            if isinstance(answer, threading.Event):
                answer.set()
            else:
                self._done += 1
