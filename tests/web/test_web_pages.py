"""Pages without JavaScript: what each shows, and that no content becomes markup."""

import html
import json
import re
from html.parser import HTMLParser

import pytest
from support.actors import end_actors
from support.web import HOSTILE, LARGE, SECRET

from hermes_actor import SessionDB
from hermes_actor.web.stores import FileSessions

PAGES = (
    "/", "/api", "/s/state.db/sessions", "/s/state.db/sessions?archived=1",
    "/s/state.db/sessions?sort=messages&source=telegram", "/s/state.db/session?id=s0005",
    "/s/state.db/session?id=hostile", "/s/state.db/search?q=parser", "/s/state.db/search?q=大别野",
    "/s/state.db/insights", "/s/state.db/insights?tools=1&days=7", "/s/state.db/chats",
    "/s/state.db/actor", "/s/agents.db/agents", "/s/agents.db/agent?id=main",
    "/s/agents.db/actor", "/s/state.db/do/delete?id=hostile",
    "/s/state.db/do/prune?older_than_days=3",
)  # fmt: skip

VOID = {"meta", "link", "input", "br", "img", "hr"}


class Page(HTMLParser):
    """A page as a browser reads it: balanced, with its elements and texts."""

    def __init__(self, text):
        super().__init__()
        self.open, self.elements, self.texts, self.loose = [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append("dir=auto" if dict(attrs).get("dir") == "auto" else tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() in (tag, "dir=auto")

    def handle_data(self, data):
        self.texts.append(data)
        isolating = {"bdi", "title", "dir=auto"}
        if "\u202e" in data and not isolating & set(self.open):
            self.loose.append(data)

    def named(self, tag):
        return [attrs for name, attrs in self.elements if name == tag]

    @property
    def text(self):
        return "".join(self.texts)


def page(client, path):
    answer = client.get(path)
    assert answer.status_code == 200, answer.text
    return Page(answer.text)


@pytest.mark.parametrize("path", PAGES)
def test_every_page_is_whole_and_has_its_landmarks(pages, path):
    found = page(pages, path)
    assert found.named("html")[0]["lang"] == "en"
    assert len(found.named("main")) == len(found.named("h1")) == 1
    ids = [attrs["id"] for _, attrs in found.elements if "id" in attrs]
    assert len(ids) == len(set(ids))
    labelled = {attrs["for"] for attrs in found.named("label")}
    for field in found.named("input") + found.named("select"):
        assert field.get("type") == "hidden" or field["id"] in labelled
    loaded = [a["src"] for a in found.named("script")] + [a["href"] for a in found.named("link")]
    assert all(address.startswith("/static/") for address in loaded)
    events = [n for _, attrs in found.elements for n in attrs if n.startswith("on") or n == "style"]
    assert events == []


@pytest.mark.parametrize("path", PAGES)
def test_no_page_holds_a_secret(pages, path):
    assert SECRET not in pages.get(path).text


def test_a_file_that_cannot_be_read_is_shown_with_its_fault(changing, home):
    """A store that is missing from the list would look lost."""
    with SessionDB(home / "other.db") as db:
        db.set_meta("a", "1")
    end_actors(home / "other.db")
    (home / "other.db").write_bytes(b"no database " * 500)
    text = page(changing, "/").text
    assert "other.db" in text
    assert "unreadable" in text
    assert "hermes-actor doctor" in text
    assert changing.get("/s/other.db/sessions").status_code == 404
    assert changing.get("/s/other.db/actor").status_code == 200


@pytest.mark.parametrize("address", ["/nothing", "/s/state.db/none", "/s/none/sessions"])
def test_an_unknown_address_is_a_page_with_a_way_on(pages, address):
    answer = pages.get(address)
    assert answer.status_code == 404
    assert [a["href"] for a in Page(answer.text).named("a") if a.get("href") == "/"]
    assert pages.get("/api/nothing").json()["error"]["class"] == "NotFound"


@pytest.mark.parametrize("path", PAGES)
def test_no_text_turns_what_is_around_it(pages, path):
    assert page(pages, path).loose == []


def test_sessions_are_listed_page_by_page(pages):
    seen, path = [], "/s/state.db/sessions"
    while path:
        found = page(pages, path)
        links = [a.get("href", "") for a in found.named("a")]
        seen += [link for link in links if link.startswith("session?")]
        following = [a["href"] for a in found.named("a") if a.get("rel") == "next"]
        path = f"/s/state.db/sessions{following[0]}" if following else None
    # 70, the hostile one and two of chats; neither the child nor the archived one.
    assert len(seen) == len(set(seen)) == 73


def test_a_session_is_a_conversation(pages):
    found = page(pages, "/s/state.db/session?id=s0005")
    assert "The parser test is flaky since yesterday" in found.text
    assert "Calls terminal" in found.text
    assert found.named("details")
    assert all("open" not in a for a in found.named("details"))
    assert "What came of it" not in found.text
    assert any(a.get("href") == "?id=child" for a in found.named("a"))


def test_hostile_content_stays_text(pages):
    answer = pages.get("/s/state.db/session?id=hostile")
    found = Page(answer.text)
    assert [a.get("src", "")[:8] for a in found.named("script")] in ([], ["/static/"])
    assert found.named("img") == []
    assert found.named("b") == []
    assert found.named("svg") == []
    shown = HOSTILE.replace("\x00", "\ufffd").replace("\x1b", "\ufffd")
    assert found.text.count(shown) == 3
    assert "49" not in re.findall(r"\{\{.*?\}\}", found.text)
    assert LARGE not in answer.text
    assert len(answer.content) < 100_000
    assert "Show all 2,100,000 characters" in found.text


def test_a_large_message_is_shown_whole_as_plain_text(pages):
    found = page(pages, "/s/state.db/session?id=hostile")
    link = next(a["href"] for a in found.named("a") if a.get("href", "").startswith("message?"))
    whole = pages.get(f"/s/state.db/{link}")
    assert whole.headers["content-type"] == "text/plain; charset=utf-8"
    assert whole.headers["x-content-type-options"] == "nosniff"
    assert whole.text == LARGE


def test_words_found_are_marked(pages):
    answer = pages.get("/s/state.db/search?q=flaky")
    assert "<mark>flaky</mark>" in answer.text
    assert "<mark>大别野</mark>" in pages.get("/s/state.db/search?q=大别野").text
    assert "Nothing found" in pages.get("/s/state.db/search?q=zeppelin").text


def test_insights_are_drawn_by_the_server(pages):
    found = page(pages, "/s/state.db/insights")
    assert len(found.named("svg")) >= 6
    assert len(found.named("rect")) > 50
    assert "claude-sonnet-4.5" in found.text
    assert "terminal" in found.text


def test_exports(pages):
    answer = pages.get("/s/state.db/export?id=s0005")
    assert answer.headers["content-disposition"] == 'attachment; filename="session.json"'
    assert len(json.loads(answer.text)["messages"]) == 6
    text = pages.get("/s/state.db/export?id=s0005&format=text").text
    assert text.startswith("[USER]: The parser test is flaky")


def test_chats_have_their_sessions(pages):
    found = page(pages, "/s/state.db/chats")
    assert "telegram:dm:42" in found.text.replace("agent:main:", "")


def test_an_agent_shows_names_of_secrets_only(pages):
    found = page(pages, "/s/agents.db/agent?id=main")
    assert "SEARCH_KEY" in found.text
    assert '"api_key": "***"' in found.text
    assert "headers: Authorization" in found.text
    assert "Deploys happen on Tuesdays" in found.text


def test_looking_starts_no_actor(changing):
    for path in PAGES:
        if "search" not in path:
            assert changing.get(path).status_code == 200
    for path in ("/s/state.db/actor", "/s/agents.db/actor"):
        assert "not running" in changing.get(path).text


def test_unknown_things_are_errors(pages):
    for path in ("/s/none/sessions", "/s/state.db/none", "/s/state.db/session?id=none",
                 "/s/state.db/agents", "/s/agents.db/agent?id=none", "/none"):  # fmt: skip
        assert pages.get(path).status_code == 404, path
    for path in ("/s/state.db/session", "/s/state.db/insights?days=x",
                 "/s/state.db/sessions?after=x"):  # fmt: skip
        assert pages.get(path).status_code == 400, path


def test_errors_quote_what_was_asked_for_as_text(pages):
    answer = pages.get("/s/state.db/session", params={"id": "<script>alert(1)</script>"})
    assert answer.status_code == 404
    assert "<script>alert" not in answer.text
    assert "<script>alert(1)</script>" in html.unescape(answer.text)


def test_hits_are_listed_page_by_page_while_messages_arrive(changing, home):
    with SessionDB(home / "state.db") as db:
        for number in range(55):
            db.append_message("s0001", "user", f"narwhal {number}")
        best = page(changing, "/s/state.db/search?q=narwhal")
        assert len(best.named("mark")) == 50
        (path,) = (a["href"] for a in best.named("a") if a.get("rel") == "next")
        assert "sort=newest" in path
        seen = []
        while path:
            found = page(changing, f"/s/state.db/search{path}")
            seen += [a["href"] for a in found.named("a") if a.get("href", "").startswith("session")]
            following = [a["href"] for a in found.named("a") if a.get("rel") == "next"]
            path = following[0] if following else None
            for number in range(30):
                db.append_message("s0002", "user", f"narwhal narwhal late {number}")
    assert len(seen) == len(set(seen)) == 55


@pytest.mark.parametrize("path", ["/s/state.db/session", "/api/stores/state.db/session"])
def test_fault_of_a_page_is_no_page_that_does_not_exist(pages, monkeypatch, caplog, path):
    def fail(_store, _given):
        return {}["a column that is not there"]

    monkeypatch.setattr(FileSessions, "get_session", fail)
    answer = pages.get(path, params={"id": "s0001"})
    assert answer.status_code == 500
    assert "this page has failed" in answer.text
    assert "a column that is not there" in caplog.text
