"""Writers for the time of a block, and the check of everything that they were promised."""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hermes_actor.testing.writer_pool import WriterPool, check
from support.actors import own, wait_for


class WriterLoad:
    """Writers at work on one file."""

    def __init__(self, path: Path, pool: WriterPool, prefix: str) -> None:
        self._path, self.pool, self._prefix = path, pool, prefix

    def goes_on(self, changes: int = 30) -> None:
        """Wait until so many more changes are in the store."""
        reached = own(self._path, "commit_no") + changes
        wait_for(lambda: own(self._path, "commit_no") >= reached)

    def end(self) -> None:
        """Let all of them finish."""
        assert self.pool.stop(100.0) == 0, self.pool.last_words()

    def check(self) -> None:
        """Assert that no writer saw an error, and that everything is there once, in order."""
        self.end()
        recorded = self.pool.recorded
        assert recorded.refusals == []
        outcome = check(self._path, recorded, sessions_of=self._prefix)
        count = len(recorded.writes)
        assert outcome == (count, count, 0, 0, 0, 0, []), outcome


@contextmanager
def writer_load(
    path: Path, writers: int = 3, python: str | Path = sys.executable, name: str = "writer"
) -> Iterator[WriterLoad]:
    """Run writers for the time of the block; at its end everything must be right.

    Their sessions are ``name-0``, ``name-1``, and so on.
    """
    with tempfile.TemporaryDirectory(prefix="hermes-actor-load-") as folder:
        pool = WriterPool(path, Path(folder) / "records", python=python, seed=name)
        with pool.add(writers, prefix=f"{name}-", pause=0.002, mode="actor", reread=True):
            running = WriterLoad(path, pool, f"{name}-")
            pool.start()
            pool.go()
            yield running
            running.check()
