"""The byte budget: who waits is told, whenever the credit comes back."""

import trio
import trio.testing

from hermes_actor.actor.credit import Credit


class LateCredit(Credit):
    """What is held comes back right after somebody was told that there is none."""

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
        credit = Credit(400, trio.lowlevel.current_trio_token().run_sync_soon)
        await credit.take(100, b"a")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(credit.take, 100, b"a")
            await trio.testing.wait_all_tasks_blocked()
            assert not credit.try_take(1, b"b")
            credit.give_back(100, b"a")
        assert credit.try_take(1, b"b")
        return credit.used

    assert trio.run(main) == 101
