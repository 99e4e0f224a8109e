"""Which builds clients may have an actor hand over to, by themselves."""

import pytest

from hermes_actor import limits
from hermes_actor.actor.handoff.coordinator import HandoffCoordinator
from hermes_actor.errors import HandoffFailed


@pytest.fixture
def handoffs():
    return HandoffCoordinator(None, None, None, None, pinned=False, options=())


def test_build_is_tried_once_a_minute(handoffs, monkeypatch):
    handoffs._check_automatic_request("99.1+a")
    with pytest.raises(HandoffFailed, match="less than 60 s ago"):
        handoffs._check_automatic_request("99.1+a")
    handoffs._check_automatic_request("99.1+b")
    monkeypatch.setattr(limits, "HANDOFF_RETRY_SECONDS", 0.0)
    handoffs._check_automatic_request("99.1+a")


def test_names_of_builds_do_not_pile_up(handoffs, monkeypatch):
    """They come over the wire: any number, of any length."""
    with pytest.raises(HandoffFailed, match="not the name of a build"):
        handoffs._check_automatic_request("99.1+" + "x" * 1_000_000)
    monkeypatch.setattr(limits, "HANDOFF_RETRY_SECONDS", 0.0)
    for number in range(1000):
        handoffs._check_automatic_request(f"99.1+{number}")
    assert len(handoffs._asked_by_build) == 1
