"""Ctrl-C in every command that draws: the terminal is as it was before."""

import pytest
from support.terminal import terminal

COMMANDS = {
    "top": (("top",), "not running: "),
    "serve": (("serve",), "latency"),
    "browse": (("sessions", "browse"), "2 sessions"),
    "sql": (("sql", "state.db"), "state.db>"),
    "demo": (("demo", "--writers", "2"), "acknowledged"),
    "question": (("sessions", "delete", "one"), "[y/N]"),
    "metrics": (("metrics", "--listen", "0"), "serving metrics at"),
}  # fmt: skip


@pytest.fixture
def sessions(home):
    home.add("one", "a question")
    home.add("other", "another question")
    return home


@pytest.mark.parametrize("name", COMMANDS)
def test_terminal_is_clean_after_ctrl_c(sessions, name):
    words, first = COMMANDS[name]
    words = [str(sessions.db_path) if word == "state.db" else word for word in words]
    with terminal(sessions.path, *words, columns=80, lines=30) as screen:
        screen.wait_for(first)
        screen.press("C-c")
        if name == "sql":  # it ends the line; the end of the input ends the shell
            screen.press("C-d")
        shown = screen.wait_for("[exit ")
        state = "#{cursor_flag} #{alternate_on} #{keypad_flag} #{mouse_any_flag}"
        assert screen.tmux("display-message", "-p", "-t", "0", state).split() == [
            "1",
            "0",
            "0",
            "0",
        ]
        # What is typed is seen again.
        screen.type("typed afterwards")
        screen.wait_for("typed afterwards")
    assert not set("╭│╰") & set(shown)
    assert "Traceback" not in shown
