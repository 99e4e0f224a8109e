"""When an actor ends by itself."""

import types

import pytest
import trio
import trio.testing

from hermes_actor.actor.timers import IdleWatch


class Actor:
    """What a watch needs of its actor."""

    def __init__(self, home):
        self.paths = types.SimpleNamespace(db=home / "state.db")
        self.last_left = trio.current_time()
        self.drained = []

    def watch(self, idle_exit):
        return IdleWatch(
            self.paths,
            idle_exit,
            is_opened=lambda: True,
            is_in_use=lambda: False,
            last_left=lambda: self.last_left,
            rescue=self.rescue,
            drain=self.drained.append,
        )

    async def rescue(self):
        pass


def run(work):
    trio.run(work, clock=trio.testing.MockClock(autojump_threshold=0))


async def pass_seconds(watch, seconds):
    end = trio.current_time() + seconds
    while trio.current_time() < end:  # noqa: ASYNC110 - as the actor does it
        await trio.sleep(await watch.check())


def test_actor_that_is_not_used_ends(tmp_path):
    async def work():
        actor = Actor(tmp_path)
        await pass_seconds(actor.watch(5.0), 10)
        assert "idle" in actor.drained

    run(work)


def test_client_that_came_and_left_between_two_looks_counts(tmp_path):
    """A command is done in a twentieth of the time between two looks."""

    async def work():
        actor = Actor(tmp_path)
        watch = actor.watch(5.0)
        for _ in range(10):
            await pass_seconds(watch, 3)
            actor.last_left = trio.current_time()
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
        await actor.watch(None).check()
        monkeypatch.undo()
        assert actor.drained == (["the home is gone"] if gone else [])

    run(work)
