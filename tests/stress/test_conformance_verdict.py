"""The comparison of a suite on both sides can fail, in each way that it should."""

import pytest
from conformance.suites import Outcome
from conformance.verdict import Listed, judge, listed

PASSED, FAILED = Outcome("passed", ""), Outcome("failed", "Traceback\nValueError: no")
DIFFERENCE, ELSEWHERE = Listed("difference", "a reason"), Listed("not applicable", "a reason")


def faults(ours, control, known=None):
    return judge("suite", ours, control, known or {}).faults


def test_what_passes_on_both_sides_is_no_fault():
    assert faults({"a": PASSED}, {"a": PASSED}) == []


def test_a_failure_that_is_not_in_the_list_is_a_fault():
    assert faults({"a": FAILED}, {"a": PASSED}) == ["a failed: ValueError: no"]
    assert faults({}, {"a": PASSED}) == ["a missing: "]
    assert faults({"a": Outcome("skipped", "")}, {"a": PASSED}) == ["a skipped: "]


def test_a_failure_of_both_sides_is_none():
    assert faults({"a": FAILED}, {"a": FAILED}) == []


def test_the_list_must_be_true():
    known = {"a": DIFFERENCE}
    assert faults({"a": FAILED}, {"a": PASSED}, known) == []
    assert faults({"a": PASSED}, {"a": PASSED}, known) == ["a is in the list, and passes"]
    assert faults({"a": FAILED}, {"a": FAILED}, known) == [
        "a is in the list, and fails without us, too"
    ]
    assert faults({}, {}, known) == []


def test_the_share_is_that_of_the_applicable_tests():
    ours = {"a": PASSED, "b": FAILED, "c": FAILED, "d": FAILED}
    control = {"a": PASSED, "b": PASSED, "c": PASSED, "d": FAILED}
    verdict = judge("suite", ours, control, {"b": DIFFERENCE, "c": ELSEWHERE})
    assert (verdict.tests, verdict.control, verdict.applicable, verdict.ours) == (4, 3, 2, 1)
    assert verdict.share == 0.5


def test_entries_need_a_group_and_a_reason(tmp_path):
    file = tmp_path / "list.toml"
    file.write_text('[[s]]\ngroup = "difference"\nwhy = "so"\ntests = ["a", "b"]\n')
    assert set(listed("s", file)) == {"a", "b"}
    assert listed("other", file) == {}
    file.write_text('[[s]]\ngroup = "difference"\nwhy = " "\ntests = ["a"]\n')
    with pytest.raises(ValueError, match="missing"):
        listed("s", file)
    file.write_text('[[s]]\ngroup = "difference"\nwhy = "so"\ntests = ["a", "a"]\n')
    with pytest.raises(ValueError, match="twice"):
        listed("s", file)
