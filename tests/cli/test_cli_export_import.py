"""Export, import, delete, rename, prune and archive, through the commands."""

import contextlib
import io
import json

import pytest
from support import newer_files
from support.actors import end_actors
from support.cli_home import DAY, NOW, called, said

from hermes_actor import SessionDB

# --- export ----------------------------------------------------------------------------------


def test_export_of_one_session_to_standard_output(home):
    home.add("20260301_101010_aaaaaa", "question", said("assistant", "answer"))
    home.add("other", "x")
    found = home("sessions", "export", "-", "--session-id", "2026")
    (line,) = found.lines
    record = json.loads(line)
    assert record["id"] == "20260301_101010_aaaaaa"
    assert [m["content"] for m in record["messages"]] == ["question", "answer"]
    assert list(record)[-1] == "messages"
    assert found.err == ""


def nine(home):
    for number in range(9):
        home.add(f"s{number}", "text", called("terminal"), started=100 - number)


def test_export_of_all_sessions(home):
    nine(home)
    file = home.path / "f.jsonl"
    assert home("sessions", "export", file) == (0, f"Exported 9 sessions to {file}\n", "")
    records = [json.loads(line) for line in file.read_text().splitlines()]
    assert [record["id"] for record in records] == [f"s{n}" for n in reversed(range(9))]
    assert all("last_active" in record for record in records)
    assert file.stat().st_mode & 0o777 == 0o600


def test_structured_content_with_a_lone_surrogate_is_exported(home):
    content = [{"type": "text", "text": "half \ud83d of one"}]
    home.add("s", said("user", content), said("user", b"\xff"))
    (line,) = home("sessions", "export", "-").lines
    found = [message["content"] for message in json.loads(line)["messages"]]
    assert found == [content, "/w=="]


def test_archive_mark_survives_export_and_import(home):
    home.add("s", "q", ended=0, title="t")
    home("sessions", "archive", "--title", "t", "--yes")
    exported = home("sessions", "export", "-").out
    assert json.loads(exported)["archived"] == 1
    home("sessions", "delete", "s", "--yes")
    home("sessions", "import", "-", stdin=exported)
    assert home("sessions", "list").out == f"No sessions found in {home.db_path}.\n"
    assert json.loads(home("sessions", "export", "-").out)["archived"] == 1


def test_export_and_import_of_lone_surrogates_byte_for_byte(home):
    parts = [{"type": "text", "text": "hëllo \ud83d half, \\ud83d spelled, 😀 whole"}]
    calls = [{"id": "c", "function": {"name": "t", "arguments": '{"x": "\ud800"}'}}]
    home.add("s", said("user", parts), said("assistant", "plain", tool_calls=calls))
    file, again = home.path / "f.jsonl", home.path / "g.jsonl"
    home("sessions", "export", file)
    assert "hëllo \\ud83d half".encode() in file.read_bytes()
    other = home.path / "other" / "state.db"
    other.parent.mkdir()
    done = home("sessions", "import", file, "--db", other)
    assert done == (0, "Imported 1, skipped 0, detached 0.\n", "")
    home("sessions", "export", again, "--db", other)
    end_actors(other)
    assert again.read_bytes() == file.read_bytes()


def test_import_of_surrogates_in_plain_text_replaces_them(home):
    line = (
        '{"id": "s", "title": "t\\ud800", "messages": [{"role": "user", "content": "a\\ud800b"}]}'
    )
    assert home("sessions", "import", "-", stdin=line).out.startswith("Imported 1,")
    (record,) = map(json.loads, home("sessions", "export", "-").lines)
    assert (record["title"], record["messages"][0]["content"]) == ("t\ufffd", "a\ufffdb")


def test_export_keeps_text_as_it_is(home):
    home.add("s", "hëllo")
    assert "hëllo" in home("sessions", "export", "-").out


def test_export_refuses_an_ambiguous_prefix(home):
    home.add("2026a")
    home.add("2026b")
    file = home.path / "x"
    found = home("sessions", "export", file, "--session-id", "2026")
    assert found == (
        1,
        "",
        "Session '2026' is the beginning of several ids. Give more of it:"
        " hermes-actor sessions list\n",
    )
    assert not file.exists()


