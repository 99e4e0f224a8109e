"""Titles: set by the user, numbered along a lineage, generated."""

import threading

import pytest
from support.cli_home import NOW, said

from hermes_actor.errors import TitleInUse
from hermes_actor.tools.titles import (
    PendingTitle,
    auto_title,
    default_title,
    may_auto_title,
    post_process,
)


def test_title_set_before_its_session_is_applied_to_it(home):
    found = home("title", "new", "Plan")
    assert found.code == 0
    assert found.out.startswith("Title queued: Plan")
    assert home("title", "new").lines == ["Session: new", "Title (pending): Plan"]
    with home.store() as db:
        db.create_session("new", "cli")
        assert db.get_session_title("new") == "Plan"
        assert db.get_queued_title("new") is None
    assert home("title", "new").lines == ["Session: new", "Title: Plan"]


def test_title_set_before_its_session_must_be_free(home):
    home.add("T", title="Plan")
    assert home("title", "new", "Plan") == (
        1, "", "Error: Title 'Plan' is already in use by session T\n")  # fmt: skip
    assert home("title", "new").code == 1


def test_title_that_waits_for_its_session_can_be_cleared(home):
    home("title", "new", "Plan")
    home("title", "new", "--clear")
    with home.store() as db:
        db.create_session("new", "cli")
        assert db.get_session_title("new") is None


def test_title_is_kept_for_one_session_only(home):
    home("title", "new", "Plan")
    assert home("title", "other", "Plan").code == 1
    assert home("title", "new", "Plan").code == 0


def test_kept_title_that_is_taken_gets_the_next_number(home):
    home("title", "new", "Plan")
    home.add("T", title="Plan")
    with home.store() as db:
        db.create_session("new", "cli")
        assert db.get_session_title("new") == "Plan #2"


def test_kept_title_is_applied_by_whatever_creates_the_session(home):
    home.add("old", "x", title="talk")
    for name in ("tokens", "child", "imported"):
        home("title", name, f"kept {name}")
    home("sessions", "import", "-", stdin='{"id": "imported"}')
    with home.store() as db:
        db.update_token_counts("tokens", input_tokens=1)
        db.continue_session("old", "child")
        titles = [db.get_session_title(name) for name in ("tokens", "child", "imported")]
    assert titles == ["kept tokens", "kept child", "kept imported"]


def numbered(home, *titles):
    for number, title in enumerate(titles):
        home.add(f"s{number}", title=title, started=100 - number)


@pytest.mark.parametrize("base", ["p", "p #2", "p #9"])
def test_next_title_of_a_lineage_is_numbered(home, base):
    numbered(home, "p", "p #2", "p #5")
    assert home.read(lambda db: db.get_next_title_in_lineage(base)) == "p #6"


def test_next_title_of_a_new_name_is_the_name(home):
    assert home.read(lambda db: db.get_next_title_in_lineage("new")) == "new"


def test_next_title_takes_the_name_literally(home):
    numbered(home, "a_b", "axb #2")
    assert home.read(lambda db: db.get_next_title_in_lineage("a_b")) == "a_b #2"


def test_title_moves_along_its_lineage(home):
    home.add("root", "x", started=200, ended=100, reason="compression", title="importer")
    home.add("tip", "y", started=90, parent="root")
    found = home("sessions", "rename", "tip", "importer")
    assert found.out == "Session 'tip' renamed to: importer\n"
    assert (home.row("root")["title"], home.row("tip")["title"]) == (None, "importer")
    # Never the other way, and never through the method of the contract.
    assert home("sessions", "rename", "root", "importer").code == 1
    with home.store() as db, pytest.raises(TitleInUse):
        db.set_session_title("root", "importer")


def test_old_conversations_get_no_generated_title(home):
    assert may_auto_title([said("user", "x")] * 2)
    assert not may_auto_title([said("user", "x")] * 3)
    home.add("s", "one", "two", "three")
    found = home("title", "--auto", "s")
    assert (found.code, home.row("s")["title"]) == (0, None)
    with home.store() as db:
        assert auto_title(db, "s", db.get_messages("s"), "one", "answer") is None


