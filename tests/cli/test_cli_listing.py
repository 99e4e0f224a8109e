"""Ids, relative times, lists of sessions and counts, as printed."""

import re

import pytest
from support.cli_home import DAY, NOW, said

from hermes_actor.cli.output.formatting import relative_time
from hermes_actor.ids import new_session_id


def test_new_session_id_is_date_time_and_hex_digits(home):
    assert re.fullmatch(r"20260302_100000_[0-9a-f]{8}", new_session_id())
    assert re.fullmatch(r"20260302_100000_[0-9a-f]{6}", new_session_id(hex_len=6))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        pytest.param(59.9, "just now", id="under a minute"),
        pytest.param(60, "1m ago", id="one minute"),
        pytest.param(3599, "59m ago", id="under an hour"),
        pytest.param(3600, "1h ago", id="one hour"),
        pytest.param(86399, "23h ago", id="under a day"),
        pytest.param(86400, "yesterday", id="one day"),
        pytest.param(172799, "yesterday", id="under two days"),
        pytest.param(172800, "2d ago", id="two days"),
        pytest.param(604799, "6d ago", id="under a week"),
        pytest.param(604800, "2026-02-23", id="one week"),
        pytest.param(-5, "just now", id="future"),
    ],
)
def test_relative_time(home, seconds, text):
    assert relative_time(NOW - seconds) == text
    home.add("s", started=seconds)
    assert home("sessions", "list").lines[2] == f"—        cli     0  {text}  s"


@pytest.mark.parametrize("missing", [0, None])
def test_relative_time_of_nothing_is_a_question_mark(missing):
    assert relative_time(missing) == "?"


def test_list_of_an_empty_store_says_so(home):
    missing = f"Error: there is no store at {home.db_path} (HERMES_HOME={home.path})\n"
    assert home("sessions", "list") == (1, "", missing)
    assert not home.db_path.exists(), "reading creates nothing"
    with home.store():
        pass
    assert home("sessions", "list") == (0, f"No sessions found in {home.db_path}.\n", "")


def test_list_with_titles_as_printed(home):
    home.add("20260301_101010_aaaaaa", "Plan the reading list for spring", started=20)
    home.add("20260301_111112_empty1", started=30)
    home.add(
        "20260301_090000_bbbbbb",
        "Fix the flaky parser test with a second look",
        started=4 * 60 + 10,
        title="parser fix",
    )
    home.add(
        "20260228_200000_cccccccc",
        "Remind me about the dentist appointment tomorrow",
        started=3700,
        source="telegram",
    )
    assert (
        home("sessions", "list").out
        == """\
Title       Preview                               Src       Msgs  Active    ID
────────────────────────────────────────────────────────────────────────────────────────────────────
—           Plan the reading list for spring      cli          1  just now  20260301_101010_aaaaaa
—           —                                     cli          0  just now  20260301_111112_empty1
parser fix  Fix the flaky parser test with a se…  cli          1  4m ago    20260301_090000_bbbbbb
—           Remind me about the dentist appoint…  telegram     1  1h ago    20260228_200000_cccccccc
"""
    )


def test_list_without_titles_as_printed(home):
    home.add(
        "20260228_200000_cccccccc",
        "Remind me about the dentist appointment tomorrow",
        started=3700,
        source="telegram",
    )
    assert (
        home("sessions", "list").out
        == """\
Preview                                           Src       Msgs  Active  ID
──────────────────────────────────────────────────────────────────────────────────────────────────
Remind me about the dentist appointment tomorrow  telegram     1  1h ago  20260228_200000_cccccccc
"""
    )


def test_list_cuts_a_long_title(home):
    """Title and preview share the room: nine letters of a preview say nothing."""
    home.add("20260301_090000_bbbbbb", "y" * 50, title="x" * 60)
    line = home("sessions", "list").lines[2]
    ends = "…  cli     1  just now  20260301_090000_bbbbbb"
    titled, shown = line.removesuffix(ends).split("…  ")
    assert line.endswith(ends)
    assert (titled, shown) == ("x" * len(titled), "y" * len(shown))
    assert len(line) == 100
    assert len(titled) > len(shown) > 20


def test_list_shows_a_line_break_in_a_preview_as_a_blank(home):
    home.add("s", "a\nb")
    assert home("sessions", "list").lines[2].startswith("a b ")


def test_list_cuts_a_long_preview(home):
    home.add("s", "y" * 61)
    (row,) = home("sessions", "list", "--json").json
    assert row["preview"] == "y" * 60 + "..."


def test_list_previews_the_first_user_message(home):
    home.add("s", said("assistant", "welcome"), "hi")
    (row,) = home("sessions", "list", "--json").json
    assert row["preview"] == "hi"


def test_list_hides_sessions_of_tools(home):
    home.add("s", source="tool")
    assert home("sessions", "list").out == f"No sessions found in {home.db_path}.\n"
    assert home("sessions", "list", "--source", "tool").lines[2].split()[1] == "tool"


