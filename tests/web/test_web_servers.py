"""The same pages over stores on servers."""

import time

import pytest
from support import servers
from support.agent_stores import KEY
from support.stores import SERVERS, chosen_kinds
from support.web import TOKEN, opened

from hermes_actor import AgentStore, SessionDB
from hermes_actor.web.feed import Feed
from hermes_actor.web.stores import Stores

KINDS = [kind for kind in SERVERS if kind in chosen_kinds()]


@pytest.fixture(params=KINDS)
def kind(request, monkeypatch):
    monkeypatch.setenv("HERMES_ACTOR_SECRETS_KEY", KEY)
    return request.param


def test_sessions_on_a_server(kind, tmp_path):
    url = servers.new_store(kind)
    with SessionDB(url) as db:
        for number in range(3):
            db.create_session(f"s{number}", "cli")
            db.append_message(f"s{number}", "user", "Where do walruses live?")
    with opened(tmp_path, only=url) as client:
        client.headers["Authorization"] = f"Bearer {TOKEN}"
        (store,) = client.get("/api/stores").json()
        assert store["kind"] == "sessions"
        for page in (
            "sessions",
            "session?id=s1",
            "search?q=walruses",
            "insights",
            "chats",
            "actor",
        ):
            answer = client.get(f"/s/{store['name']}/{page}")
            assert answer.status_code == 200, (page, answer.text)
        assert "<mark>walruses</mark>" in client.get(f"/s/{store['name']}/search?q=walruses").text
        address = f"/api/stores/{store['name']}/do"
        body = {"id": "s1", "title": "Walruses", "confirm": True}
        assert client.post(f"{address}/rename", json=body).json()["title"] == "Walruses"
        refused = client.post(f"{address}/backup", json={})
        assert refused.status_code == 403
        assert "for files only" in refused.json()["error"]["message"]


def test_changes_on_a_server_are_followed(kind, tmp_path):
    url = servers.new_store(kind)
    with SessionDB(url) as db:
        db.create_session("before", "cli")
        stores = Stores(tmp_path, url)
        (store,) = stores.all()
        newest = store.newest_change()  # as a page is rendered with it
        db.create_session("between", "cli")
        feed = Feed(store, newest)
        try:
            found = followed(feed, 1)
            feed.close()
            db.create_session("fresh", "cli")
            found += followed(feed, 1)
            assert [one["session_id"] for one in found] == ["between", "fresh"]
        finally:
            feed.close()
            stores.close()


def followed(feed, count):
    """The next *count* changes."""
    found, give_up = [], time.monotonic() + 90
    while len(found) < count:
        assert time.monotonic() < give_up
        seen = feed.look()
        assert seen is None or not seen.gap
        found += [] if seen is None else seen.changes
    return found


def test_changes_of_agents_on_a_server_are_followed(kind, tmp_path, monkeypatch):
    url = servers.new_store(kind)
    (tmp_path / "config.yaml").write_text(f"agents:\n  dsn: '{url}'\n")
    monkeypatch.setenv("HERMES_HOME", str(tmp_path))
    with AgentStore("main", url) as agents:
        agents.agents.provision("/srv/main", name="Main")
        stores = Stores(tmp_path)
        (store,) = stores.all()
        newest = store.newest_change()
        agents.memories.put("Deploys happen on Tuesdays.")
        feed = Feed(store, newest)
        try:
            (change,) = followed(feed, 1)
            assert change["agent_id"] == "main"
        finally:
            feed.close()
            stores.close()


def test_a_home_whose_stores_are_on_servers(kind, tmp_path, monkeypatch):
    sessions, agents = servers.new_store(kind), servers.new_store(kind)
    settings = f"sessiondb:\n  dsn: '{sessions}'\nagents:\n  dsn: '{agents}'\n"
    (tmp_path / "config.yaml").write_text(settings)
    monkeypatch.setenv("HERMES_HOME", str(tmp_path))
    with SessionDB(sessions) as db:
        db.create_session("s", "cli")
    with AgentStore("main", agents) as store:
        store.agents.provision("/srv/main", name="Main")
    with opened(tmp_path) as client:
        client.headers["Authorization"] = f"Bearer {TOKEN}"
        kinds = {one["kind"]: one["name"] for one in client.get("/api/stores").json()}
        assert set(kinds) == {"sessions", "agents"}
        assert "Main" in client.get(f"/s/{kinds['agents']}/agent?id=main").text
        assert client.get(f"/s/{kinds['sessions']}/session?id=s").status_code == 200