def test_export_of_structured_content_comes_back(home):
    parts = [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "x"}}]
    home.add("s", said("user", parts), called("terminal", content="ok"), title="t",
             tokens={"input_tokens": 5, "estimated_cost_usd": 0.5})  # fmt: skip
    before = home.read(lambda db: (db.get_session("s"), db.get_messages("s")))
    exported = home("sessions", "export", "-").out
    home("sessions", "delete", "s", "--yes")
    home("sessions", "import", "-", stdin=exported)
    row, messages = home.read(lambda db: (db.get_session("s"), db.get_messages("s")))
    assert row == before[0]
    ids = {"id": None}
    assert [m | ids for m in messages] == [m | ids for m in before[1]]


def test_export_tells_scripts_what_it_wrote(home):
    home.add("s", "q", title="t")
    file, folder = home.path / "f.jsonl", home.path / "notes"
    told = home("sessions", "export", file, "--json").json
    assert told == {"exported": 1, "output": str(file), "files": []}
    told = home("sessions", "export", folder, "--format", "md", "--session-id", "s", "--json").json
    assert told == {"exported": 1, "output": str(folder), "files": [str(folder / "s-t.md")]}
    # What is on standard output is the export and nothing else.
    assert home("sessions", "export", "-", "--json").json["id"] == "s"


def test_export_to_a_folder_that_is_not_there(home):
    home.add("s")
    found = home("sessions", "export", home.path / "none" / "f")
    assert found.code == 1
    assert "cannot write" in found.err


def test_export_formats_that_are_not_supported(home):
    assert home("sessions", "export", "x", "--format", "html").code == 1


def test_export_without_output_is_wrong_usage(home):
    assert home("sessions", "export").code == 2


def test_markdown_proves_itself(home):
    from hermes_actor.cli.sessions._markdown import verified

    home.add("s", "quést", called("terminal", content="answer"), title="My  Talk: 1/2", ended=0)
    found = home("sessions", "export", "--format", "md", "--session-id", "s", home.path / "out")
    assert found.out == f"Exported 1 session to {home.path / 'out'}\n"
    file = home.path / "out" / "s-my-talk-1-2.md"
    text = file.read_text()
    assert text.startswith('---\nsession_id: "s"\ntitle: "My Talk: 1/2"\nsource: "cli"\n')
    assert verified(text, "s", 2)
    assert not verified(text.replace("quést", "quest"), "s", 2)
    manifest = json.loads((home.path / "out" / "manifest.jsonl").read_text())
    assert manifest["message_count"] == 2
    assert list(manifest) == sorted(manifest)
    assert (
        home("sessions", "export", "--format", "md", "--session-id", "s", home.path / "out").code
        == 1
    )


def test_markdown_then_delete(home):
    home.add("s", "x", ended=0)
    args = ("sessions", "export", "--format", "qmd", "--session-id", "s", home.path / "out")
    found = home(*args, "--delete-after-verified", "--yes")
    assert found.lines[-1] == "Deleted session 's'."
    assert home.ids() == set()


def export_then_delete(home, *options, **given):
    args = ("sessions", "export", "--format", "md", "--session-id", "s", home.path / "out")
    return home(*args, "--delete-after-verified", *options, **given)


def test_markdown_with_odd_line_ends_then_delete(home):
    home.add("s", "one\r\ntwo\rthree\u2028four\x85", ended=0)
    assert export_then_delete(home, "--yes").lines[-1] == "Deleted session 's'."
    assert home.ids() == set()


@pytest.mark.parametrize("options", [("--redact",), ("--lineage", "logical")])
def test_what_is_not_whole_is_not_deleted(home, options):
    home.add("s", "my key is sk-abcdefghijklmnop1234", ended=0)
    assert export_then_delete(home, *options, "--yes").code == 2
    assert home.ids() == {"s"}
    assert not (home.path / "out").exists()


def test_message_that_comes_after_the_export_is_not_deleted(home, monkeypatch):
    home.add("s", "exported", ended=0)

    class Slow(io.StringIO):
        def isatty(self):
            return True

        def readline(self):
            with contextlib.closing(SessionDB(home.db_path)) as db:
                db.append_message("s", "user", "late")
            return "y\n"

    found = export_then_delete(home, answer=Slow())
    assert found.code == 1
    assert "has messages or delegates that are not in" in found.err
    assert home.read(lambda db: db.message_count("s")) == 2


