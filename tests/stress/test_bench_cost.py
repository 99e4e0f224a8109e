"""The verdict on the processor time of an append: a ratio that is too high fails, every time."""

import sys

import bench_cost
import pytest


@pytest.fixture
def found(monkeypatch):
    """Ratios of the attempts to come, as multiples of those that are recorded."""
    attempts = []

    def measure(_rounds, _say):
        factor = attempts.pop(0)
        return {name: factor * ratio for name, ratio in bench_cost.RECORDED.items()}

    monkeypatch.setattr(bench_cost, "measure", measure)
    monkeypatch.setattr(sys, "argv", ["bench_cost.py"])
    monkeypatch.setenv("HERMES_ACTOR_IDLE_EXIT", "5")
    return attempts


@pytest.mark.parametrize(("attempts", "code"), [([1.49], 0), ([1.6, 1.7, 1.2], 0), ([1.6] * 3, 1)])
def test_every_attempt_must_be_too_high(found, attempts, code, capsys):
    found += attempts
    assert bench_cost.main() == code
    assert found == []
    assert "recorded" in capsys.readouterr().out


def test_an_append_is_measured_on_both_ways():
    ratios = bench_cost.measure(1, lambda _line: None)
    assert ratios.keys() == bench_cost.RECORDED.keys()
    assert all(ratio > 0 for ratio in ratios.values())
