"""Ids, titles and sources are text that others chose: never a path, a pattern or an escape."""

import json

import pytest

from hermes_actor.cli.sessions import _markdown as markdown

OLD = {"source": "cli", "started_at": 1, "ended_at": 2}


def bring_in(home, *ids, **more):
    records = [{"id": one, **OLD, "messages": [{"role": "user", "content": "hi"}], **more}
               for one in ids]  # fmt: skip
    text = "".join(json.dumps(record) + "\n" for record in records)
    assert home("sessions", "import", "-", stdin=text).out.startswith(f"Imported {len(ids)},")


@pytest.fixture
def precious(home, tmp_path_factory):
    """Files in and around the folder of transcripts, and ids that would lead there."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    folder = home.path / "sessions"
    folder.mkdir()
    files = [
        home.path / "precious.json",
        elsewhere / "other.jsonl",
        elsewhere / "request_dump_x_1.json",
        folder / "request_dump_other_1.json",
        folder / "request_dump_long_id_1.json",
        folder / "request_dump_a_1.json",
        folder / "a.json",
        folder / ".json",
    ]
    for file in files:
        file.write_text("mine")
    ids = ["../precious", f"{elsewhere}/other", "*", "?", "[ab]", "long", "oth", "x\0y", "../sessions/a",
           f"/../../{elsewhere}/request_dump_x", "é" * 300, "..", "."]  # fmt: skip
    return files, ids


@pytest.mark.parametrize("how", ["prune", "delete", "python"])
def test_removal_stays_among_the_files_of_the_session(home, precious, how):
    files, ids = precious
    bring_in(home, *ids)
    home.add("long_id", "x")
    own = home.path / "sessions" / "*.json"
    own.write_text("of the session *")
    if how == "prune":
        assert home("sessions", "prune", "--older-than", "1", "--yes").code == 0
    elif how == "delete":
        for one in ids:
            if "\0" not in one:
                assert home("sessions", "delete", "--yes", "--", one).code == 0, one
    else:
        folder = home.path / "sessions"
        assert home.read(lambda db: db.prune_sessions(1, sessions_dir=folder)) == len(ids)
    left = {"long_id", "x\0y"} if how == "delete" else {"long_id"}
    assert home.ids() == left
    assert [file for file in files if not file.exists()] == []
    assert not own.exists()


def test_documents_stay_in_their_folder(home):
    ids = [
        "../../escaped",
        "chat/42",
        "/tmp/absolute",
        "..",
        "*",
        "a\nb",
        "é" * 300,
        "x\x1b[2J",
        "plain",
    ]
    bring_in(home, *ids)
    folder = home.path / "a" / "b" / "notes"
    folder.mkdir(parents=True)
    done = home("sessions", "export", folder, "--format", "md", "--older-than", "1")
    assert done.code == 0, done
    names = {path.name for path in folder.iterdir()}
    assert len(names) == len(ids) + 1  # and the manifest
    assert "plain-session.md" in names
    assert all(name.isascii() and name.isprintable() for name in names)
    assert {path.name for path in home.path.rglob("*.md")} == names - {"manifest.jsonl"}


def test_two_ids_never_share_a_document():
    ids = ["a/b", "a-b", "a:b", "a b", "A" * 200, "A" * 201, "", "-"]
    names = {markdown.file_name({"id": one, "title": None}, "md") for one in ids}
    assert len(names) == len(ids)
    assert all(len(name) < 200 for name in names)