def test_delegates_that_are_not_in_the_file_are_not_deleted(home):
    newer_files.build(home.db_path, 22, sessions=(PARENT, {**DELEGATE, "ended_at": 3.0}))
    assert export_then_delete(home, "--yes").code == 1
    assert home.ids() == {"s", "d"}


PARENT = {"id": "s", "source": "cli", "started_at": 1.0, "ended_at": 2.0}
DELEGATE = {
    "id": "d", "source": "cli", "started_at": 1.5, "parent_session_id": "s",
    "model_config": '{"_delegate_from": "s"}',
}  # fmt: skip


@pytest.mark.parametrize("below", [False, True])
def test_prune_leaves_a_session_that_an_open_delegate_works_for(home, below):
    rows = [PARENT, DELEGATE, {**PARENT, "id": "free"}]
    if below:  # the delegate has ended, and one of its own has not
        rows[1] = {**DELEGATE, "ended_at": 3.0}
        rows.append({**DELEGATE, "id": "e", "parent_session_id": "d", "started_at": NOW})
    newer_files.build(home.db_path, 22, sessions=tuple(rows))
    (home.path / "sessions").mkdir()
    (home.path / "sessions" / "d.json").touch()
    shown = home("sessions", "prune", "--older-than", "30", "--dry-run", "--json").json
    assert shown["matched"] == ["free"]
    done = home("sessions", "prune", "--older-than", "30", "--yes", "--json").json
    assert done["pruned"] == ["free"]
    assert home.ids() == {row["id"] for row in rows} - {"free"}
    assert (home.path / "sessions" / "d.json").exists()
    assert home.read(lambda db: db.prune_sessions(30)) == 0


def test_prune_shows_and_counts_the_delegates_that_go_along(home):
    below = {**DELEGATE, "id": "e", "parent_session_id": "d", "started_at": NOW, "ended_at": NOW}
    rows = (PARENT, {**DELEGATE, "ended_at": 3.0}, below)
    newer_files.build(home.db_path, 22, sessions=rows)
    (home.path / "sessions").mkdir()
    for name in ("s", "d", "e"):
        (home.path / "sessions" / f"{name}.json").touch()
    shown = home("sessions", "prune", "--older-than", "30", "--dry-run")
    assert shown.lines[0].startswith("3 sessions match")
    assert sum("delegate of s" in line for line in shown.lines) == 2
    assert home("sessions", "delete", "s", answer="n\n").err.startswith(
        "Delete session 's' and all its messages, with 2 delegates that worked for it?"
    )
    done = home("sessions", "prune", "--older-than", "30", "--yes")
    assert done.out == "Pruned 3 sessions.\n"
    assert home.ids() == set()
    assert list((home.path / "sessions").iterdir()) == []


def test_logical_lineage_joins_the_parts(home):
    home.add("root", "one", started=200, ended=100, reason="compression")
    home.add("tip", "two", started=90, parent="root")
    text = home("sessions", "export", "-", "--format", "md", "--session-id", "tip", "--lineage",
                "logical").out  # fmt: skip
    assert text.index("## Segment 1: root") < text.index("one") < text.index("## Segment 2: tip")
    assert 'lineage_session_ids: ["root", "tip"]' in text


def test_user_prompts_redacted(home):
    home.add("s", "my key is sk-abcdefghijklmnop1234", said("assistant", "noted"), "and on")
    lines = home("sessions", "export", "-", "--only", "user-prompts", "--redact").lines
    prompts = [json.loads(line) for line in lines]
    assert [p["text"] for p in prompts] == ["my key is [REDACTED]", "and on"]
    assert list(prompts[0]) == ["session_id", "index", "created_at", "role", "text", "message_id"]
    assert prompts[1]["index"] == 2


def test_export_dry_run_names_what_a_filter_selects(home):
    home.add("s", ended=0)
    found = home("sessions", "export", "--dry-run", "--source", "cli")
    assert found.lines == ["1 session matches (source 'cli'):", "  s  cli"]
    assert home("sessions", "export", "--dry-run").code == 1


# --- import ----------------------------------------------------------------------------------


