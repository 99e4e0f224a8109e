"""The status document as types: its keys, its defaults, and documents of other builds."""

import json
import resource
import sys

import msgspec
import pytest

from hermes_actor.actor import status as reporting
from hermes_protocol.status import HandoffStatus, HandoffStep, Phase, PhaseReport, Status

LEAST = {"pid": 7, "version": "0.1.0", "phase": "serving"}


@pytest.mark.parametrize(
    ("report", "text"),
    [
        (PhaseReport(Phase.SERVING), "serving"),
        (PhaseReport(Phase.MIGRATING, "40%"), "migrating 40%"),
        (PhaseReport(Phase.CLOSED, "pid 7: stuck"), "closed: pid 7: stuck"),
        (PhaseReport(Phase.WAITING_FOR_LOCK), "waiting for another program that holds the lock"),
        (PhaseReport(Phase.UNKNOWN, "compacting 3%"), "compacting 3%"),
        (PhaseReport(Phase.UNKNOWN, "servings"), "servings"),
    ],
)
def test_phase_has_one_text_and_is_read_back_from_it(report, text):
    assert report.text == text
    assert PhaseReport.parse(text) == report


def test_every_phase_is_read_back():
    for phase in Phase:
        assert PhaseReport.parse(PhaseReport(phase).text).phase is phase


def test_document_of_an_older_build_has_defaults():
    status = Status.from_document(LEAST)
    assert (status.pid, status.phase, status.is_serving) == (7, Phase.SERVING, True)
    assert (status.queue.count, status.index.lag, status.handoff, status.connections) == (
        0, 0, None, [],
    )  # fmt: skip


def test_document_of_a_newer_build_is_read():
    status = Status.from_document(
        LEAST | {"phase": "compacting 3%", "more": [1], "handoff": {"step": "resting", "new": 1}}
    )
    assert (status.phase, status.phase_text) == (Phase.UNKNOWN, "compacting 3%")
    assert not status.is_serving
    assert status.handoff == HandoffStatus(step=HandoffStep.UNKNOWN)


def test_document_keeps_the_keys_of_the_wire():
    status = Status.from_document(LEAST)
    document = status.document()
    assert {key: document[key] for key in LEAST} == LEAST
    assert "phase_text" not in document
    assert Status.from_document(json.loads(json.dumps(document))) == status


@pytest.mark.parametrize("missing", ["pid", "version", "phase"])
def test_something_else_is_refused(missing):
    document = {key: value for key, value in LEAST.items() if key != missing}
    with pytest.raises(msgspec.ValidationError):
        Status.from_document(document)
    with pytest.raises(ValueError, match="Expected"):
        Status.from_document([])


@pytest.mark.parametrize(("platform", "unit"), [("linux", 1), ("darwin", 1024)])
def test_most_memory_is_in_kib_on_every_system(monkeypatch, platform, unit):
    """Of the numbers of the kernel only the unit differs: macOS counts bytes."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    monkeypatch.setattr(resource, "getrusage", lambda _who: used)
    monkeypatch.setattr(sys, "platform", platform)
    assert reporting._memory_max_kib() == used.ru_maxrss // unit > 0
