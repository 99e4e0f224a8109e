"""When an actor ends by itself."""

import types

import pytest
import trio
import trio.testing

from hermes_actor.actor.timers import Watch


class Actor:
    """What a watch looks at."""

    def __init__(self, home):
        self.opened = trio.Event()
        self.opened.set()
        self.paths = types.SimpleNamespace(db=home / "state.db")
        self.succession = types.SimpleNamespace(attempt=None)
        self.reception = types.SimpleNamespace(connections=set(), last_left=trio.current_time())
        self.mailbox = types.SimpleNamespace(is_empty=True)
        self.writer = None
        self.rescue = False
        self.drained = []

    def drain(self, reason):
        self.drained.append(reason)


def run(work):
    trio.run(work, clock=trio.testing.MockClock(autojump_threshold=0))


async def pass_seconds(watch, seconds):
    end = trio.current_time() + seconds
    while trio.current_time() < end:  # noqa: ASYNC110 - as the actor does it
        await trio.sleep(await watch.look())


def test_actor_that_is_not_used_ends(tmp_path):
    async def work():
        actor = Actor(tmp_path)
        await pass_seconds(Watch(actor, 5.0), 10)
        assert "idle" in actor.drained

    run(work)


def test_client_that_came_and_left_between_two_looks_counts(tmp_path):
    """A command is done in a twentieth of the time between two looks."""

    async def work():
        actor = Actor(tmp_path)
        watch = Watch(actor, 5.0)
        for _ in range(10):
            await pass_seconds(watch, 3)
            actor.reception.last_left = trio.current_time()
        assert actor.drained == []
        await pass_seconds(watch, 10)
        assert "idle" in actor.drained

    run(work)


@pytest.mark.parametrize("gone", [True, False])
def test_home_that_cannot_be_seen_is_not_gone(tmp_path, monkeypatch, gone):
    async def work():
        actor = Actor(tmp_path / "home")
        kind = FileNotFoundError if gone else PermissionError

        def stat(_self, **_options):
            raise kind("no")

        monkeypatch.setattr("pathlib.Path.stat", stat)
        await Watch(actor, None).look()
        monkeypatch.undo()
        assert actor.drained == (["the home is gone"] if gone else [])

    run(work)