def exported(home):
    nine(home)
    file = home.path / "f.jsonl"
    home("sessions", "export", file)
    rows = home.read(lambda db: db.export_all())
    with home.store() as db:
        for row in rows:
            db.delete_session(row["id"])
    return file, rows


def test_import_of_an_export_gives_the_same_store(home):
    file, rows = exported(home)
    assert home("sessions", "import", file).out == "Imported 9, skipped 0, detached 0.\n"
    again = home.read(lambda db: db.export_all())
    without = {"id": None}
    assert [r | {"messages": [m | without for m in r["messages"]]} for r in again] == [
        r | {"messages": [m | without for m in r["messages"]]} for r in rows
    ]
    assert all((r["message_count"], r["tool_call_count"]) == (2, 1) for r in again)


def test_second_import_skips_what_is_there(home):
    file, _ = exported(home)
    home("sessions", "import", file)
    assert home("sessions", "import", file).out == "Imported 0, skipped 9, detached 0.\n"
    assert home.read(lambda db: db.message_count()) == 18


def lines(*records):
    return "\n".join(json.dumps(record) for record in records)


def test_import_with_one_bad_record_writes_nothing(home):
    good = [{"id": f"s{n}", "messages": []} for n in range(4)]
    found = home("sessions", "import", "-", stdin=lines(*good[:2], {"messages": []}, *good[2:]))
    assert found.code == 1
    assert found.lines == [
        "Imported 0, skipped 0, detached 0.",
        "  record 2: the id is missing",
    ]
    assert not home.db_path.exists()


@pytest.mark.parametrize(
    ("record", "error"),
    [
        ("[]", "not a JSON object"),
        ("{", "not JSON"),
        ('{"id": "x", "messages": {}}', "messages is not a list of objects"),
        ('{"id": "x", "messages": [{"content": "y"}]}', "message 0: the role is missing"),
        ('{"id": "x", "title": 7}', "title is not a text"),
        ('{"id": "x", "model_config": "[]"}', "model_config is not a JSON object"),
        ('{"id": "x", "started_at": "now"}', "started_at is not a number"),
        ('{"id": "x"}\n{"id": "x"}', "id repeated"),
        ('{"id": "x", "input_tokens": 1e300}', "input_tokens is out of range"),
        (
            '{"id": "x", "messages": [{"role": "u", "content": 99999999999999999999}]}',
            "message 0: content is out of range",
        ),
        ('{"id": "x", "messages": [{"role": "u", "content": 1e400}]}', "not JSON"),
        (f'{{"id": "x", "a": {"[" * 5000}{"]" * 5000}}}', "nested too deeply"),
        ('{"id": "x\\ud800", "a": NaN}', "not JSON"),
    ],
)
def test_bad_records_are_reported(home, record, error):
    found = home("sessions", "import", "-", "--json", stdin=record)
    assert found.code == 1
    assert error in found.json["errors"][0]["error"]
    assert (found.json["ok"], found.json["imported"]) == (False, 0)


def test_import_detaches_from_an_unknown_parent(home):
    found = home("sessions", "import", "-", stdin=lines({"id": "c", "parent_session_id": "gone"}))
    assert found.out == "Imported 1, skipped 0, detached 1.\n"
    row = home.row("c")
    assert (row["parent_session_id"], row["source"], row["started_at"]) == (None, "import", NOW)


def test_import_refuses_a_circle_of_parents(home):
    records = [{"id": "a", "parent_session_id": "b"}, {"id": "b", "parent_session_id": "a"}]
    found = home("sessions", "import", "-", stdin=lines(*records))
    assert found.out == "Imported 2, skipped 0, detached 1.\n"
    links = [home.row(one)["parent_session_id"] for one in "ab"]
    assert links.count(None) == 1


def test_child_before_its_parent_in_the_file(home):
    records = [{"id": "child", "parent_session_id": "parent"}, {"id": "parent"}]
    found = home("sessions", "import", "-", stdin=lines(*records))
    assert found.out == "Imported 2, skipped 0, detached 0.\n"
    assert home.row("child")["parent_session_id"] == "parent"


def test_imported_title_that_is_taken_gets_the_next_number(home):
    home.add("here", title="plan")
    home("sessions", "import", "-", stdin=lines({"id": "new", "title": "plan"}))
    assert home.row("new")["title"] == "plan #2"


