"""The byte budget: a waiter is notified whenever the credit comes back."""

import trio
import trio.testing

from hermes_actor.actor.byte_limiter import ByteLimiter


class LateCredit(ByteLimiter):
    """What is held comes back right after a waiter learned that there is none."""

    def try_take(self, amount, client):
        taken = super().try_take(amount, client)
        if not taken:
            self.give_back(self.used, client)
        return taken


def test_credit_that_comes_back_before_the_wait_begins_is_not_missed():
    async def main():
        credit = LateCredit(400, trio.lowlevel.current_trio_token().run_sync_soon)
        await credit.take(100, b"a")
        with trio.fail_after(10):
            await credit.take(60, b"a")
        return credit.used

    assert trio.run(main) == 60


def test_who_came_first_is_not_passed_by_who_asks_without_waiting():
    async def main():
        credit = ByteLimiter(400, trio.lowlevel.current_trio_token().run_sync_soon)
        await credit.take(100, b"a")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(credit.take, 100, b"a")
            await trio.testing.wait_all_tasks_blocked()
            assert not credit.try_take(1, b"b")
            credit.give_back(100, b"a")
        assert credit.try_take(1, b"b")
        return credit.used

    assert trio.run(main) == 101


async def taken(credit, amount, client, *, task_status):
    with trio.CancelScope() as scope:
        task_status.started(scope)
        await credit.take(amount, client)


def test_who_gives_up_waiting_lets_those_behind_pass():
    """Nothing else need come back for long: what is held may wait for a busy writer."""

    async def main():
        credit = ByteLimiter(400, trio.lowlevel.current_trio_token().run_sync_soon)
        for client in (b"a", b"b", b"c", b"d"):
            await credit.take(90, client)
        async with trio.open_nursery() as nursery:
            large = await nursery.start(taken, credit, 60, b"e")
            nursery.start_soon(credit.take, 40, b"f")
            await trio.testing.wait_all_tasks_blocked()
            assert credit.used == 360
            large.cancel()
            await trio.testing.wait_all_tasks_blocked()
            assert credit.used == 400

    trio.run(main)


def test_favoured_client_passes_those_who_wait_and_has_a_share_beyond_the_budget():
    async def main():
        credit = ByteLimiter(400, trio.lowlevel.current_trio_token().run_sync_soon)
        for client in (b"a", b"b", b"c", b"d"):
            await credit.take(100, client)
        async with trio.open_nursery() as nursery:
            other = await nursery.start(taken, credit, 10, b"e")
            await nursery.start(taken, credit, 10, b"a")
            await trio.testing.wait_all_tasks_blocked()
            assert credit.used == 400
            credit.favour(b"a")
            await trio.testing.wait_all_tasks_blocked()
            assert credit.used == 410
            assert credit.try_take(90, b"a")
            assert not credit.try_take(1, b"a")
            credit.favour(None)
            credit.give_back(100, b"b")
            await trio.testing.wait_all_tasks_blocked()
            assert credit.used == 400
            assert not credit.try_take(1, b"a")
            other.cancel()

    trio.run(main)
