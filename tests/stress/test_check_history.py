"""The checker of histories can fail: every way to spoil a good history is found."""

import pytest
from harness.synthetic_history import WINDOW, MadeUp

from hermes_actor.testing.history import RULES, Read, Row, check_cut, digest_of


def lose_the_last(h):
    row = h.rows.pop(h.row_of(h.ok[-1]))
    h.places.remove(row.place)


def lose_one_in_the_middle(h):
    h.rows.pop(h.row_of(h.ok[len(h.ok) // 2]))


def apply_twice(h):
    h.places.append(max(h.places) + 1)
    h.rows.append(h.rows[10]._replace(place=max(h.places)))


def row_that_was_not_sent(h):
    h.places.append(max(h.places) + 1)
    h.rows.append(Row(max(h.places), "stranger", 1, 0))


def flip_a_bit(h):
    h.change("rows", 5, payload=h.rows[5].payload ^ 1)


def drop_a_receipt(h):
    h.change("rows", 7, place=None)


def drop_the_row_of_a_receipt(h):
    h.orphans.append(h.rows.pop(h.row_of(h.ok[3])).place)


def show_a_refused_one(h):
    h.change("writes", h.ok[4], outcome="failed")


def swap_places(h):
    one, other = h.rows[20], h.rows[40]
    h.change("rows", 20, place=other.place)
    h.change("rows", 40, place=one.place)


def swap_two_of_a_client(h):
    rows = [n for n, row in enumerate(h.rows) if row.client == "c1"][5:7]
    one, other = (h.rows[n] for n in rows)
    h.change("rows", rows[0], number=other.number)
    h.change("rows", rows[1], number=one.number)


def swap_neighbours_of_two_clients(h):
    """Every client is still in order, and every answer fits; only the clock does not."""
    for n in h.ok:
        at = h.row_of(n)
        one, other = h.rows[at], h.rows[at + 1]
        if one.client != other.client and n + 1 in h.ok and other.number == h.writes[n + 1].number:
            break
    h.rows[at], h.rows[at + 1] = other._replace(place=one.place), one._replace(place=other.place)
    h.change("writes", n, place=other.place)
    h.change("writes", n + 1, place=one.place)
    h.reads, h.answers = [], []


def answered_with_another_place(h):
    h.change("writes", h.ok[6], place=h.writes[h.ok[6]].place + 1)


def answered_with_another_result(h):
    h.change("writes", h.ok[6], result=-1)


def answered_otherwise_again(h):
    h.answers[0] = h.answers[0]._replace(result=-1)


def skip_a_place(h):
    h.places[30:] = [place + 1 for place in h.places[30:]]


def use_a_place_twice(h):
    h.places.append(h.places[30])


def stale_read(h):
    read = h.reads[100]
    rows = h.rows[: read.rows - 3]
    last = digest_of(row.payload for row in rows[-WINDOW:])
    h.change("reads", 100, place=rows[-1].place, rows=len(rows), digest=last)


def future_read(h):
    read = h.reads[50]
    rows = h.rows[: read.rows + 9]
    last = digest_of(row.payload for row in rows[-WINDOW:])
    h.change("reads", 50, place=rows[-1].place, rows=len(rows), digest=last)


def backward_read(h):
    """Nothing was acknowledged meanwhile, and yet an earlier read had seen more."""
    unknown = {(w.client, w.number): n for n, w in enumerate(h.writes) if w.outcome == "unknown"}
    at, row = next(
        (n, row)
        for n, row in enumerate(h.rows)
        if n > WINDOW and (row.client, row.number) in unknown
    )
    began = h.writes[unknown[row.client, row.number]].began

    def read(rows, began):
        last = digest_of(row.payload for row in h.rows[rows - WINDOW : rows])
        return Read("r", began, began + 0.01, h.rows[rows - 1].place, rows, WINDOW, last)

    h.reads = [read(at + 1, began + 0.1), read(at, began + 0.2)]


def torn_snapshot(h):
    h.change("reads", 60, rows=h.reads[60].rows - 1)


def snapshot_with_another_row(h):
    h.change("reads", 60, digest=h.reads[60].digest ^ 1)


def no_answer(h):
    h.calm = 0.0


def slow_answer(h):
    h.writes = [w for w in h.writes if w.outcome != "unknown"]
    known = {(w.client, w.number) for w in h.writes}
    h.rows = [row for row in h.rows if (row.client, row.number) in known]
    h.places, h.reads, h.calm = None, [], 100.0
    # At the end of the order, so that it is late and nothing else.
    h.ok = [n for n, write in enumerate(h.writes) if write.outcome == "ok"]
    h.change("writes", h.ok[-1], ended=h.writes[h.ok[-1]].began + 6.0)


def damaged_page(h):
    h.structure.append("row 17 missing from index")


SPOILED = {
    lose_the_last: {"lost"},
    lose_one_in_the_middle: {"lost"},
    apply_twice: {"doubled"},
    row_that_was_not_sent: {"phantom"},
    flip_a_bit: {"altered"},
    drop_a_receipt: {"torn"},
    drop_the_row_of_a_receipt: {"torn", "lost"},
    show_a_refused_one: {"resurrected"},
    swap_places: {"mismatch", "real-time"},
    swap_two_of_a_client: {"client-order"},
    swap_neighbours_of_two_clients: {"real-time"},
    answered_with_another_place: {"mismatch"},
    answered_with_another_result: {"mismatch"},
    answered_otherwise_again: {"mismatch"},
    skip_a_place: {"gap"},
    use_a_place_twice: {"gap"},
    stale_read: {"stale"},
    future_read: {"future"},
    backward_read: {"backward"},
    torn_snapshot: {"no-prefix"},
    snapshot_with_another_row: {"no-prefix"},
    no_answer: {"stuck"},
    slow_answer: {"stuck"},
    damaged_page: {"structure"},
}

ALONE = {
    flip_a_bit, show_a_refused_one, swap_neighbours_of_two_clients, answered_with_another_result,
    answered_otherwise_again, skip_a_place, use_a_place_twice, backward_read, torn_snapshot,
    snapshot_with_another_row, no_answer, slow_answer, damaged_page,
}  # fmt: skip
"""Those that break one rule only, so that no other can hide that it sleeps."""


def test_good_history_has_no_violation():
    assert MadeUp(3000).check() == []


@pytest.mark.parametrize("spoil", SPOILED, ids=lambda spoil: spoil.__name__)
def test_spoiled_history_is_found(spoil):
    history = MadeUp(3000)
    spoil(history)
    rules = {violation.rule for violation in history.check()}
    assert rules >= SPOILED[spoil]
    if spoil in ALONE:
        assert rules - {"no-prefix"} <= SPOILED[spoil]


def test_every_rule_has_something_that_breaks_it():
    assert len(RULES) == 17
    assert set().union(*SPOILED.values()) | {"cut"} == set(RULES)


def test_large_history_is_checked():
    """100,000 writes and 30,000 reads; `stress/check_history.py --measure` tells how long."""
    history = MadeUp(100_000, clients=64)
    assert len(history.reads) > 29_000
    assert history.check() == []


# --- what a power cut leaves ---------------------------------------------------------------------


def left(*places):
    return [Row(place, "c", place, 0) for place in places]


def test_cut_leaves_what_was_acknowledged_and_a_beginning_of_the_rest():
    for there in (left(1, 2, 3), left(1, 2, 3, 4), left(1, 2, 3, 4, 5)):
        assert check_cut(3, 5, there) == []


@pytest.mark.parametrize(
    ("there", "rule"),
    [
        (left(1, 2), "cut"),
        (left(1, 2, 3, 4, 5, 6), "cut"),
        (left(1, 2, 3, 5), "gap"),
        ([*left(1, 2, 3), Row(4, "c", 2, 0)], "doubled"),
        ([*left(1, 2, 3), Row(None, "c", 4, 0)], "torn"),
    ],
)
def test_cut_that_leaves_anything_else_is_found(there, rule):
    assert {violation.rule for violation in check_cut(3, 5, there)} == {rule}


def test_cut_during_more_than_a_batch_is_found():
    assert check_cut(3, 5, left(1, 2, 3), batch=1) != []
