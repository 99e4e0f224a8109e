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
        feed = Feed(stores.all()[0], None)
        try:
            feed.look()
            db.create_session("fresh", "cli")
            give_up = time.monotonic() + 90
            while (seen := feed.look()) is None or not seen.changes:
                assert time.monotonic() < give_up
                time.sleep(0.05)
            assert seen.changes[-1]["session_id"] == "fresh"
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