@pytest.mark.parametrize(
    ("generated", "title"),
    [
        pytest.param('"Title: Fix the build"', "Fix the build", id="prefix and quotes"),
        pytest.param("x" * 90, "x" * 77 + "...", id="too long"),
        ("<think>hm</think>'A name'", "A name"),
        ("  ", None),
        (None, None),
    ],
)
def test_generated_titles_are_cleaned(generated, title):
    assert post_process(generated) == title


def named(db, title_fn, session_id="s"):
    thread = auto_title(db, session_id, [said("user", "q")], "q", "a", title_fn=title_fn)
    thread.join(20)
    return db.get_session_title(session_id)


def test_title_of_the_user_wins_over_a_generated_one(home):
    home.add("s", "q")
    with home.store() as db:

        def slow(user, assistant):
            db.set_session_title("s", "mine")
            return "generated"

        assert named(db, slow) == "mine"


def test_generated_title_that_is_taken_is_numbered(home):
    home.add("T", title="Fix")
    home.add("s", "q")
    with home.store() as db:
        assert named(db, lambda user, assistant: "Fix") == "Fix #2"


def test_automatic_titles_can_be_switched_off(home):
    home.add("s", "Fix the build")
    (home.path / "config.yaml").write_text("auxiliary: {title_generation: {enabled: false}}")
    with home.store() as db:
        thread = auto_title(db, "s", [said("user", "x")], "Fix the build", "Done.")
        thread.join()
        assert db.get_session_title("s") is None
    assert home("title", "--auto", "s").out == "Title set: Fix the build\n"


def test_failures_of_naming_go_to_the_callback(home):
    home.add("s", "q")
    failed = []
    with home.store() as db:
        done = threading.Event()

        def note(task, error):
            failed.append((task, str(error)))
            done.set()

        auto_title(db, "s", [], "q", "a", title_fn=lambda *_: 1 / 0, on_failure=note)
        assert done.wait(20)
    assert failed == [("title_generation", "division by zero")]


@pytest.mark.parametrize(
    ("question", "title"),
    [
        (
            "Fix the flaky parser test, please look at it twice!",
            "Fix the flaky parser test, please look",
        ),
        ("```\ncode\n```\n\n# What **is** a monad?", "What is a monad"),
        ("https://example.org/x\nsummarise this page", "summarise this page"),
        ("...", None),
        ("你好，世界", "你好，世界"),
    ],
)
def test_default_title(home, question, title):
    assert default_title(question) == title
    home.add("s", question, said("assistant", "a"))
    home("title", "--auto", "s")
    assert home.row("s")["title"] == title
    again = home("title", "--auto", "s")
    assert again.code == 0


def test_title_sets_and_shows(home):
    home.add("s", "x")
    assert home("title", "s").lines[1].startswith("No title.")
    assert home("title", "s", "two", "words").out == "Title set: two words\n"
    assert home("title", "s", "--json").json == {"id": "s", "title": "two words", "pending": None}
    assert home("title", "s", "\u200b").code == 1
    assert home("title", "s", "x" * 101).code == 1
    assert home("title", "nosuch").code == 1


def test_pending_title(home):
    pending = PendingTitle()
    assert pending.set("  my   plan ") == pending.get() == "my plan"
    with home.store() as db:
        assert pending.apply(db, "s") == "kept"
        db.create_session("s", "cli")
        assert pending.apply(db, "s") == "applied"
        assert (pending.get(), db.get_session_title("s")) == (None, "my plan")
        pending.set("other")
        assert pending.apply(db, "s") == "refused"
        assert db.get_session_title("s") == "my plan"
        home.clock.at(NOW + 1)
        db.create_session("t", "cli")
        pending.set("my plan")
        assert pending.apply(db, "t") == "refused"
