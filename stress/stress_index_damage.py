"""Another program, or the disk, damages the full-text indexes while clients change and search.

Pages of both tables are zeroed, cut, overwritten or removed; tables are emptied, dropped, and made
again without their content. No change fails or is lost, and searches become complete again without
anyone's help.
"""

from __future__ import annotations

import sys
from pathlib import Path

from harness.job import Job, run
from harness.workload import new_sandbox, run_clients
from support.files import FTS_TABLES, raw
from support.index_damage import PAGES

from hermes_actor.recovery.store_owner import run_maintenance
from hermes_actor.store.schema import FTS_SQL, FTS_TRIGRAM_SQL, statements

DAMAGES_PER_SANDBOX = 12

TABLES = {
    "emptied": ["DELETE FROM {table}"],
    "dropped": ["DROP TABLE {table}"],
    "made again": [
        *(f"DROP TRIGGER IF EXISTS {{table}}_{event}" for event in ("insert", "delete", "update")),
        "DROP TABLE {table}",
        "{schema}",
    ],
    "pages gone": ["DELETE FROM {table}_data"],
    "sizes gone": ["DELETE FROM {table}_docsize"],
}
"""What a foreign program does to whole tables."""

SCHEMAS = dict(zip(FTS_TABLES, (FTS_SQL, FTS_TRIGRAM_SQL), strict=True))

SILENT = {"random leaves", "half leaves", "missing texts", "sizes", "short structure"}
"""Damage that FTS5 may answer with fewer hits and no error: no client can notice it."""

KINDS = [*TABLES, *(kind for kind in PAGES if kind not in SILENT)]


def main(job: Job) -> None:
    while job.more():
        sandbox = new_sandbox(job)
        with sandbox.open(), run_clients(
            sandbox, job.rng, writers=2, readers=1, keepers=3, depth=4, pause=0.02
        ) as load:  # fmt: skip
            for _ in range(int(job.options.get("sandbox", DAMAGES_PER_SANDBOX))):
                if not job.more():
                    break
                load.everyone_returns("k")
                kind = job.options.get("only", KINDS[job.done % len(KINDS)])
                tables = job.rng.choice([FTS_TABLES, FTS_TABLES[:1], FTS_TABLES[1:]])
                sandbox.note(f"{kind}: {', '.join(tables)}")
                damage(sandbox.path, kind, tables)
                job.count("damages")
                load.goes_on(10)
                load.everyone_returns("k", timeout=120)
            # Damage that no search and no change has met is still there.
            run_maintenance(sandbox.paths, "rebuild-index")
            load.stop_faults()
            load.everyone_returns("k", timeout=120)
            load.judge(job, excused=())


def damage(path: Path, kind: str, tables: tuple[str, ...]) -> None:
    """All of it in one transaction: the actor repairs what it sees in between."""
    with raw(path) as foreign:
        foreign.execute("PRAGMA busy_timeout = 30000").fetchall()
        foreign.execute("BEGIN IMMEDIATE")
        for table in tables:
            for sql in TABLES[kind] if kind in TABLES else [PAGES[kind]]:
                parts = statements(SCHEMAS[table]) if sql == "{schema}" else [sql]
                for part in parts:
                    foreign.execute(part.replace("{table}", table))
        foreign.execute("COMMIT")


if __name__ == "__main__":
    sys.exit(run(main, "damages", short=3, usual=36))
