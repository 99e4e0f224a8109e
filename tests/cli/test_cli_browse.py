"""The picker: in a terminal of its own, and without one."""

import re

import pytest
from support.cli_home import said
from support.terminal import terminal

from hermes_actor.cli.output.formatting import width
from hermes_actor.cli.sessions._picker import Action, Picker


@pytest.fixture
def sessions(home):
    home.add(
        "20260301_101010_aaaaaa", "Plan the reading list", said("assistant", "Sure."), started=20
    )
    home.add("20260301_090000_bbbbbb", "Fix the parser", started=250, title="parser fix")
    home.add(
        "20260228_200000_cccccccc",
        "予定を教えて",
        started=3700,
        source="telegram",
        title="日本語 🚀",
    )
    return home


def test_picker_whole_screen(sessions):
    with terminal(sessions.path, "sessions", "browse", "--print") as screen:
        shown = screen.wait_for("3 sessions").splitlines()
        keys = "Enter open  Tab preview  Esc quit  type: filter  ^U clear  ^R rename  ^D delete"
        assert [line.rstrip() for line in shown] == [
            f"  {keys}",
            "   Title / Preview                                  Active      Src       ID",
            "",
            " → Plan the reading list                            2026-03-02  cli       20260301_101010_aaaaaa",
            "   parser fix                                       2026-03-02  cli       20260301_090000_bbbbbb",
            "   日本語 🚀                                        2026-03-02  telegram  20260228_200000_cccccccc",
            *[""] * 7,
            "  1/3 sessions",
        ]  # fmt: skip
        screen.press("Up")  # wraps around
        screen.wait_for(" → 日本語 🚀")
        screen.press("Down")
        screen.type("parser")
        screen.wait_for("filter: parser█")
        assert (
            screen.wait_for("1/1 sessions (filtered from 3)")
            .splitlines()[3]
            .startswith(" → parser")
        )
        screen.press("Enter")
        screen.wait_for("[exit 0]")
        assert screen.screen().splitlines()[0] == "20260301_090000_bbbbbb"


def test_wide_characters_line_up_on_the_screen(sessions):
    from rich.cells import cell_len

    with terminal(sessions.path, "sessions", "browse") as screen:
        rows = screen.wait_for("日本語").splitlines()[3:6]
        places = {cell_len(row.partition(" 2026")[0]) for row in rows}
        assert len(places) == 1, rows
        screen.press("Escape")
        screen.wait_for("Cancelled.")


def test_preview_rename_and_delete_on_the_screen(sessions):
    with terminal(sessions.path, "sessions", "browse") as screen:
        screen.wait_for("3 sessions")
        screen.press("Tab")
        assert "◆ Hermes: Sure." in screen.wait_for("any key goes back")
        screen.press("x")
        screen.wait_for("1/3 sessions")
        screen.press("C-r")
        screen.wait_for("\nTitle:")
        screen.type("spring plan")
        screen.press("Enter")
        screen.wait_for("Renamed to: spring plan")
        assert " → spring plan" in screen.screen()
        screen.press("C-r")
        screen.wait_for("Title: spring plan")
        screen.press("C-u")
        screen.type("parser fix")
        screen.press("Enter")
        screen.wait_for("already in use by session 20260301_090000_bbbbbb")
        screen.press("C-d")
        screen.wait_for("[y/N]")
        screen.type("y")
        screen.press("Enter")
        screen.wait_for("Deleted session '20260301_101010_aaaaaa'.")
        screen.press("q")
        screen.wait_for("Cancelled.")
    assert sessions.ids() == {"20260301_090000_bbbbbb", "20260228_200000_cccccccc"}


def test_filter_without_match_and_escape(sessions):
    with terminal(sessions.path, "sessions", "browse") as screen:
        screen.wait_for("3 sessions")
        screen.type("zzz")
        found = screen.wait_for("0/3 sessions").splitlines()
        assert found[3] == "   No sessions match the filter."
        screen.press("Escape")
        screen.wait_for("1/3 sessions")
        screen.type("q")
        screen.wait_for("Cancelled.")


def test_small_terminal(sessions):
    with terminal(sessions.path, "sessions", "browse", columns=30, lines=10) as screen:
        screen.wait_for("Terminal too small")
        screen.press("x")
        screen.wait_for("Cancelled.")