def test_import_of_a_file_that_is_not_there(home):
    found = home("sessions", "import", home.path / "none")
    assert (found.code, found.err) == (
        1,
        f"Error: cannot read {home.path / 'none'}: No such file or directory\n",
    )


# --- delete, rename --------------------------------------------------------------------------


@pytest.mark.parametrize("answer", ["n\n", "", "maybe\n"])
def test_declined_delete_changes_nothing(home, answer):
    home.add("S", "x")
    found = home("sessions", "delete", "S", answer=answer)
    assert (found.code, found.out) == (1, "")
    assert found.err.startswith("Delete session 'S' and all its messages? [y/N] ")
    assert found.err.endswith("Cancelled.\n")
    assert home.ids() == {"S"}


def test_confirmed_delete(home):
    home.add("S", "x")
    found = home("sessions", "delete", "S", answer="  YES \n")
    assert found.out.endswith("Deleted session 'S'.\n")
    assert home.ids() == set()


def test_delete_removes_messages_and_files(home):
    home.add("S", "x")
    home.add("C", "y", parent="S")
    folder = home.path / "sessions"
    folder.mkdir()
    names = ["S.json", "S.jsonl", "request_dump_S_1.json"]
    for name in [*names, "S2.json", "request_dump_S2_1.json"]:
        (folder / name).write_text("{}")
    assert home("sessions", "delete", "S", "--yes") == (0, "Deleted session 'S'.\n", "")
    assert home.ids() == {"C"}
    assert home.row("C")["parent_session_id"] is None
    assert home.read(lambda db: db.message_count()) == 1
    assert {path.name for path in folder.iterdir()} == {"S2.json", "request_dump_S2_1.json"}


def test_delete_of_an_unknown_session_is_an_error(home):
    home.add("S")
    assert home("sessions", "delete", "").code == 1
    assert home.ids() == {"S"}


def test_rename_needs_no_quotes(home):
    home.add("S")
    found = home("sessions", "rename", "S", "debugging", "auth", "flow")
    assert found == (0, "Session 'S' renamed to: debugging auth flow\n", "")
    assert home.row("S")["title"] == "debugging auth flow"


def test_rename_refuses_a_taken_title(home):
    home.add("T", title="x")
    home.add("S")
    found = home("sessions", "rename", "S", "x")
    assert found == (1, "", "Error: Title 'x' is already in use by session T\n")
    assert home.row("S")["title"] is None


def test_rename_refuses_a_long_title(home):
    home.add("S")
    found = home("sessions", "rename", "S", "x" * 101)
    assert found == (1, "", "Error: Title too long: 101 characters, the maximum is 100\n")


def test_rename_prints_the_title_as_stored(home):
    home.add("S")
    found = home("sessions", "rename", "S", "a \t b")
    assert found.out == "Session 'S' renamed to: a b\n"
    assert home.row("S")["title"] == "a b"


def test_rename_to_blanks_clears(home):
    home.add("S", title="x")
    assert home("sessions", "rename", "S", " ").code == 0
    assert home.row("S")["title"] is None


# --- prune, archive --------------------------------------------------------------------------


def three(home):
    home.add("old", started=100 * DAY, ended=99 * DAY)
    home.add("live", started=100 * DAY)
    home.add("new", started=10 * DAY, ended=9 * DAY)


def test_prune_deletes_old_ended_sessions(home):
    three(home)
    assert home("sessions", "prune", "--yes").out == "Pruned 1 session.\n"
    assert home.ids() == {"live", "new"}


def test_prune_older_than_a_number_of_days(home):
    three(home)
    assert home("sessions", "prune", "--older-than", "5", "--yes").out == "Pruned 2 sessions.\n"
    assert home.ids() == {"live"}


def test_prune_by_source_alone_keeps_the_ninety_days(home):
    home.add("today", source="telegram", started=100, ended=0)
    found = home("sessions", "prune", "--source", "telegram", "--yes")
    assert found.out.startswith(
        "No sessions match (started before 2025-12-02 10:00, source 'telegram')"
    )
    assert home.ids() == {"today"}


