"""Connections that are lent to the writer: who reads them, and when they go back."""

import errno
import os
import socket
import threading

import pytest

from hermes_actor import limits
from hermes_actor.actor.mailbox import Mailbox
from hermes_actor.actor.writer_poll import WriterSelector
from hermes_actor.engine.jobs import Job


class ActorConnection:
    """An incoming side whose requests are single letters; a full stop is not for the writer."""

    def __init__(self, mailbox):
        self.mailbox = mailbox
        self.ours, self.theirs = socket.socketpair()
        self.ours.setblocking(False)
        self.read = []
        self.returned = 0

    def fileno(self):
        return self.ours.fileno()

    def read_requests(self):
        data = self.ours.recv(100).decode()
        self.read += data.replace(".", "")
        for letter in data.replace(".", ""):
            self.mailbox.put(letter.encode(), Job(lambda _outcome: None))
        return bool(data) and "." not in data

    def given_back(self):
        self.returned += 1

    def close(self):
        self.ours.close()
        self.theirs.close()


@pytest.fixture
def mailbox():
    mailbox = Mailbox()
    mailbox.take(0)  # the writer is there
    yield mailbox
    mailbox.intake.close()


@pytest.fixture
def line(mailbox):
    line = ActorConnection(mailbox)
    yield line
    line.close()


def test_writer_that_takes_reads_what_was_lent(mailbox, line):
    assert mailbox.intake.lend(line)
    line.theirs.send(b"ab")
    assert len(mailbox.take(None)) == 2
    assert line.read == ["a", "b"]
    assert line.returned == 0
    line.theirs.send(b"c")
    assert len(mailbox.take(None)) == 1


def test_what_is_queued_and_what_is_at_the_door_is_one_batch(mailbox, line):
    mailbox.intake.lend(line)
    mailbox.put(b"x", Job(lambda _outcome: None))
    line.theirs.send(b"a")
    assert len(mailbox.take(None)) == 2


def test_what_is_not_for_the_writer_goes_back_with_what_came_before_it_admitted(mailbox, line):
    mailbox.intake.lend(line)
    line.theirs.send(b"a.")
    assert len(mailbox.take(None)) == 1
    assert line.returned == 1
    line.theirs.send(b"b")
    assert mailbox.take(0) == []
    assert line.read == ["a"]


def test_end_of_the_stream_goes_back(mailbox, line):
    mailbox.intake.lend(line)
    line.theirs.close()
    assert mailbox.take(0) == []
    assert line.returned == 1


def test_nothing_is_read_after_it_was_taken_back(mailbox, line):
    mailbox.intake.lend(line)
    line.theirs.send(b"a")
    mailbox.intake.take_back(line)
    mailbox.intake.take_back(line)
    assert mailbox.take(0) == []
    assert (line.read, line.returned) == ([], 0)


def test_taken_back_between_waiting_and_reading(mailbox, line):
    mailbox.intake.lend(line)
    line.theirs.send(b"a")
    ready = mailbox.intake.wait(0)
    assert ready == [line.fileno()]
    mailbox.intake.take_back(line)
    mailbox.intake.admit(ready)
    assert line.read == []


def test_writer_that_is_busy_for_long_loses_what_was_lent(mailbox, line, monkeypatch):
    mailbox.intake.lend(line)
    mailbox.intake.take_back_if_away()
    assert line.returned == 0
    monkeypatch.setattr(limits, "WRITER_AWAY_SECONDS", -1.0)
    mailbox.intake.take_back_if_away()
    assert line.returned == 1
    assert not mailbox.intake.lend(line)
    line.theirs.send(b"a")
    assert mailbox.take(0) == []


def test_nothing_is_lent_to_a_writer_that_has_not_begun(line):
    intake = WriterSelector()
    assert not intake.lend(line)
    intake.close()


def test_nothing_is_lent_that_the_kernel_does_not_watch(mailbox, line, monkeypatch):
    def register(*_):
        raise OSError(errno.ENOSPC, "no space for more watches")

    with monkeypatch.context() as patch:
        patch.setattr(mailbox.intake._selector, "register", register)
        assert not mailbox.intake.lend(line)
    line.ours.close()
    monkeypatch.setattr(limits, "WRITER_AWAY_SECONDS", -1.0)
    mailbox.intake.take_back_if_away()
    assert line.returned == 0


def test_writer_that_waits_is_not_away(mailbox, line, monkeypatch):
    monkeypatch.setattr(limits, "WRITER_AWAY_SECONDS", -1.0)
    taken = []
    thread = threading.Thread(target=lambda: taken.extend(mailbox.take(None)))
    thread.start()
    while not mailbox.intake.lend(line):
        os.sched_yield()
    mailbox.intake.take_back_if_away()
    line.theirs.send(b"a")
    thread.join()
    assert len(taken) == 1
    assert line.returned == 0


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
    """A bell of its own would look like somebody's, and cost a round of upkeep per request."""
    mailbox.intake.lend(line)
    for _ in range(3):
        line.theirs.send(b"a")
        assert len(mailbox.take(None)) == 1
        assert mailbox.intake.wait(0) == []


def test_somebody_at_the_door_is_somebody_who_waits(mailbox, line):
    assert not mailbox.waiting()
    mailbox.intake.lend(line)
    assert not mailbox.waiting()
    line.theirs.send(b"a")
    assert mailbox.waiting()
    assert mailbox.is_empty


def test_who_wants_the_writer_to_end_waits_too(mailbox):
    """Building an index in idle time may take minutes, and is given up for that."""
    mailbox.put_last(Job(lambda _outcome: None))
    assert mailbox.waiting()
