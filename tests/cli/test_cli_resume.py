"""Resume finds the right session; the recap shows what was said."""

import pytest
from support.cli_home import called, said

from hermes_actor.tools.recap import Limits, recap_entries
from hermes_actor.tools.resume import split_words
from hermes_actor.tools.sanitize import without_reasoning


def resumed(found):
    """The id in the first line of a resume."""
    assert found.code == 0, found.out
    return next(line for line in found.lines if line.startswith("↻")).split()[3]


def test_continue_takes_the_session_with_the_latest_activity(home):
    home.add("A", "x", started=100)
    home.add("B", "y", started=50)
    with home.store() as db:
        db.append_message("A", "user", "later")
    assert resumed(home("resume", "-c")) == "A"
    assert resumed(home("resume")) == "A"


def test_continue_without_a_session_of_the_source_is_an_error(home):
    home.add("t", "x", source="telegram")
    assert home("resume", "-c") == (1, "", "No session of source cli to continue.\n")
    assert resumed(home("resume", "-c", "--source", "tui", "--source", "telegram")) == "t"


def lineage(home):
    home.add("one", "x", started=300, title="my project")
    home.add("two", "x", started=200, title="my project #2")
    home.add("five", "x", started=100, title="my project #5")


def test_resume_by_title_takes_the_latest_of_a_lineage(home):
    lineage(home)
    assert resumed(home("resume", "-c", "my project")) == "five"


def test_resume_joins_words_without_quotes(home):
    assert split_words(["Pokemon", "Agent", "Dev"]) == ("Pokemon Agent Dev", [])
    home.add("s", "x", title="Pokemon Agent Dev")
    assert resumed(home("resume", "-c", "Pokemon", "Agent", "Dev")) == "s"


def test_resume_name_ends_at_a_command(home):
    assert split_words(["my", "project", "chat"], ["chat"]) == ("my project", ["chat"])
    assert split_words(["my", "project", "--yolo", "x"]) == ("my project", ["--yolo", "x"])
    lineage(home)
    assert resumed(home("resume", "-c", "my", "project", "chat")) == "five"


def test_resume_of_a_root_leads_to_the_tip(home):
    home.add("root", "x", started=200, ended=100, reason="compression")
    home.add("tip", "y", started=90, parent="root")
    found = home("resume", "-r", "root")
    assert resumed(found) == "tip"
    assert found.lines[0] == "Session root goes on in tip"


def test_resume_by_prefix(home):
    for name in ("2026a1", "2026a2", "2026a3", "2025"):
        home.add(name, "x", title="Two" if name == "2026a2" else None)
    assert resumed(home("resume", "-r", "2025")) == "2025"
    assert resumed(home("resume", "-r", "2026a2")) == "2026a2"
    found = home("resume", "-r", "2026")
    assert found.code == 1
    told = "Several sessions begin with '2026':\n  2026a1\n  2026a2  Two\n  2026a3\n"
    assert found.err == f"{told}Give more of the id. All sessions: hermes-actor sessions list\n"


def test_empty_id_is_not_found(home):
    home.add("only", "q")
    assert home("resume", "-r", "") == (1, "", "Session not found: \n")


def test_resume_of_an_unknown_name_is_an_error(home):
    home.add("s", "x")
    found = home("resume", "-c", "nosuch")
    assert found.code == 1
    assert found.err.splitlines() == [
        "No session found matching 'nosuch'.",
        "Use 'hermes-actor sessions list' to see the sessions there are.",
    ]
    assert home("resume", "-r", "nosuch") == (1, "", "Session not found: nosuch\n")


def test_resume_reopens_an_ended_session(home):
    home.add("s", "x", ended=0)
    looked = home("resume", "-r", "s", "--peek")
    assert looked.lines[0].startswith("Session s (")
    assert home.row("s")["ended_at"] is not None
    resumed = home("resume", "-r", "s")
    assert resumed.lines[0].startswith("↻ Resumed session s (")
    row = home.row("s")
    assert (row["ended_at"], row["end_reason"]) == (None, None)


def test_recap_counts_earlier_messages(home):
    turns = [turn for n in range(13) for turn in (f"q{n}", said("assistant", f"a{n}"))]
    home.add("s", *turns)
    lines = home("resume").lines
    assert lines[2][2:].startswith("  ... 6 earlier messages ...")
    entries = [line for line in lines if "●" in line or "◆" in line]
    assert len(entries) == 20
    assert "q3" in entries[0]


def entry(messages, **limits):
    return recap_entries(messages, Limits(**limits))


def test_recap_cuts_a_long_question(home):
    home.add("s", "x" * 310)
    out = home("resume").out
    assert entry([said("user", "x" * 310)]) == [("user", "x" * 300 + "...")]
    assert out.count("x") == 300


def test_recap_cuts_an_answer_of_many_lines(home):
    home.add("s", "q", said("assistant", "1\n2\n3\n4\n5"), said("assistant", "end"))
    lines = [line.strip("│ ") for line in home("resume").lines]
    assert lines[3:6] == ["◆ Hermes: 1", "2", "3 ..."]


def test_recap_cuts_a_long_answer(home):
    answer = said("assistant", "y" * 250)
    assert entry([answer, said("assistant", "end")])[0] == ("assistant", "y" * 200 + "...")
    assert entry([answer]) == [("final", "y" * 250)]
    home.add("s", "q", answer)
    assert home("resume").out.count("y") == 250


def test_recap_of_tool_calls_with_text(home):
    home.add("s", "q", called("terminal", "terminal", "web_search", content="Looking."))
    assert "◆ Hermes: Looking. [3 tool calls: terminal, web_search]" in home("resume").out


