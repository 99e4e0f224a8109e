"""What commands write, and where: nothing is replaced that was not named and released."""

import hashlib
import json
import os
import stat
import subprocess
import sys
import threading

import pytest

from hermes_actor.paths import resolve_paths

COMMANDS = {
    "export": lambda to: ("sessions", "export", to),
    "export md prompts": lambda to: (
        "sessions", "export", to, "--format", "md", "--only", "user-prompts",
    ),
    "backup": lambda to: ("backup", "--to", to),
    "migrate": lambda to: ("migrate", "--to", "$moved", "--yes", "--report", to),
}  # fmt: skip
"""Every command that writes a file that its caller names."""


@pytest.fixture(params=COMMANDS)
def write(request, home):
    """Have a command write to a path; the result of the command."""
    home.add("s", "a question", ended=0)
    moved = home.path / "moved.db"

    def run(to, *options):
        given = [str(moved) if one == "$moved" else one for one in COMMANDS[request.param](to)]
        return home(*given, *options)

    yield run
    if moved.exists():
        from support.actors import end_actors

        end_actors(moved)


def content(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_new_file_is_private_and_nothing_else_is_left(home, write):
    folder = home.path / "out"
    folder.mkdir()
    done = write(folder / "new")
    assert done.code == 0, done
    assert [path.name for path in folder.iterdir()] == ["new"]
    assert stat.S_IMODE((folder / "new").stat().st_mode) == 0o600
    assert (folder / "new").stat().st_size


def test_existing_file_needs_force(home, write):
    target = home.path / "important.txt"
    target.write_text("mine")
    done = write(target)
    assert done == (1, "", f"Error: {target} exists; use --force to overwrite it\n")
    assert target.read_text() == "mine"
    assert write(target, "--force").code == 0
    assert target.read_bytes() != b"mine"


def test_link_stays_and_its_target_is_written(home, write):
    real, link = home.path / "real", home.path / "link"
    link.symlink_to(real)
    assert write(link).code == 0
    assert link.is_symlink()
    assert real.stat().st_size
    before = content(real)
    assert write(link).code == 1
    assert content(real) == before


def test_missing_folder_is_an_error_and_not_made(home, write):
    target = home.path / "gone" / "file"
    done = write(target)
    folder = home.path / "gone"
    assert done == (1, "", f"Error: cannot write {target}: there is no folder {folder}\n")
    assert not folder.exists()


def test_folder_is_no_file(home, write):
    done = write(home.path / "")
    assert (done.code, done.out) == (1, "")
    assert "it is a folder" in done.err


def test_pipe_gets_the_bytes_and_stays_a_pipe(home, write):
    pipe = home.path / "pipe"
    os.mkfifo(pipe)
    got = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()), daemon=True)
    reader.start()
    assert write(pipe).code == 0
    reader.join(60)
    assert got[0]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.fixture
def device(home):
    """A device of the kernel; for root one of its own, which a fault may destroy."""

    def make(name, minor):
        if os.getuid():
            return f"/dev/{name}"
        os.mknod(home.path / name, 0o666 | stat.S_IFCHR, os.makedev(1, minor))
        return home.path / name

    return make


def test_device_is_written_to_and_stays_a_device(write, device):
    null = device("null", 3)
    assert write(null).code == 0
    assert stat.S_ISCHR(os.stat(null).st_mode)


def test_full_device_is_named(write, device):
    full = device("full", 7)
    done = write(full)
    assert done.code == 1
    assert f"Error: cannot write {full}: No space left on device\n" in done.err
    assert stat.S_ISCHR(os.stat(full).st_mode)


def names_of(home):
    """Every name that leads to the store or its side files."""
    paths = resolve_paths(home.db_path)
    paths.folder.mkdir(mode=0o700, exist_ok=True)
    note = paths.folder / "note"
    note.write_text("x")
    link, hard = home.path / "soft", home.path / "hard"
    link.symlink_to(paths.db)
    os.link(paths.db, hard)
    (home.path / "sub").mkdir()
    around = home.path / "sub" / ".." / "state.db"
    inside = [note, paths.folder / "new", paths.folder / "log"]
    return [*paths.files, link, hard, around, *inside]


