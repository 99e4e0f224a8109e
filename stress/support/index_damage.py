"""What a bad disk, or another program, does to the pages of a full-text index."""

from pathlib import Path

from support.files import raw

PAGES = {
    "leaves of zeros": "UPDATE {table}_data SET block = zeroblob(length(block)) WHERE id > 10",
    "short leaves": "UPDATE {table}_data SET block = substr(block, 1, 4) WHERE id > 10",
    "random leaves": "UPDATE {table}_data SET block = randomblob(length(block)) WHERE id > 10",
    "leaves of ones": f"UPDATE {{table}}_data SET block = x'{'ff' * 16}' WHERE id > 10",
    "half leaves": "UPDATE {table}_data SET block = substr(block, 1, length(block) / 2)"
    " || zeroblob(length(block) / 2) WHERE id > 10",
    "missing leaves": "DELETE FROM {table}_data WHERE id > 10 AND id % 2 = 0",
    "missing idx": "DELETE FROM {table}_idx",
    "averages": "UPDATE {table}_data SET block = x'ff' WHERE id = 1",
    "short structure": "UPDATE {table}_data SET block = substr(block, 1, length(block) - 2)"
    " WHERE id = 10",
    "long structure": "UPDATE {table}_data SET block = block || x'ffff' WHERE id = 10",
    "sizes": "UPDATE {table}_docsize SET sz = x'ffffffffffffffffff'",
    "missing texts": "DELETE FROM {table}_content WHERE id % 2",
}
"""Statements, by the kind of damage."""

LEAVES = [kind for kind in PAGES if kind.endswith("leaves") and kind != "missing leaves"] + [
    "leaves of zeros", "leaves of ones"
]  # fmt: skip
"""Damage that FTS5 meets only when it writes, at the end of a statement."""


def damage(path: Path, kind: str, *tables: str) -> None:
    """Damage *tables* of a file from outside."""
    with raw(path) as foreign:
        foreign.execute("BEGIN IMMEDIATE")
        for table in tables:
            foreign.execute(PAGES[kind].format(table=table))
        foreign.execute("COMMIT")


def overwrite(path: Path, page: int) -> None:
    """What a bad disk does to a page of a file that no actor serves."""
    with raw(path) as foreign:
        ((size,),) = foreign.execute("PRAGMA page_size").fetchall()
        foreign.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with path.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xaa" * size)
