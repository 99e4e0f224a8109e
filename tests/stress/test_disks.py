"""The jobs about disks can fail: every deliberate fault of the engine is found."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from disks.power_cuts import Disk, cuts

STRESS = Path(__file__).parents[2] / "stress"

FOUND_BY = {
    "synchronous-off": ("crash_replay", "workload=commits"),
    "synchronous-normal": ("crash_replay", "workload=commits"),
    "reply-before-commit": ("crash_replay", "workload=commits"),
    "receipt-apart": ("crash_replay", "workload=commits"),
    "journal-not-synced": ("crash_replay", "workload=without WAL"),
    "no-barrier": ("fsync_policy", None),
    "no-boot-commit": ("fsync_policy", None),
    "no-fold": ("fsync_policy", None),
    "go-on-after-failed-sync": ("fsync_policy", None),
    "wal-not-written-again": ("fsync_policy", None),
    "answered-before-sync": ("strace_replay", None),
}


@pytest.mark.parametrize("fault", FOUND_BY)
def test_deliberate_fault_is_found(fault, tmp_path):
    job, option = FOUND_BY[fault]
    words = [sys.executable, STRESS / f"stress_{job}.py", "--seed", "1", "--set", f"break={fault}"]
    words += ["--set", option] if option else []
    words += ["--set", "enough=1", "--evidence", tmp_path]
    done = subprocess.run(words, capture_output=True, text=True)
    report = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == 1
    assert "the job itself" not in report["examples"][0]
    # The evidence of it is there.
    assert any(Path(report["kept"]).rglob("state.db"))


def disk(*events):
    found = Disk()
    for event in events:
        found.feed(event)
    return found


CREATED = (("create", "f"), ("write", "f", 0, b"a" * 1024), ("sync", "f"))


def test_unsynced_writes_are_lost_kept_or_torn_by_sector():
    written = disk(*CREATED, ("write", "f", 0, b"b" * 1024))
    assert written.image("lost") == {"f": b"a" * 1024}
    assert written.image("kept") == {"f": b"b" * 1024}
    torn = {written.image("torn", seed)["f"] for seed in range(50)}
    halves = {first * 512 + second * 512 for first in (b"a", b"b") for second in (b"a", b"b")}
    assert torn == halves


def test_refused_sync_takes_its_writes_from_the_disk_for_good():
    refused = disk(*CREATED, ("write", "f", 0, b"b" * 512), ("refused", "f", "sync", "EIO"))
    refused.feed(("sync", "f"))
    assert refused.image("kept") == {"f": b"a" * 1024}


def test_deleted_file_may_come_back_until_the_folder_is_synced():
    deleted = disk(*CREATED, ("delete", "f", False))
    assert deleted.image("lost") == {"f": b"a" * 1024}
    assert deleted.image("kept") == {}
    for event in (("create", "g"), ("write", "g", 0, b"g"), ("sync", "g")):
        deleted.feed(event)
    assert deleted.image("lost") == {"g": b"g"}
    assert disk(*CREATED, ("delete", "f", True)).image("lost") == {}


def test_file_that_was_never_synced_need_not_be_there():
    assert disk(("create", "f"), ("write", "f", 0, b"a")).image("lost") == {}


def test_power_is_cut_after_every_event():
    found = [(cut.position, cut.mode) for cut in cuts(CREATED, torn=1)]
    assert found == [(n, mode) for n in range(3) for mode in ("lost", "kept", "torn 0")]
