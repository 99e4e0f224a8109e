"""Connections that are lent to the writer: who reads them, and when they go back."""

import errno
import os
import queue
import socket
import threading

import pytest

from hermes_actor import limits
from hermes_actor.actor.mailbox import Mailbox
from hermes_actor.actor.writer_poll import WriterSelector
from hermes_actor.engine.jobs import Job


class Line:
    """An incoming side whose requests are single letters; a full stop is not for the writer."""

    def __init__(self):
        self.ours, self.theirs = socket.socketpair()
        self.ours.setblocking(False)
        self.read = []
        self.times_returned = 0

    def fileno(self):
        return self.ours.fileno()

    def read_requests(self, admitted):
        data = self.ours.recv(100).decode()
        self.read += data.replace(".", "")
        for letter in data.replace(".", ""):
            admitted.append((letter.encode(), Job(lambda _outcome: None)))
        return bool(data) and "." not in data

    def returned(self):
        self.times_returned += 1

    def close(self):
        self.ours.close()
        self.theirs.close()


@pytest.fixture
def mailbox():
    mailbox = Mailbox()
    mailbox.take(0)  # the writer is there
    yield mailbox
    mailbox.selector.close()


@pytest.fixture
def line():
    line = Line()
    yield line
    line.close()


def test_writer_that_takes_reads_what_was_lent(mailbox, line):
    assert mailbox.selector.add(line)
    line.theirs.send(b"ab")
    assert len(mailbox.take(None)) == 2
    assert line.read == ["a", "b"]
    assert line.times_returned == 0
    line.theirs.send(b"c")
    assert len(mailbox.take(None)) == 1


def test_what_is_queued_and_what_is_at_the_door_is_one_batch(mailbox, line):
    mailbox.selector.add(line)
    mailbox.put(b"x", Job(lambda _outcome: None))
    line.theirs.send(b"a")
    assert len(mailbox.take(None)) == 2


def test_what_is_not_for_the_writer_goes_back_with_what_came_before_it_admitted(mailbox, line):
    mailbox.selector.add(line)
    line.theirs.send(b"a.")
    assert len(mailbox.take(None)) == 1
    assert line.times_returned == 1
    line.theirs.send(b"b")
    assert mailbox.take(0) == []
    assert line.read == ["a"]


def test_end_of_the_stream_goes_back(mailbox, line):
    mailbox.selector.add(line)
    line.theirs.close()
    assert mailbox.take(0) == []
    assert line.times_returned == 1


def test_nothing_is_read_after_it_was_taken_back(mailbox, line):
    mailbox.selector.add(line)
    line.theirs.send(b"a")
    mailbox.selector.remove(line)
    mailbox.selector.remove(line)
    assert mailbox.take(0) == []
    assert (line.read, line.times_returned) == ([], 0)


def test_taken_back_between_waiting_and_reading(mailbox, line):
    mailbox.selector.add(line)
    line.theirs.send(b"a")
    ready = mailbox.selector.wait(0)
    assert ready == [line.fileno()]
    mailbox.selector.remove(line)
    assert mailbox.selector.read(ready) == ([], [])
    assert line.read == []


def test_writer_that_is_busy_for_long_loses_what_was_lent(mailbox, line, monkeypatch):
    mailbox.selector.add(line)
    mailbox.selector.remove_all_if_away()
    assert line.times_returned == 0
    monkeypatch.setattr(limits, "WRITER_AWAY_SECONDS", -1.0)
    mailbox.selector.remove_all_if_away()
    assert line.times_returned == 1
    assert not mailbox.selector.add(line)
    line.theirs.send(b"a")
    assert mailbox.take(0) == []


def test_nothing_is_lent_to_a_writer_that_has_not_begun(line):
    selector = WriterSelector()
    assert not selector.add(line)
    selector.close()


def test_nothing_is_lent_that_the_kernel_does_not_watch(mailbox, line, monkeypatch):
    def register(*_):
        raise OSError(errno.ENOSPC, "no space for more watches")

    with monkeypatch.context() as patch:
        patch.setattr(mailbox.selector._selector, "register", register)
        assert not mailbox.selector.add(line)
    line.ours.close()
    monkeypatch.setattr(limits, "WRITER_AWAY_SECONDS", -1.0)
    mailbox.selector.remove_all_if_away()
    assert line.times_returned == 0