def compressed(home, started=200.0):
    home.add("root", "begin", started=started, ended=100, reason="compression", title="importer")
    home.add("tip", "[summary] so far", started=90, parent="root", title="importer #2")


def test_list_shows_a_compressed_conversation_once(home):
    home.add("newer", "x", started=150)
    compressed(home)
    lines = home("sessions", "list").lines[2:]
    assert [line.split()[-1] for line in lines] == ["tip", "newer"]
    assert lines[0].split()[:5] == ["importer", "#2", "[summary]", "so", "far"]


def test_list_leaves_delegates_out(home):
    home.add("parent", "x", started=200)
    home.add("child", "y", started=100, parent="parent")
    assert [row["id"] for row in home("sessions", "list", "--json").json] == ["parent"]


def test_list_shows_a_branch(home):
    home.add("parent", "x", started=200, ended=100, reason="branched")
    home.add("child", "y", started=50, parent="parent")
    assert [row["id"] for row in home("sessions", "list", "--json").json] == ["child", "parent"]


def test_list_obeys_its_limit(home):
    with home.store() as db:
        for number in range(25):
            home.clock.at(NOW - number)
            db.create_session(f"s{number:02}", "cli")
    *lines, more = home("sessions", "list").lines[2:]
    assert [line.split()[-1] for line in lines] == [f"s{number:02}" for number in range(20)]
    assert more == "There are more: --limit 40 shows them."
    assert len(home("sessions", "list", "--limit", 3).lines) == 6
    assert len(home("sessions", "list", "--limit", 25).lines) == 27


def test_stats_as_printed(home):
    for number in range(6):
        home.add(f"c{number}", "x")
    home.add("t", "x", source="telegram")
    home.add("o", "x", source="tool")
    found = home("sessions", "stats")
    assert re.fullmatch(
        "Total sessions: 8\nTotal messages: 8\n  cli: 6 sessions\n  telegram: 1 session\n"
        r"  tool: 1 session\nDatabase size: \d+\.\d MB\n",
        found.out,
    )
    counted = home("sessions", "stats", "--json").json
    assert list(counted) == ["sessions", "messages", "by_source", "db_bytes", "wal_bytes"]
    assert counted["by_source"] == {"cli": 6, "telegram": 1, "tool": 1}


# --- beyond the rows -------------------------------------------------------------------------


def test_wide_characters_line_up(home):
    from rich.cells import cell_len

    home.add(
        "one",
        "日本語のテキストをここに書いて列がずれないことを確かめるための長い文章です",
        title="予定 🚀",
    )
    home.add("two", "plain", started=1, title="ascii")
    first, second = home("sessions", "list").lines[2:]
    assert cell_len(first.partition("just now")[0]) == cell_len(second.partition("just now")[0])


def test_terminal_sequences_in_text_do_not_reach_the_terminal(home):
    home.add("s", "a\x1b[2Jb")
    assert "\x1b" not in home("sessions", "list").out


def test_workspace_of_a_file_that_records_none(home):
    home.add("s")
    found = home("sessions", "list", "--workspace", "x")
    assert found.code == 1
    assert "git_repo_root" in found.err


def test_workspace_filter_comes_before_the_limit(home):
    from support import newer_files

    newer_files.build(home.db_path, 22)
    with home.store() as db:
        for number, cwd in enumerate(["/src/Alpha", "/src/beta", "/src/alpha"]):
            home.clock.at(NOW - number)
            db.create_session(f"w{number}", "cli")
            db._conn.execute("UPDATE sessions SET cwd = ? WHERE id = ?", (cwd, f"w{number}"))
    found = home("sessions", "list", "--workspace", "ALPHA", "--limit", 2)
    assert [line.split()[-1] for line in found.lines[2:]] == ["w0", "w2"]
    assert "Workspace" in found.lines[0]


def test_no_action_prints_the_help(home):
    found = home("sessions")
    assert (found.code, found.lines[0]) == (
        0,
        "Usage: hermes-actor sessions [OPTIONS] [COMMAND] [ARGS]...",
    )


def test_wrong_usage_is_2(home):
    assert home("sessions", "list", "--limit", "x").code == 2
    assert home("sessions", "nonsense").code == 2


def test_store_that_cannot_be_opened(home):
    home.db_path.write_bytes(b"this is not a database, whatever its name says" * 50)
    found = home("sessions", "list")
    assert found.code == 1
    assert found.out == ""
    assert found.err.startswith("Error: Could not open session database: ")
    assert found.err.count("\n") == 1


def test_folder_in_the_place_of_the_store(home):
    home.db_path.mkdir()
    told = f"Error: {home.db_path} is a folder, not a store\n"
    assert home("sessions", "list") == (1, "", told)


def test_old_file_is_brought_up_to_date_first(home):
    from support import old_files

    old_files.build(home.db_path, 3)
    assert home("sessions", "list").code == 0
    assert home.read(lambda db: db.session_count()) > 0


def test_dates_of_days_ago(home):
    home.add("s", started=2.5 * DAY)
    assert home("sessions", "list").lines[2].split() == ["—", "cli", "0", "2d", "ago", "s"]
