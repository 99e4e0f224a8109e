"""Segments that a process builds in files are those that a thread builds in memory."""

import ast
import random
import string
import sys
from pathlib import Path

import pytest

from hermes_actor.engine.index import build_process, segments
from hermes_actor.engine.index.build_folder import BuildFailed, BuildFolder, BuildHere
from hermes_actor.engine.index.build_process import BuildProcess, start_builder
from hermes_actor.engine.index.entries import Entry
from hermes_actor.paths import resolve_paths
from hermes_actor.store.search.coverage import TABLES

RANDOM = random.Random(5)
ALPHABETS = {"base64": string.ascii_letters + "+/", "chinese": [*map(chr, range(0x4E00, 0xA000))]}
TEXTS = {
    **{kind: "".join(RANDOM.choices(some, k=90_000)).encode() for kind, some in ALPHABETS.items()},
    "words": b"walrus deploy " * 9_000,
    "zero inside": b"walrus one \x00 walrus two " + b"x" * 70_000,
    "no utf-8": b"walrus \xff\xfe\x80 " * 6_000,
    "empty": b"",
}
ENTRIES = [
    *(Entry(n, None, text) for n, text in enumerate(TEXTS.values(), 1)),
    *(Entry(n, text, None) for n, text in enumerate(TEXTS.values(), 11)),
    *(Entry(n, text, b"seal " + text) for n, text in enumerate(TEXTS.values(), 21)),
]


@pytest.fixture
def paths(tmp_path):
    return resolve_paths(tmp_path / "state.db")


def contents(built):
    return {
        "pages": built.read(0, 1 << 40),
        "index": [*built.index()],
        "extent": built.extent,
        "sizes": built.sizes,
        "totals": (built.rows, built.tokens, built.pages),
        "entries": [*built.entries()],
    }


@pytest.mark.parametrize("start", [BuildProcess, BuildHere])
def test_segments_are_the_same(paths, start):
    with BuildFolder(paths) as folder:
        for table in TABLES:
            folder.add(table, ENTRIES)
        builder = start(folder.path, 1 << 20)
        builder.wait()
        builder.kill()
        built = {table: folder.open(table) for table in TABLES}
    # The files are gone, what was opened is not.
    assert list(paths.folder.iterdir()) == []
    for table in TABLES:
        in_memory = segments.build(table, ENTRIES)
        assert contents(built[table]) == contents(in_memory)
        built[table].close()
        in_memory.close()


def test_process_that_needs_too_much_memory_says_so(paths, monkeypatch):
    monkeypatch.setattr(build_process, "_address_space", lambda _size: 64 << 20)
    with BuildFolder(paths) as folder:
        letters = [*map(chr, range(0x21, 0x180))]
        large = "".join(RANDOM.choices(letters, k=1_000_000)).encode()
        folder.add("messages_fts_trigram", [Entry(1, None, large)])
        with pytest.raises(BuildFailed, match="more than the 64 MiB of memory"):
            BuildProcess(folder.path, len(large)).wait()


def test_process_that_is_killed_says_so(paths):
    with BuildFolder(paths) as folder:
        folder.add("messages_fts", ENTRIES)
        builder = BuildProcess(folder.path, 1 << 20)
        builder.kill()
        with pytest.raises(BuildFailed, match="ended by SIGKILL, perhaps because"):
            builder.wait()
        builder.kill()


def test_process_needs_nothing_of_the_installation():
    """While an update replaces the files, an actor goes on with the code that it began with."""
    tree = ast.parse(build_process._PROGRAM)
    imported = {
        name.split(".")[0]
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert {"os", "sqlite3"} <= imported <= sys.stdlib_module_names | {"__future__"}


def test_release_that_was_broken_meanwhile_stops_no_build(paths, monkeypatch, tmp_path):
    broken = tmp_path / "broken" / "hermes_actor"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('a broken release')\n")
    monkeypatch.setenv("PYTHONPATH", str(broken.parent))
    monkeypatch.syspath_prepend(str(broken.parent))
    with BuildFolder(paths) as folder:
        folder.add("messages_fts", ENTRIES[:1])
        builder = BuildProcess(folder.path, 1 << 20)
        builder.wait()
        builder.kill()
        folder.open("messages_fts").close()


def test_interpreter_that_is_gone(paths, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with BuildFolder(paths) as folder, pytest.raises(BuildFailed, match="cannot be started"):
        start_builder(folder.path, 1 << 20)


@pytest.mark.parametrize(("name", "value"), [("frozen", True), ("executable", "")])
def test_program_without_an_interpreter_builds_in_its_thread(monkeypatch, name, value):
    """The executable of a frozen program is the program: it would start itself."""
    monkeypatch.setattr(sys, name, value, raising=False)
    assert isinstance(start_builder(Path("/nowhere"), 1), BuildHere)


def test_memory_is_bounded_by_the_text_and_by_the_machine(monkeypatch):
    sizes = {"SC_PHYS_PAGES": 1 << 22, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr(build_process.os, "sysconf", sizes.__getitem__)
    assert build_process._address_space(1 << 20) == (512 + 160) << 20
    assert build_process._address_space(64 << 20) == 8 << 30