def test_writer_that_waits_is_not_away(mailbox, line, monkeypatch):
    monkeypatch.setattr(limits, "WRITER_AWAY_SECONDS", -1.0)
    taken = []
    thread = threading.Thread(target=lambda: taken.extend(mailbox.take(None)))
    thread.start()
    while not mailbox.selector.add(line):
        os.sched_yield()
    mailbox.selector.remove_all_if_away()
    line.theirs.send(b"a")
    thread.join()
    assert len(taken) == 1
    assert line.times_returned == 0


@pytest.mark.parametrize("last", [False, True])
def test_writer_that_waits_hears_what_others_put(mailbox, last):
    taken = []
    thread = threading.Thread(target=lambda: taken.extend(mailbox.take(None)))
    thread.start()
    job = Job(lambda _outcome: None)
    if last:
        mailbox.put_last(job)
    else:
        mailbox.put(b"a", job)
    thread.join()
    assert taken == [job]


def test_writer_does_not_wake_itself(mailbox, line):
    """A bell of its own would look like a client's, and cost a round of upkeep per request."""
    mailbox.selector.add(line)
    for _ in range(3):
        line.theirs.send(b"a")
        assert len(mailbox.take(None)) == 1
        assert mailbox.selector.wait(0) == []


def test_connection_to_accept_counts_as_waiting(mailbox, line):
    assert not mailbox.waiting()
    mailbox.selector.add(line)
    assert not mailbox.waiting()
    line.theirs.send(b"a")
    assert mailbox.waiting()
    assert mailbox.is_empty


def test_who_wants_the_writer_to_end_waits_too(mailbox):
    """Building an index in idle time may take minutes, and is given up for that."""
    mailbox.put_last(Job(lambda _outcome: None))
    assert mailbox.waiting()


def test_what_was_read_is_in_its_lane_before_the_event_loop_reads_on(mailbox, line):
    """Or else the next request of the client could overtake it (G3)."""
    queued = []
    line.returned = lambda: queued.append(mailbox.statistics().jobs)
    mailbox.selector.add(line)
    line.theirs.send(b"ab.")
    assert len(mailbox.take(None)) == 2
    assert queued == [2]


def test_connection_that_was_removed_has_nothing_on_its_way(mailbox, line):
    """The lane of a superseded connection is dropped whole, or its later requests would be applied
    without the earlier ones."""
    reading, go_on = threading.Event(), threading.Event()
    read = line.read_requests

    def slow(admitted):
        reading.set()
        go_on.wait(60)
        return read(admitted)

    line.read_requests = slow
    mailbox.selector.add(line)
    line.theirs.send(b"a")
    dropped = []

    def supersede():
        mailbox.selector.remove(line)
        dropped.extend(mailbox.drop(b"a"))

    writer = threading.Thread(target=lambda: mailbox.take(0))
    writer.start()
    reading.wait(60)
    other = threading.Thread(target=supersede)
    other.start()
    assert other.is_alive()
    go_on.set()
    writer.join()
    other.join()
    assert mailbox.is_empty


def test_writer_that_waits_for_a_step_reads_what_was_lent(mailbox, line):
    """The step of the open lease comes over a connection that is lent, as do requests of others."""
    steps = queue.SimpleQueue()
    plain = line.read_requests

    def read_requests(admitted):
        steps.put("step")
        return plain(admitted)

    line.read_requests = read_requests
    assert mailbox.selector.add(line)
    line.theirs.send(b"a")
    assert mailbox.take_step(steps, 60.0) == "step"
    assert len(mailbox.take(0)) == 1


def test_step_that_the_event_loop_brings_wakes_the_writer(mailbox):
    steps = queue.SimpleQueue()
    waits = threading.Event()
    wait = mailbox.selector.wait

    def announced(timeout, **more):
        waits.set()
        return wait(timeout, **more)

    mailbox.selector.wait = announced

    def bring():
        waits.wait(60.0)
        steps.put("step")
        mailbox.notice_step()

    thread = threading.Thread(target=bring)
    thread.start()
    assert mailbox.take_step(steps, 600.0) == "step"
    thread.join()


def test_wait_for_a_step_ends(mailbox):
    with pytest.raises(queue.Empty):
        mailbox.take_step(queue.SimpleQueue(), 0.001)
