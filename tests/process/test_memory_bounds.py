"""Memory is bounded (G8): large rows of many clients wait in their sockets, not in the actor."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

import pytest
from support.actors import actor_pid, peak_memory, wait_for
from support.files import query, write_lock
from support.wire import Wire, append, frame, request, select

from hermes_actor import SessionDB

MEGABYTE = 1_000_000
BOUND = 150 * MEGABYTE
CLIENTS = 64


@pytest.fixture
def db(path):
    with closing(SessionDB(path, mode="actor")) as db:
        db.create_session("s", "cli")
        yield db


def send_large_rows(wires, pool):
    # Not in a text that is searched: its index would be made long after the test.
    data = frame(request(1, append("s", "large", reasoning="x" * 2 * MEGABYTE)))
    return [pool.submit(wire.send, data) for wire in wires]


def check_large_rows(path, wires):
    answers = [wire.answer(1) for wire in wires]
    assert [a["t"] for a in answers] == ["ok"] * CLIENTS
    assert sorted(a["commit_no"] for a in answers) == list(range(2, CLIENTS + 2))
    ((count, size),) = query(path, "SELECT COUNT(*), SUM(LENGTH(reasoning)) FROM messages")
    assert (count, size) == (CLIENTS, CLIENTS * 2 * MEGABYTE)
    assert peak_memory(actor_pid(path)) < BOUND


def test_many_clients_with_large_rows_stay_under_the_bound(path, db):
    with ExitStack() as stack:
        wires = [stack.enter_context(closing(Wire(path))) for _ in range(CLIENTS)]
        pool = stack.enter_context(ThreadPoolExecutor(CLIENTS))
        send_large_rows(wires, pool)
        check_large_rows(path, wires)


def test_full_budget_is_back_pressure_and_status_tells_of_it(path, db):
    """While nothing can be written, some rows are inside and the others in their sockets."""
    with ExitStack() as stack:
        wires = [stack.enter_context(closing(Wire(path))) for _ in range(CLIENTS)]
        pool = stack.enter_context(ThreadPoolExecutor(CLIENTS))
        with write_lock(path):
            sent = send_large_rows(wires, pool)
            wait_for(lambda: sum(future.done() for future in sent) >= 4)
            # A request for its status is answered, whatever waits.
            found = db._port.statistics()
            assert found["queue"]["bytes"] > 4 * 2 * MEGABYTE
            assert not all(future.done() for future in sent)
        check_large_rows(path, wires)


def test_those_who_send_and_never_listen_do_not_make_it_grow(path, db):
    """Eight clients ask for twenty megabytes each and read none of it; all are cut off."""
    operation = select("SELECT hex(zeroblob(500000))")
    data = b"".join(frame(request(seq, operation)) for seq in range(1, 21))
    with ExitStack() as stack:
        wires = [stack.enter_context(closing(Wire(path))) for _ in range(8)]
        for wire in wires:
            wire.send(data)
        wait_for(lambda: len(db._port.statistics()["connections"]) == 1)
        db.append_message("s", "user", "still here")
        assert peak_memory(actor_pid(path)) < BOUND


def test_asks_without_listening_do_not_make_it_grow(path, db):
    """Four thousand questions about its status, none of the answers read."""
    data = frame({"t": "status", "ask": -1}) * 4_000
    with closing(Wire(path)) as wire:
        wire.send(data)
        wait_for(lambda: len(db._port.statistics()["connections"]) == 1)
    db.append_message("s", "user", "still here")
    assert peak_memory(actor_pid(path)) < BOUND


def test_large_row_of_the_product_s_own_client_goes_in_parts(path, db):
    """Eight threads append rows that are larger than a frame."""
    sizes = [5 * MEGABYTE + n for n in range(8)]
    errors = []

    def write(size):
        try:
            db.append_message("s", "assistant", "large", reasoning="x" * size)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(size,)) for size in sizes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    found = query(path, "SELECT LENGTH(reasoning) FROM messages ORDER BY 1")
    assert found == [(size,) for size in sizes]
    assert query(path, "SELECT COUNT(*) FROM hermes_actor_stage") == [(0,)]
    assert peak_memory(actor_pid(path)) < BOUND