def test_recap_of_one_tool_call(home):
    home.add("s", "q", called("x"))
    assert "◆ Hermes: [1 tool call: x]" in home("resume").out


def test_recap_of_many_tool_names(home):
    home.add("s", "q", called("a", "b", "c", "d", "e"))
    assert "[5 tool calls: a, b, c, d, ...]" in home("resume").out


def test_recap_of_calls_without_text(home):
    """Shown by default, dropped when the setting says so."""
    assert entry([called("x")], skip_tool_only=True) == []
    assert entry([called("x")]) == [("final", "[1 tool call: x]")]


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        pytest.param("<think>a</think>b", "b", id="closed"),
        pytest.param("a<think>b", "a", id="only opened"),
        pytest.param("a</think>b", "ab", id="only closed"),
        ("<THINKING>x</THINKING>\n\n y ", "y"),
        ("a <tool_call>{}</tool_call> b", "a b"),
        ("1 < 2 and <b>bold</b>", "1 < 2 and <b>bold</b>"),
    ],
)
def test_reasoning_is_removed(home, text, clean):
    assert without_reasoning(text) == clean
    home.add("s", "q", said("assistant", text))
    assert f"◆ Hermes: {clean} " in home("resume").out


def test_recap_of_nothing_is_empty(home):
    home.add("s", said("system", "x"), said("tool", "y", tool_name="t"))
    found = home("resume")
    assert found.lines == ["↻ Resumed session s (0 user messages, 2 total messages)"]


def test_recap_of_an_empty_question(home):
    home.add("s", "", said("assistant", "a"))
    assert home("resume").lines[2].strip("│ ") == "● You:"


def test_recap_removes_escape_sequences(home):
    home.add("s", "a\x1b[31mred\x1b[0m \x1b]0;title\x07b\x08")
    out = home("resume").out
    assert "● You: ared b" in out
    assert "\x1b" not in out


def test_recap_in_minimal_form(home):
    home.add("s", "x", title="t")
    line = '↻ Resumed session s "t" (1 user message, 1 total messages)\n'
    assert home("resume", "--minimal").out == line
    (home.path / "config.yaml").write_text("display: {resume_display: minimal}\n")
    assert home("resume").out == line


def test_settings_of_the_recap(home):
    home.add("s", *["q" * 50, called("x"), said("assistant", "last")] * 3)
    (home.path / "config.yaml").write_text(
        "display: {resume_exchanges: 1, resume_max_user_chars: 5, resume_skip_tool_only: true}\n"
        "actor: {resume_command: 'agent go {id}'}\n"
    )
    shown = [line.strip("│ ") for line in home("resume").lines[2:-2]]
    assert shown == ["... 4 earlier messages ...", "", "● You: qqqqq...", "◆ Hermes: last"]
    assert home("resume", "--hint", "s").lines[1] == "  agent go s"
    (home.path / "config.yaml").write_text("display: {resume_exchanges: many}\n")
    found = home("resume")
    assert found.code == 1
    assert "display.resume_exchanges" in found.err


def test_panel_whole(home, monkeypatch):
    monkeypatch.setenv("COLUMNS", "72")
    home.add(
        "s",
        "Fix the parser\nand the lexer",
        called("terminal", "terminal", "web_search", content="Looking at it."),
        called("a", "b", "c", "d", "e"),
        said("assistant", "one\ntwo\nthree\nfour"),
        said("user", [{"type": "text", "text": "see this"}, {"type": "image_url"}]),
        said("assistant", "Final line 1\nFinal line 2\nFinal line 3\nFinal line 4 " + "z" * 30),
    )
    assert (
        home("resume").out.partition("\n")[2]
        == """\
╭─────────────────────── Previous Conversation ────────────────────────╮
│   ● You: Fix the parser                                              │
│          and the lexer                                               │
│   ◆ Hermes: Looking at it. [3 tool calls: terminal, web_search]      │
│   ◆ Hermes: [5 tool calls: a, b, c, d, ...]                          │
│   ◆ Hermes: one                                                      │
│             two                                                      │
│             three ...                                                │
│   ● You: see this [image]                                            │
│   ◆ Hermes: Final line 1                                             │
│             Final line 2                                             │
│             Final line 3                                             │
│             Final line 4 zzzzzzzzzzzzzzzzzzzzzzzzzzzzzz              │
│                                                                      │
╰──────────────────────────────────────────────────────────────────────╯
"""
    )


def test_json_is_the_conversation(home):
    home.add("s", "q", called("x"), said("tool", "r", tool_name="x", tool_call_id="c0"), title="t")
    found = home("resume", "-r", "t", "--json").json
    assert (found["session_id"], found["title"]) == ("s", "t")
    assert [m["role"] for m in found["messages"]] == ["user", "assistant", "tool"]
    assert found["messages"][1]["tool_calls"][0]["function"]["name"] == "x"


def test_empty_session_starts_fresh(home):
    home.add("s", title="t")
    assert home("resume").out == 'Session s "t" is empty; it starts fresh.\n'


def test_hint_can_be_pasted_into_a_shell(home):
    home.add("odd id", "q", title='say "$(hi)"')
    lines = home("resume", "--hint", "odd id").lines
    assert lines[1:3] == ["  hermes --resume 'odd id'", """  hermes -c 'say "$(hi)"'"""]


def test_hint_whole(home):
    home.add("s", "q", called("x"), started=125, ended=60, title="my talk")
    assert (
        home("resume", "--hint", "s").out
        == """\
Resume this session with:
  hermes --resume s
  hermes -c "my talk"

Session:         s
Title:           my talk
Duration:        1m 5s
Messages:        2 (1 user, 1 tool calls)
"""
    )
