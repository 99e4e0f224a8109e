"""The search tool, its excerpts and summaries, and the search command."""

import json
import threading

import pytest
from support.cli_home import called, said

from hermes_actor import SessionDB
from hermes_actor.tools.excerpt import LEADER, TRAILER, cut_around
from hermes_actor.tools.search_schema import SCHEMA
from hermes_actor.tools.session_search import session_search, when
from hermes_actor.tools.summaries import query_terms, register_summarizer
from hermes_actor.tools.transcript import transcript


def tool(home, *options, **arguments):
    found = home("tool", "session-search", *options, json.dumps(arguments))
    assert len(found.lines) == 1
    return found.json


@pytest.fixture
def six(home):
    """Six conversations about monads, the first one the oldest."""
    for number in range(6):
        home.add(f"s{number}", f"What is a monad, {number}?", said("assistant", "A burrito."),
                 started=1000 - number * 10, model="m")  # fmt: skip
    return home


@pytest.mark.parametrize(
    ("limit", "groups"),
    [
        pytest.param(99, 5, id="above the maximum"),
        pytest.param("x", 3, id="no number"),
        pytest.param(0, 1, id="below the minimum"),
    ],
)
def test_limit(six, limit, groups):
    found = tool(six, query="monad", limit=limit)
    assert (found["count"], len(found["results"]), found["sessions_searched"]) == (groups,) * 3
    assert len(tool(six, limit=limit)["results"]) == groups


def test_blank_query_lists_the_latest_sessions(home):
    home.add("root", "x", started=300, ended=200, reason="compression")
    home.add("tip", "y", started=190, parent="root")
    home.add("other", "Plan the reading list", started=100)
    home.add("hidden", "z", source="tool")
    found = tool(home, "--current-session", "tip", query="  ")
    assert found["mode"] == "recent"
    assert found["results"] == [
        {"session_id": "other", "title": None, "source": "cli", "started_at": 1772445500.0,
         "last_active": 1772445500.0, "message_count": 1, "preview": "Plan the reading list"}
    ]  # fmt: skip


def test_search_leaves_out_the_lineage_of_the_caller(home):
    home.add("root", "monad", started=300, ended=200, reason="compression")
    home.add("tip", "y", started=190, parent="root")
    found = tool(home, "--current-session", "tip", query="monad")
    assert found == {"success": True, "query": "monad", "results": [], "count": 0,
                     "sessions_searched": 0}  # fmt: skip


def test_search_returns_a_lineage_once(home):
    home.add("root", "monad", started=300, ended=200, reason="compression")
    home.add("tip", "monad again", started=190, parent="root")
    (result,) = tool(home, query="monad")["results"]
    assert result["session_id"] == "root"
    (result,) = tool(home, query="again")["results"]
    assert "monad again" in result["summary"], "the segment of the hit is in the text"


def test_excerpt_of_a_short_text_is_all_of_it():
    assert cut_around("short", "x", 200) == "short"


def test_excerpt_is_a_window_around_the_hit():
    text = "a" * 400 + " needle " + "b" * 600
    cut = cut_around(text, "needle", 200)
    assert cut.startswith(LEADER)
    assert cut.endswith(TRAILER)
    assert "needle" in cut
    assert len(cut) == 278


def test_excerpt_without_a_hit_is_the_beginning():
    assert cut_around("x" * 1000, "needle", 200) == "x" * 200 + TRAILER


def test_excerpt_of_a_hit_at_the_end():
    text = "x" * 1000 + "needle"
    assert cut_around(text, "needle", 200) == LEADER + text[-200:]


def test_excerpt_shows_the_window_with_most_hits():
    text = "needle" + "x" * 1000 + "needle needle needle" + "y" * 500
    cut = cut_around(text, "needle", 200)
    assert cut.count("needle") == 3


def test_excerpt_prefers_words_together():
    text = "alpha" + "x" * 500 + "beta" + "y" * 1000 + "alpha beta!" + "z" * 800
    # The phrase itself does not count here: another order of the words.
    assert "alpha beta!" in cut_around(text, "beta alpha", 200)


def test_transcript_shortens_tool_output(home):
    output = "a" * 300 + "b" * 300
    text = transcript([said("tool", output, tool_name="terminal")])
    assert text == f"[TOOL:terminal]: {'a' * 250}\n...[truncated]...\n{'b' * 250}"
    assert transcript([called("a", "b", content="text"), said("user", "q")]) == (
        "[ASSISTANT]: [Called: a, b]\n\n[ASSISTANT]: text\n\n[USER]: q"
    )


@pytest.fixture
def broken_summarizer(monkeypatch):
    monkeypatch.setattr("hermes_actor.tools.summaries._WAITS_SECONDS", (0.0, 0.0))
    calls = []

    def broken(request):
        calls.append(request.session["id"])
        raise RuntimeError("no model")

    register_summarizer(broken)
    yield calls
    register_summarizer(None)