def test_prune_dry_run_lists_what_would_go(home):
    home.add("20251101_200000_ffffff", "q", said("assistant", "a"), started=100 * DAY,
             ended=99 * DAY, source="telegram", model="anthropic/claude-sonnet-4.6", title="old talk")  # fmt: skip
    found = home("sessions", "prune", "--source", "telegram", "--dry-run")
    assert found.out == (
        "1 session matches (started before 2025-12-02 10:00, source 'telegram';"
        " oldest 2025-11-22 10:00, newest 2025-11-22 10:00):\n"
        "ID                      Started           Src       Model              Msgs  Title\n"
        f"{'─' * 85}\n"
        "20251101_200000_ffffff  2025-11-22 10:00  telegram  claude-sonnet-4.6     2  old talk\n"
        "Dry run — nothing deleted.\n"
    )
    assert home.ids() == {"20251101_200000_ffffff"}


def test_prune_refuses_a_bad_time(home):
    three(home)
    found = home("sessions", "prune", "--older-than", "5x", "--yes")
    assert found.code == 1
    assert "--older-than" in found.err
    assert len(home.ids()) == 3


def test_prune_refuses_an_empty_window(home):
    found = home("sessions", "prune", "--newer-than", "1h", "--before", "2d")
    assert found.code == 1
    assert found.err == (
        "Error: empty window: started at or after 2026-03-02 09:00 and before 2026-02-28 10:00\n"
    )


def test_archive_needs_a_filter(home):
    found = home("sessions", "archive", "--yes")
    assert found.code == 1
    assert "needs ids, or at least one filter" in found.err


def test_archive_takes_the_whole_lineage(home):
    home.add("root", "x", started=200, ended=100, reason="compression", title="importer")
    home.add("tip", "y", started=90, parent="root", title="importer #2")
    home.add("else", "z", started=300)
    found = home("sessions", "archive", "--title", "IMPORT", "--yes")
    assert found.out == "Archived 2 sessions.\n"
    assert [row["id"] for row in home("sessions", "list", "--json").json] == ["else"]
    assert home.ids() == {"root", "tip", "else"}
    assert home("sessions", "stats").lines[:2] == ["Total sessions: 1", "Total messages: 1"]


@pytest.mark.parametrize("version", [11, 22])
def test_prune_leaves_archived_sessions(home, version):
    if version > 11:
        newer_files.build(home.db_path, version)
    home.add("s", source="web", started=100 * DAY, ended=99 * DAY)
    home("sessions", "archive", "--source", "web", "--yes")
    home("sessions", "prune", "--source", "web", "--yes")
    assert "s" in home.ids()
    found = home("sessions", "prune", "--source", "web", "--include-archived", "--yes")
    assert found.out == "Pruned 1 session.\n"
    assert "s" not in home.ids()


@pytest.mark.parametrize("flag", ["--cwd", "--branch", "--chat-id", "--chat-type"])
def test_filter_on_a_column_that_the_file_lacks(home, flag):
    home.add("s", started=100 * DAY, ended=99 * DAY)
    found = home("sessions", "prune", flag, "x", "--yes")
    assert found.code == 1
    assert f"Error: {flag} cannot be used on {home.db_path}: it has no column" in found.err
    assert home.ids() == {"s"}


def test_filters_of_numbers_and_texts(home):
    home.add("small", "x", started=99 * DAY, ended=98 * DAY, model="openai/GPT-5",
             tokens={"input_tokens": 10, "output_tokens": 5, "actual_cost_usd": 0.25})  # fmt: skip
    home.add("large", "x", called("a", "b"), "z", started=98 * DAY, ended=97 * DAY)
    cases = {
        ("--min-messages", 2): ["large"],
        ("--max-messages", 1): ["small"],
        ("--min-tokens", 15): ["small"],
        ("--max-tokens", 14): ["large"],
        ("--min-cost", 0.25): ["small"],
        ("--max-cost", 0.1): ["large"],
        ("--min-tool-calls", 2): ["large"],
        ("--model", "gpt"): ["small"],
        ("--end-reason", "cli_close"): ["small", "large"],
        ("--after", "2025-11-24"): ["large"],
        ("--before", "2025-11-24 00:00"): ["small"],
    }
    for arguments, expected in cases.items():
        found = home("sessions", "prune", *arguments, "--dry-run", "--json").json
        assert found["matched"] == expected, arguments