def test_store_is_never_an_output(home, write):
    names = names_of(home)
    before = {path: path.read_bytes() for path in names if path.is_file()}
    made = {path.name for path in home.path.iterdir()}
    for name in names:
        for options in ((), ("--force",)):
            done = write(name, *options)
            assert (done.code, done.out) == (1, ""), name
            assert f"belongs to the store {home.db_path.resolve()}" in done.err, name
    assert {path: path.read_bytes() for path in before} == before
    assert {path.name for path in home.path.iterdir()} <= made | {"state.db-shm", "state.db-wal"}


def test_other_store_is_no_output_either(home, write):
    other = home.path / "other"
    other.mkdir()
    (other / "x.db").write_bytes(b"rows")
    (other / ".x.db.actor").mkdir()
    done = write(other / "x.db", "--force")
    assert done.code == 1
    assert (other / "x.db").read_bytes() == b"rows"


def shell(line):
    python = f'"{sys.executable}" -m hermes_actor'
    return subprocess.run(
        ["/bin/bash", "-c", line.replace("HERMES", python)], capture_output=True, timeout=120
    )


def test_standard_output_by_its_name(home):
    home.add("s", "a question")
    file = home.path / "to"
    file.write_text("kept\n")
    # A descriptor goes on where it stands, whatever it leads to.
    done = shell(f"HERMES sessions export /dev/stdout >> {file}; HERMES sessions export - | cat")
    assert done.returncode == 0, done
    first, second = file.read_text().splitlines()[:2]
    assert first == "kept"
    assert json.loads(second)["id"] == "s"
    assert json.loads(done.stdout)["id"] == "s"
    done = shell("HERMES backup --to /dev/stdout | head -c 15; HERMES backup --to >(head -c 15)")
    assert done.stdout == b"SQLite format 3SQLite format 3", done


def test_store_behind_standard_output(home):
    home.add("s", "a question")
    before = home.db_path.read_bytes()
    done = shell(f"HERMES sessions export - >> {home.db_path}")
    assert done.returncode == 1
    assert b"belongs to the store" in done.stderr
    assert home.db_path.read_bytes() == before


def test_file_that_appears_meanwhile_is_not_replaced(home, monkeypatch):
    home.add("s", "a question")
    target = home.path / "file"
    from hermes_actor.cli.sessions import _export_documents

    def slow(*_):
        target.write_text("somebody else's")
        return {"id": "s", "messages": []}

    monkeypatch.setattr(_export_documents, "with_activity", slow)
    done = home("sessions", "export", target)
    assert done == (1, "", f"Error: {target} exists; use --force to overwrite it\n")
    assert target.read_text() == "somebody else's"
    assert not list(home.path.glob(".*.part"))


# --- folders -------------------------------------------------------------------------------------


def export_md(home, folder, *options):
    return home("sessions", "export", folder, "--format", "md", "--session-id", "s", *options)


def test_folder_of_documents(home):
    home.add("s", "a question")
    done = export_md(home, home.path / "notes")
    assert done.code == 0
    assert {path.name for path in (home.path / "notes").iterdir()} == {
        "manifest.jsonl", "s-session.md",
    }  # fmt: skip
    done = export_md(home, home.path / "no" / "notes")
    assert done.code == 1
    assert not (home.path / "no").exists()


def test_side_folder_takes_no_documents(home):
    home.add("s", "a question")
    folder = resolve_paths(home.db_path).folder
    before = sorted(path.name for path in folder.iterdir())
    for given in (folder, folder / "sub"):
        done = export_md(home, given)
        assert done.code == 1
        assert "belongs to the store" in done.err
    assert sorted(path.name for path in folder.iterdir()) == before


def test_manifest_that_leads_to_the_store(home):
    home.add("s", "a question")
    (home.path / "notes").mkdir()
    (home.path / "notes" / "manifest.jsonl").symlink_to(home.db_path)
    before = home.db_path.read_bytes()
    done = export_md(home, home.path / "notes")
    assert done.code == 1
    assert "belongs to the store" in done.err
    assert home.db_path.read_bytes() == before


def test_completion_script_of_another_program_stays(home, monkeypatch):
    monkeypatch.setenv("HOME", str(home.path))
    target = home.path / ".local/share/bash-completion/completions/hermes-actor"
    assert home("completion", "bash", "--install").code == 0
    assert home("completion", "bash", "--install").code == 0  # ours: written again
    target.write_text("# my own\n")
    done = home("completion", "bash", "--install")
    assert done.code == 1
    assert target.read_text() == "# my own\n"
    assert home("completion", "bash", "--install", "--force").code == 0