def test_search_survives_a_summariser_that_fails(home, broken_summarizer):
    home.add("s", "monad " * 200)
    found = tool(home, query="monad")
    assert found["success"]
    head, _, rest = found["results"][0]["summary"].partition("\n")
    assert "aw preview" in head
    assert rest == ("[USER]: " + "monad " * 200)[:500] + "\n…[truncated]"
    assert broken_summarizer == ["s"] * 3


@pytest.fixture
def slow_for_one(home):
    """A summariser that does not come back for one session."""
    (home.path / "config.yaml").write_text(
        "auxiliary: {session_search: {timeout: 0.2, max_concurrency: 1}}"
    )
    released = threading.Event()

    def slow(request):
        if request.session["id"] == "s0":
            released.wait()
        return f"about {request.session['id']}"

    register_summarizer(slow)
    yield
    released.set()
    register_summarizer(None)


def test_summary_that_takes_too_long_holds_up_no_other(home, slow_for_one):
    for n in range(3):
        home.add(f"s{n}", "monad " * (3 - n))
    found = {one["session_id"]: one["summary"] for one in tool(home, query="monad")["results"]}
    assert found.pop("s0").startswith("[Raw preview")
    assert found == {"s1": "about s1", "s2": "about s2"}


def test_all_summaries_together_take_too_long(home, slow_for_one, monkeypatch):
    monkeypatch.setattr("hermes_actor.tools.summaries._ALL_SECONDS", 0.1)
    home.add("s0", "monad")
    found = home("tool", "session-search", '{"query": "monad"}')
    assert (found.code, found.json["success"]) == (1, False)
    assert "narrower" in found.json["error"]


def test_default_summaries_are_equal(six):
    first, second = (six("tool", "session-search", '{"query": "monad"}').out for _ in range(2))
    assert first == second


def test_search_hides_sessions_of_tools(home):
    home.add("s", "monad", source="tool")
    home.add("t", "monad", source="subagent")
    assert tool(home, query="monad")["results"] == []


def test_summary_whole(home):
    home.add("s", "What is a monad?", called("terminal", "terminal", "read_file"),
             said("tool", "out", tool_name="terminal"), said("assistant", "A  monad\nis a burrito."),
             "thanks", said("assistant", "Any time."), source="discord", model="x/y")  # fmt: skip
    (result,) = tool(home, query="monad OR burr* NOT taco")["results"]
    assert result == {
        "session_id": "s",
        "when": "March 02, 2026 at 10:00 AM",
        "source": "discord",
        "model": "x/y",
        "summary": "Goal: What is a monad?\nMatches:\n- user: What is a monad?\n"
        "- assistant: A monad is a burrito.\nTools: terminal×2, read_file×1\nOutcome: Any time.",
    }


def test_excerpts_are_cut_at_words(home):
    home.add("s", "word " * 100 + "needle " + "tail " * 100)
    summary = tool(home, query="needle")["results"][0]["summary"]
    excerpt = summary.splitlines()[2].removeprefix("- user: ")
    assert excerpt.startswith("…word ")
    assert excerpt.endswith(" tail…")
    assert len(excerpt) <= 242


def test_terms_of_a_query():
    assert query_terms('Foo AND ("bar baz" OR qux*) NOT evil NEAR foo') == (
        "foo",
        "bar baz",
        "qux*",
    )


@pytest.mark.parametrize(
    ("moment", "words"),
    [(None, "unknown"), ("1772445600", "March 02, 2026 at 10:00 AM"), ("some day", "some day")],
)
def test_when(home, moment, words):
    assert when(moment) == words


# --- raw messages ----------------------------------------------------------------------------


def test_discover(home):
    home.add("s", *[f"filler {n}" for n in range(10)], "the needle here", *["more"] * 10)
    home.add("job", "needle", source="cron")
    found = tool(home, query="needle", sort="newest", window=2)
    assert (found["mode"], found["count"], found["sessions_searched"]) == ("discover", 2, 2)
    result = found["results"][0]
    assert result["session_id"] == "s", "scheduled jobs come last"
    assert [m.get("anchor", False) for m in result["messages"]] == [
        False,
        False,
        True,
        False,
        False,
    ]
    assert (result["messages_before"], result["messages_after"]) == (8, 8)
    assert [m["content"] for m in result["bookend_start"]] == ["filler 0", "filler 1", "filler 2"]


def test_discover_by_title(home):
    home.add("s", "text", title="garden plan")
    result = tool(home, query="garden plan", raw=True)["results"][0]
    assert (result["session_id"], result["matched_role"]) == ("s", "session_title")