def test_choosing_runs_the_resume_command(sessions):
    program = sessions.path / "bin" / "hermes"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\necho "started with $*"\n')
    program.chmod(0o755)
    with terminal(
        sessions.path, "sessions", "browse", PATH=f"{program.parent}:/usr/bin:/bin"
    ) as screen:
        screen.wait_for("3 sessions")
        screen.press("Enter")
        shown = screen.wait_for("started with --resume 20260301_101010_aaaaaa")
        assert "Resuming session: 20260301_101010_aaaaaa" in shown


@pytest.mark.parametrize("no_color", [False, True])
def test_picker_has_the_colours_of_the_terminal(sessions, no_color):
    env = {"NO_COLOR": "1"} if no_color else {}
    with terminal(sessions.path, "sessions", "browse", **env) as screen:
        screen.wait_for("3 sessions")
        shown = screen.screen(colours=True)
        screen.press("Escape")
    # White on black, which curses takes by default, is not the user's choice.
    assert not re.search(r"\x1b\[(37|40)m", shown)
    assert bool(re.search(r"\x1b\[3[1-7]m", shown)) is not no_color


@pytest.mark.parametrize("no_color", [False, True])
def test_colours_on_a_terminal_only(sessions, no_color):
    env = {"NO_COLOR": "1"} if no_color else {}
    with terminal(sessions.path, "sessions", "list", columns=130, lines=30, **env) as screen:
        screen.wait_for("[exit 0]")
        assert ("\x1b[" in screen.screen(colours=True)) is not no_color
    assert "\x1b" not in sessions("sessions", "list").out


def test_long_output_goes_through_the_pager(home):
    home.add("s", *[f"line {n}" for n in range(60)])
    with terminal(home.path, "sessions", "show", "s", lines=20, PAGER="less") as screen:
        assert "Session:" in screen.wait_for("Lineage:")
        assert "[exit" not in screen.screen()
        screen.type("q")
        screen.wait_for("[exit 0]")


# --- without a terminal ----------------------------------------------------------------------

NUMBERED = """
  Browse sessions  (enter number to resume, q to cancel)

    1. Plan the reading list                               just now    cli
    2. parser fix                                          4m ago      cli
    3. 日本語 🚀                                           1h ago      telegram

  Select [1-3]: """


def test_numbered_form_whole(sessions):
    found = sessions("sessions", "browse", "--print", stdin="2\n")
    assert found == (0, "20260301_090000_bbbbbb\n", NUMBERED)


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_numbered_form_fits_the_terminal(home, monkeypatch, columns):
    home.add(
        "s",
        "x",
        title="日本語の長いタイトルを持つセッション、折り返しの確認用 🚀",
        source="api_server",
    )
    monkeypatch.setenv("COLUMNS", str(columns))
    shown = home("sessions", "browse", stdin="q\n").out
    (line,) = [line for line in shown.splitlines() if "  1. " in line]
    assert width(line) <= columns
    assert line.count("…") == 1
    assert "..." not in line
    assert line.endswith("api_server")


@pytest.mark.parametrize("answer", ["", "\n", "q\n", "QUIT\n", "exit\n"])
def test_numbered_form_cancelled(sessions, answer):
    assert sessions("sessions", "browse", stdin=answer) == (0, f"{NUMBERED}\nCancelled.\n", "")


def test_numbered_form_asks_again(sessions):
    found = sessions("sessions", "browse", "--print", stdin="9\nx\n1\n")
    assert found.out == "20260301_101010_aaaaaa\n"
    assert found.err.count("Please enter a number between 1 and 3") == 2


def test_nothing_to_browse(home):
    with home.store():
        pass
    assert home("sessions", "browse").out == f"No sessions found in {home.db_path}.\n"


# --- the state of the picker -----------------------------------------------------------------


def rows(count):
    return [{"id": f"s{n}", "title": f"t{n}", "preview": "", "source": "cli"} for n in range(count)]


def test_picker_keys():
    picker = Picker(rows(3))
    picker.press("down")
    picker.press("down")
    picker.press("down")
    assert picker.position == 0
    picker.press("up")
    assert picker.selected["id"] == "s2"
    assert picker.press("T") is Action.NOTHING
    assert (picker.filter, picker.position, len(picker.shown)) == ("T", 0, 3)
    assert picker.press("q") is Action.NOTHING
    assert picker.shown == []
    assert picker.press("\t") is Action.NOTHING
    assert picker.press("\n") is Action.QUIT
    picker.press("backspace")
    assert picker.filter == "T"
    assert picker.press("\x1b") is Action.NOTHING
    assert picker.press("\x1b") is Action.QUIT
    assert picker.press("q") is Action.QUIT
    assert picker.press("\r") is Action.OPEN
