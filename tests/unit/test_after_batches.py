"""What a writer does after a batch is bounded, because every client waits for it (G13)."""

import queue
import time

import pytest
from support.direct_writer import append, assert_index_is_true, index_everything, run
from support.files import query

from hermes_actor import limits
from hermes_actor.engine.environment import Environment
from hermes_actor.engine.jobs import Call, Request, Stop
from hermes_actor.engine.loop import serve
from hermes_actor.engine.writer import Writer
from hermes_actor.paths import resolve_paths
from hermes_protocol.operations import SessionCreate

BATCH = 48


class Batches:
    """A queue that is never empty: one batch after the other, and then a stop."""

    def __init__(self, count):
        self._texts = [f"walrus {number}" for number in range(count * BATCH)]

    def take(self, timeout):
        texts, self._texts = self._texts[:BATCH], self._texts[BATCH:]
        if not texts:
            return [Stop(lambda outcome: None)]
        return [Call(self.done, Request(append(text))) for text in texts]

    def done(self, outcome):
        assert outcome.error is None

    def take_step(self, steps, timeout):
        raise queue.Empty

    def waiting(self):
        return True


@pytest.fixture(autouse=True)
def small_lags(monkeypatch):
    """Indexing is urgent from the first messages on, and a chunk has few of them."""
    for name, value in (("MAX", 256), ("URGENT", 32), ("ASIDE", 16)):
        monkeypatch.setattr(limits, f"INDEX_LAG_{name}_ROWS", value)
    monkeypatch.setattr(limits, "BULK_ROWS", 16)


@pytest.fixture
def steps(path):
    """Serves batches; what was done after each of them, as names of failpoints."""

    def steps_of(count, clock=time.monotonic, **env):
        after = []

        def note(name):
            if name == "reply.before":
                after.append([])
            elif after:
                after[-1].append(name)

        writer = Writer(resolve_paths(path), Environment(failpoint=note, **env))
        run(writer, SessionCreate(id="s", source="cli", started_at=1.0))
        after.clear()
        serve(writer, Batches(count), clock=clock)
        return after[:-1]  # after the last one the file is closed

    return steps_of


def kinds(names):
    kind = {"checkpoint.before": "checkpoint", "bulk.place": "index", "index.slice": "index"}
    return {kind[name] for name in names if name in kind}


class SlowClock:
    """Each look at it takes more than half of what all work on the index after a batch may."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        self.now += 0.03
        return self.now


def at_once(work):
    """Instead of a thread."""
    work()


def test_a_checkpoint_and_indexing_are_not_done_in_one_go(steps, monkeypatch):
    monkeypatch.setattr(limits, "CHECKPOINT_EVERY_COMMITS", 5)
    done = [kinds(names) for names in steps(40, start=at_once, clock=SlowClock())]
    assert {"checkpoint"} in done
    assert {"index"} in done
    assert {"checkpoint", "index"} not in done


def test_indexing_goes_on_though_a_checkpoint_is_always_due(steps, path, monkeypatch):
    monkeypatch.setattr(limits, "CHECKPOINT_EVERY_COMMITS", 1)
    steps(20, start=at_once, clock=lambda: 0.0)
    (newest,) = query(path, "SELECT MAX(id) FROM messages")[0]
    (covered,) = query(path, "SELECT value FROM hermes_actor_meta WHERE key = 'watermark'")[0]
    assert newest - covered <= limits.INDEX_LAG_MAX_ROWS


def test_slow_steps_are_not_added_up(steps):
    for names in steps(20, start=at_once, clock=SlowClock()):
        assert names.count("bulk.place") + names.count("index.slice") <= 1


def test_nothing_is_lost(steps, path):
    steps(8)
    writer = Writer(resolve_paths(path))
    index_everything(writer)
    writer.close()
    assert query(path, "SELECT COUNT(*) FROM messages") == [(8 * BATCH,)]
    assert_index_is_true(path)