def test_read_and_scroll(home):
    home.add("root", *[f"m{n}" for n in range(40)], started=300, ended=200, reason="compression")
    home.add("tip", "last", started=100, parent="root")
    read = tool(home, session_id="root")
    assert (read["mode"], read["truncated"], read["message_count"]) == ("read", True, 40)
    assert len(read["messages"]) == 30
    scrolled = tool(home, session_id="root", around_message_id=20, window=3)
    assert [m["content"] for m in scrolled["messages"]] == [f"m{n}" for n in range(16, 23)]
    rebound = tool(home, session_id="tip", around_message_id=20)
    assert rebound["session_id"] == "root"
    assert "warning" in rebound
    for arguments in (
        {"session_id": "nosuch"},
        {"session_id": "root", "around_message_id": 999},
        {"session_id": "root", "around_message_id": "x"},
    ):
        assert not tool(home, **arguments)["success"]
    own = tool(home, "--current-session", "tip", session_id="root", around_message_id=20)
    assert not own["success"]


def test_schema(home):
    schema = home("tool", "session-search", "--schema").json
    assert schema == SCHEMA
    assert schema["name"] == "session_search"


@pytest.mark.parametrize("text", ["[]", "{", '{"nosuch": 1}', '{"query": "\\ud800"}', "[" * 9999])
def test_wrong_arguments_are_answered_in_json(home, text):
    found = home("tool", "session-search", text)
    assert (found.code, found.json["success"]) == (1, False)


def test_arguments_from_standard_input(six):
    assert six("tool", "session-search", stdin='{"query": "monad", "limit": 1}').json["count"] == 1


def test_library_function(six, monkeypatch):
    with six.store() as db:
        assert json.loads(session_search("monad", db=db))["count"] == 3
    db = SessionDB(six.db_path, mode="embedded")
    db.close()
    assert json.loads(session_search("monad", db=db))["success"] is False


@pytest.mark.parametrize(
    "arguments",
    [
        {"query": "zebra \ud83d"},
        {"query": "zebra", "raw": True},
        {"query": "zebra"},
        {"session_id": "s"},
        {"session_id": "\ud83d"},
        {"query": "zebra", "current_session_id": "\ud83d"},
        {"query": "zebra", "role_filter": "user,\ud83d"},
        {"query": "zebra", "session_id": "s", "sort": "\ud83d"},
    ],
    ids=str,
)
def test_library_function_never_raises_for_half_an_emoji(home, arguments):
    """JSON of a model can hold a lone surrogate, and so can structured content of a message."""
    home.add("now", "x")
    with home.store() as db:
        db.create_session("s", "cli")
        db.append_message("s", "user", [{"type": "text", "text": "zebra \ud83d alone"}])
        db.append_message("s", "user", b"\xff\xfe zebra bytes")
        found = json.loads(session_search(db=db, **arguments))
    assert found["success"] is True or found["error"]


# --- the command -----------------------------------------------------------------------------


def test_search_whole(home):
    home.add("20260301_101010_aaaaaa", "before", "Fix the parser", "after", started=3700,
             title="parser fix")  # fmt: skip
    assert home("search", "parser").out == (
        "20260301_101010_aaaaaa  cli  parser fix\n"
        "  2026-03-02 08:58  user: Fix the >>>parser<<<\n"
        "\n"
        "1 of 1 hit\n"
    )
    assert home("search", "parser", "--context").lines[1:-2] == [
        "    user: before",
        "  2026-03-02 08:58  user: Fix the >>>parser<<<",
        "    user: after",
    ]


def test_search_filters(home):
    home.add("c", "needle", said("assistant", "needle"))
    home.add("t", "needle", source="telegram")
    home.add("h", "needle", source="tool")

    def found(*options):
        return sorted((hit["session_id"], hit["role"]) for hit in
                      home("search", "needle", "--json", *options).json)  # fmt: skip

    assert found() == [("c", "assistant"), ("c", "user"), ("t", "user")]
    assert found("--role", "assistant") == [("c", "assistant")]
    assert found("--source", "telegram") == [("t", "user")]
    assert found("--source", "tool") == [("h", "user")]
    assert found("--exclude-source", "cli") == [("h", "user"), ("t", "user")]
    assert len(found("--all")) == 4
    assert len(found("--limit", "1")) == 1


def test_search_without_hits(home):
    home.add("s", "x")
    assert home("search", "nothing") == (0, "Nothing found for: nothing\n", "")
    assert home("search", "nothing", "--json").json == []


def test_search_sees_what_was_just_written(home):
    home.add("s", "x")
    home("sessions", "import", "-", stdin=json.dumps(
        {"id": "n", "messages": [{"role": "user", "content": "fresh 大别野"}]}))  # fmt: skip
    assert [hit["session_id"] for hit in home("search", "大别野", "--json").json] == ["n"]
