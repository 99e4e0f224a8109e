"""Answers on their way to a client that takes them slowly, or not at all."""

import socket

import pytest

from hermes_actor import limits
from hermes_actor.actor.outbox import Backlog, Outbox


class Narrow:
    """A socket that takes so many bytes at a time, when the test lets it."""

    def __init__(self, at_once=1000):
        self.at_once = at_once
        self.open = True
        self.sent = b""
        self.buffers = []

    def send(self, data):
        if not self.open:
            raise BlockingIOError
        self.buffers.append(data)
        self.sent += bytes(data[: self.at_once])
        return min(len(data), self.at_once)


@pytest.fixture
def sock():
    return Narrow()


@pytest.fixture
def backlog():
    return Backlog()


@pytest.fixture
def outbox(sock, backlog):
    return Outbox(sock, lambda: None, backlog)


def empty(outbox):
    while not outbox.flush():
        pass


def test_large_answer_is_not_copied_for_every_part_that_the_kernel_takes(outbox, sock):
    answer = b"x" * 100_000
    outbox.add(answer)
    empty(outbox)
    assert sock.sent == answer
    assert len(sock.buffers) == 100
    assert all(buffer.obj is answer for buffer in sock.buffers)


def test_answers_leave_in_order_whatever_the_kernel_takes(outbox, sock):
    frames = [bytes([n]) * (n * 300) for n in range(1, 30)]
    for frame in frames:
        outbox.add(frame)
        outbox.flush()
    empty(outbox)
    assert sock.sent == b"".join(frames)
    assert not outbox.closed


def test_answers_of_a_long_batch_leave_before_its_end(outbox, sock):
    sock.at_once = 1 << 30
    for _ in range(100):
        outbox.add(b"x" * 100_000)
    assert len(sock.sent) > 100 * 100_000 - limits.OUTBOX_FLUSH_BYTES
    assert not outbox.closed


def test_client_with_too_much_is_sent_what_is_there_and_then_cut_off(outbox, sock, backlog):
    sock.open = False
    frames = [bytes([n]) * 1_000_000 for n in range(10)]
    for frame in frames:
        outbox.add(frame)
    assert limits.OUTBOX_MAX_BYTES < backlog.bytes < limits.OUTBOX_MAX_BYTES + 2_000_000
    sock.open, sock.at_once = True, 100_000
    assert not outbox.closed
    empty(outbox)
    assert outbox.closed
    assert sock.sent == b"".join(frames[: len(sock.sent) // 1_000_000])
    assert len(sock.sent) > limits.OUTBOX_MAX_BYTES
    assert backlog.bytes == 0


def test_one_answer_of_any_size_gets_through(outbox, sock):
    sock.at_once = 1_000_000
    answer = b"x" * (3 * limits.OUTBOX_MAX_BYTES)
    outbox.add(answer)
    empty(outbox)
    assert sock.sent == answer
    assert not outbox.closed


def test_all_clients_together_have_a_bound(backlog):
    boxes = [Outbox(Narrow(), lambda: None, backlog) for _ in range(50)]
    for box in boxes:
        box._sock.open = False
        box.add(b"x" * 3_000_000)
    assert backlog.bytes < limits.OUTBOX_TOTAL_BYTES + 3_000_000
    # One that takes its answers is served all the same.
    taker = Outbox(Narrow(at_once=1 << 20), lambda: None, backlog)
    taker.add(b"small")
    assert taker.flush()
    assert taker._sock.sent == b"small"
    for box in boxes:
        box.close()
    assert backlog.bytes == 0


def test_client_that_is_gone_closes_it(backlog):
    ours, theirs = socket.socketpair()
    theirs.close()
    woken = []
    outbox = Outbox(ours, lambda: woken.append(1), backlog)
    outbox.add(b"x")
    outbox.flush()
    assert outbox.closed
    assert woken
    ours.close()
