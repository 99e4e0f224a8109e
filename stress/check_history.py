"""Check a recorded history against the file that it leaves.

    check_history.py FOLDER DATABASE [--calm TIME] [--saved WAL] [--copy DATABASE] [--json]
    check_history.py --measure

FOLDER holds what the clients have recorded. The file is opened read-only by another copy of
SQLite than the one that wrote it, in a process that has never seen it before. Exit codes: 0 no
violation, 1 violations, which are printed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from harness.saved_wal import without_saved
from harness.synthetic_history import MadeUp

from hermes_actor.testing.records import Final, final_state, judge, load, without_places


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("database", type=Path, nargs="?")
    parser.add_argument("--calm", type=float, help="when the last fault was over")
    parser.add_argument("--no-gaps", action="store_true", help="others have changed the file too")
    parser.add_argument(
        "--saved", type=Path, action="append", default=[], metavar="WAL",
        help="saved by an owner whose files were taken away: what is in it is not lost",
    )  # fmt: skip
    parser.add_argument("--no-receipts", action="store_true", help="receipts are not kept")
    parser.add_argument(
        "--copy", type=Path, action="append", default=[], metavar="DATABASE",
        help="of content that was replaced: what is in it is not lost",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="one JSON document")
    parser.add_argument("--measure", action="store_true", help="how long 130,000 records take")
    asked = parser.parse_args()
    if asked.measure:
        return measure()
    if asked.database is None:
        parser.error("FOLDER and DATABASE are needed")
    import apsw

    recorded, final = load(asked.folder), _final(asked.database)
    if asked.no_receipts:
        recorded, final = without_places(recorded, [final, *map(_final, asked.copy)])
    acknowledged = sum(write.outcome == "ok" for write in recorded.writes)
    recorded, saved = without_saved(recorded, final.rows, asked.saved)
    found = judge(
        recorded, final, calm=asked.calm, gaps=not asked.no_gaps, receipts=not asked.no_receipts,
        answered=True,
    )  # fmt: skip
    counts = {
        "acknowledged": acknowledged, "open": len(recorded.writes) - acknowledged,
        "refused": len(recorded.refusals), "rows": len(final.rows), "reads": len(recorded.reads),
        "saved": saved,
    }  # fmt: skip
    if asked.json:
        refusals = recorded.refusals[:1000]
        print(json.dumps({"counts": counts, "violations": list(map(str, found)),
                          "refusals": refusals, "sqlite": apsw.sqlite_lib_version()}))  # fmt: skip
    else:
        print(*found, sep="\n")
        print(f"{counts}, {len(found)} violations")
    return 1 if found else 0


def _final(database: Path) -> Final:
    import apsw

    conn = apsw.Connection(str(database), flags=apsw.SQLITE_OPEN_READONLY)
    conn.set_busy_timeout(5000)
    try:
        with conn:
            final = final_state(conn)
    except apsw.Error as error:
        # Then everything that was acknowledged counts as lost, and this is why.
        final = Final([], [], [], [f"{database.name} cannot be read: {error!r}"])
    finally:
        conn.close()
    return final


def measure() -> int:
    history = MadeUp(100_000, clients=64)
    began = time.perf_counter()
    found = history.check()
    print(
        f"{len(history.writes):,} writes and {len(history.reads):,} reads"
        f" in {time.perf_counter() - began:.2f} s, {len(found)} violations"
    )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