def test_folder_filter_of_newer_files(home):
    newer_files.build(home.db_path, 22)
    with home.store() as db:
        for number, cwd in enumerate(["/a/b", "/a/b/c", "/a/bc", "/a"]):
            home.clock.at(NOW - 100 * DAY + number)
            db.create_session(f"w{number}", "cwdtest")
            db._conn.execute("UPDATE sessions SET cwd = ? WHERE id = ?", (cwd, f"w{number}"))
            db.end_session(f"w{number}", "x")
    found = home(
        "sessions", "prune", "--cwd", "/a/b/", "--source", "cwdtest", "--dry-run", "--json"
    )
    assert found.json["matched"] == ["w0", "w1"]
    found = home("sessions", "prune", "--cwd", "/", "--source", "cwdtest", "--dry-run", "--json")
    assert len(found.json["matched"]) == 4


def test_prune_asks_and_shows_at_most_fifteen(home):
    with home.store() as db:
        for number in range(20):
            home.clock.at(NOW - 100 * DAY + number)
            db.create_session(f"s{number:02}", "cli")
            db.end_session(f"s{number:02}", "x")
    found = home("sessions", "prune", answer="n\n")
    assert (found.code, found.out) == (1, "")
    asked = found.err.splitlines()
    assert len([line for line in asked if line.startswith("s")]) == 15
    assert "  … and 5 more" in asked
    assert "Delete 20 sessions, oldest" in found.err
    assert found.err.endswith("Cancelled.\n")
    assert len(home.ids()) == 20


def test_prune_never_takes_a_session_that_was_opened_again(home):
    three(home)
    with home.store() as db:
        db.reopen_session("old")
        assert db.remove_sessions(["old", "new", "nobody"]) == ["new"]


def test_optimize(home):
    home.add("s", *["words " * 50] * 20)
    home.read(lambda db: db.search_messages("words"))
    assert home("sessions", "optimize", answer="\n").code == 1
    found = home("sessions", "optimize", "--yes")
    assert found.code == 0
    assert found.lines[1] == "Optimized 2 full-text indexes."
    assert found.lines[2].startswith("Database size: ")
    assert home.read(lambda db: len(db.search_messages("words", limit=50))) == 20


def test_arguments_of_a_call_are_shown_as_people_read_them(home):
    arguments = '{"path": "\\u78c1\\u76d8.txt", "note": "a\\u001b[2Jb"}'
    call = {"id": "c", "function": {"name": "read", "arguments": arguments}}
    odd = {"id": "d", "function": {"name": "run", "arguments": "not { json"}}
    home.add("s", said("assistant", "x", tool_calls=[call, odd]))
    shown = home("sessions", "show", "s").out
    assert '→ read({"path": "磁盘.txt", "note": "a\\u001b[2Jb"})' in shown
    assert "→ run(not { json)" in shown
    assert "\x1b[2J" not in shown


def test_show_whole(home):
    home.add("20260301_090000_root00", "x", started=200, ended=100, reason="compression")
    home.add("20260301_100000_tip000", "Fix it", called("terminal", content="Looking"),
             said("tool", "done", tool_name="terminal"), started=60, parent="20260301_090000_root00",
             title="fix", model="m", tokens={"input_tokens": 1200, "output_tokens": 3,
                                             "estimated_cost_usd": 0.5})  # fmt: skip
    assert (
        home("sessions", "show", "20260301_10").out
        == """\
Session:  20260301_100000_tip000
Title:    fix
Source:   cli
Model:    m
Started:  2026-03-02 09:59 (1m ago)
Ended:    open
Messages: 3, 1 tool calls
Tokens:   1,200 in, 3 out, 0 cache read, 0 cache write, 0 reasoning
Cost:     estimated $0.5000

Lineage:
  20260301_090000_root00  2026-03-02 09:56  [compression]
  └─ 20260301_100000_tip000  2026-03-02 09:59  fix  ←

── user · 2026-03-02 09:59:00
Fix it

── assistant · 2026-03-02 09:59:01
Looking
→ terminal({})

── tool terminal · 2026-03-02 09:59:02
done
"""
    )
    found = home("sessions", "show", "20260301_10", "--json").json
    assert [relative["id"] for relative in found["family"]] == [
        "20260301_090000_root00", "20260301_100000_tip000"]  # fmt: skip
    assert len(found["messages"]) == 3
