"""Access: the token, the cookie, host names, origins, forms, headers, read-only mode."""

from urllib.parse import urlencode

import pytest
from starlette.testclient import TestClient
from support.old_files import build
from support.web import SECRET, TOKEN, opened

from hermes_actor import AgentStore
from hermes_actor.errors import NotAllowed
from hermes_actor.paths import resolve_paths
from hermes_actor.system.lock_inspection import lock_holder
from hermes_actor.web.actions import ACTIONS
from hermes_actor.web.app import create_app
from hermes_actor.web.security import Access, EntryCode
from hermes_actor.web.server import Address, hosts_of
from hermes_actor.web.site import Site
from hermes_actor.web.stores import Stores


def test_without_the_token_nothing_is_shown(shared_home):
    with opened(shared_home) as client:
        for path in ("/", "/s/state.db/sessions", "/s/state.db/events", "/api/stores"):
            answer = client.get(path)
            assert answer.status_code == 401
            assert "state.db" not in answer.text
        assert client.get("/", params={"token": TOKEN + "x"}).status_code == 401
        assert client.get("/static/style.css").status_code == 200


def test_only_those_who_have_entered_keep_their_connection(shared_home, pages):
    with opened(shared_home) as client:
        for path in ("/", "/api/stores", "/none", "/static/style.css"):
            assert client.get(path).headers["connection"] == "close", path
            assert "connection" not in pages.get(path).headers, path


def test_the_token_is_taken_once_and_leaves_the_address(shared_home):
    with opened(shared_home) as client:
        answer = client.get("http://testserver//evil.example/", params={"token": TOKEN})
        assert answer.status_code == 303
        assert answer.headers["location"] == "/evil.example/"
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert TOKEN not in cookie
        assert client.get("/").status_code == 200


def test_an_entry_code_is_good_once_and_not_for_long(shared_home, monkeypatch):
    entry, late = EntryCode(), EntryCode()
    late._until = 0.0
    for code, status in ((late, 401), (entry, 303), (entry, 401)):
        app = create_app(
            Site(Stores(shared_home), Access(TOKEN, frozenset({"testserver"}), entry=code))
        )
        with TestClient(app, follow_redirects=False) as client:
            assert client.get("/", params={"entry": "x"}).status_code == 401
            assert client.post("/", params={"entry": code.text}).status_code == 403
            assert client.get("/", params={"entry": code.text}).status_code == status


def test_other_host_names_get_nothing(pages):
    for host in ("evil.example", "testserver.evil.example", "127.0.0.1:1", ""):
        answer = pages.get("/s/state.db/sessions", headers={"Host": host})
        assert answer.status_code == 421, host
        assert "s0001" not in answer.text


def test_every_answer_has_the_policy(pages):
    for path in ("/", "/none", "/static/live.js", "/api/stores", "/s/state.db/session?id=none"):
        headers = pages.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert headers["referrer-policy"] == "same-origin"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cross-origin-resource-policy"] == "same-origin"


def csrf_of(client, path="/s/state.db/do/archive?id=s0001"):
    text = client.get(path).text
    return text.partition('name="csrf" value="')[2].partition('"')[0]


@pytest.fixture
def visitor(home):
    with opened(home) as client:
        client.get("/", params={"token": TOKEN})
        yield client


def is_archived(client):
    return client.get("/api/stores/state.db/session?id=s0001").json()["session"]["archived"]


@pytest.mark.parametrize(
    ("origin", "csrf", "status"),
    [
        ("http://testserver", True, 303),
        ("http://testserver", False, 403),
        ("http://evil.example", True, 403),
        ("https://testserver", True, 403),
        ("null", True, 403),
        (None, True, 403),
    ],
)
def test_a_change_needs_origin_and_csrf_token(visitor, origin, csrf, status):
    form = {"id": "s0001", "csrf": csrf_of(visitor) if csrf else "0" * 64}
    headers = {} if origin is None else {"Origin": origin}
    answer = visitor.post("/s/state.db/do/archive", data=form, headers=headers)
    assert answer.status_code == status
    assert is_archived(visitor) is (status == 303)


def test_the_api_needs_the_csrf_token_with_the_cookie(visitor):
    headers, body = {"Origin": "http://testserver"}, {"id": "s0001", "confirm": True}
    address = "/api/stores/state.db/do/archive"
    refused = visitor.post(address, json=body, headers=headers)
    assert refused.status_code == 403
    assert refused.json()["error"]["class"] == "NotAllowed"
    assert not is_archived(visitor)
    headers["X-CSRF-Token"] = csrf_of(visitor)
    assert visitor.post(address, json=body, headers=headers).status_code == 200
    assert is_archived(visitor)


def test_a_change_is_never_made_by_a_link(visitor):
    visitor.get("/s/state.db/do/archive?id=s0001&confirm=1")
    assert visitor.get("/api/stores/state.db/do/archive?id=s0001").status_code == 405
    assert not is_archived(visitor)
    assert visitor.put("/s/state.db/do/archive").status_code == 405


def test_large_bodies_are_refused(visitor):
    form = {"id": "x" * 100_000, "csrf": csrf_of(visitor)}
    headers = {"Origin": "http://testserver"}
    answer = visitor.post("/s/state.db/do/archive", data=form, headers=headers)
    assert answer.status_code == 413


def test_read_only_pages_change_nothing(home):
    with opened(home, read_only=True) as client:
        client.get("/", params={"token": TOKEN})
        assert 'class="act"' not in client.get("/s/state.db/session?id=s0001").text
        form = {"id": "s0001", "csrf": Access(TOKEN, frozenset()).csrf}
        headers = {"Origin": "http://testserver"}
        answer = client.post("/s/state.db/do/archive", data=form, headers=headers)
        assert answer.status_code == 403
        assert "--read-only" in answer.text
        assert not is_archived(client)
        bearer = {"Authorization": f"Bearer {TOKEN}"}
        body = {"what": "mcp", "item": "search", "agent": "*", "confirm": True}
        answer = client.post("/api/stores/agents.db/do/assign", json=body, headers=bearer)
        assert answer.status_code == 403


GIVEN = {
    "rename": {"id": "s0001", "title": "x"}, "archive": {"id": "s0001"}, "delete": {"id": "s0001"},
    "prune": {"older_than_days": 1},
    "assign": {"what": "mcp", "item": "search", "agent": "*"},
    "run-schedule": {"agent": "main", "schedule": "daily"},
}  # fmt: skip


@pytest.mark.parametrize("name", ACTIONS)
def test_read_only_pages_refuse_every_action(home, name):
    store = "agents.db" if ACTIONS[name].kind == "agents" else "state.db"
    before = contents(home)
    with opened(home, read_only=True) as client:
        client.get("/", params={"token": TOKEN})
        given = GIVEN.get(name, {})
        shown = client.get(f"/s/{store}/do/{name}", params=given)
        assert "disabled" in shown.text
        form = {**given, "csrf": csrf_of(client, f"/s/{store}/do/{name}?{urlencode(given)}")}
        for address, sent in (
            (f"/s/{store}/do/{name}", {"data": form, "headers": {"Origin": "http://testserver"}}),
            (f"/api/stores/{store}/do/{name}",
             {"json": {**given, "confirm": True}, "headers": {"Authorization": f"Bearer {TOKEN}"}}),
        ):  # fmt: skip
            answer = client.post(address, **sent)
            assert (answer.status_code, "--read-only" in answer.text) == (403, True)
    assert contents(home) == before


def contents(home):
    """Every file of a home, as far as a change would show."""
    return {
        path.relative_to(home): path.read_bytes()
        for path in home.rglob("*")
        if path.is_file() and path.stat().st_size and not path.name.endswith("-shm")
    }


def test_read_only_pages_migrate_no_older_file(tmp_path):
    path = build(tmp_path / "state.db", 6)
    before = path.read_bytes()
    with opened(tmp_path, read_only=True) as client:
        client.headers["Authorization"] = f"Bearer {TOKEN}"
        answer = client.get("/s/state.db/sessions")
        assert (answer.status_code, "an older version" in answer.text) == (403, True)
    assert path.read_bytes() == before
    assert lock_holder(resolve_paths(path)) is None


def test_secrets_in_documents_of_agents_are_masked(changing, home):
    with AgentStore("main", home / "agents.db") as store:
        store.config.set_path("database", {"dsn": f"postgresql://u:{SECRET}@db.example/x"})
        store.config.set_path("hook", {"url": f"https://hook.example/?token={SECRET}",
                                       "headers": {"Cookie": SECRET, "X-Auth": SECRET},
                                       "credentials": {"user": "u", "value": SECRET},
                                       "odd": "${{" + SECRET})  # fmt: skip
        store.config.set_path("named", {"api_key": "${{SEARCH_KEY}}", "author": "Ada"})
        for path in ("agents", "agent?id=main"):
            for kind in ("/s", "/api/stores"):
                text = changing.get(f"{kind}/agents.db/{path}").text
                assert SECRET not in text.replace("${{" + SECRET, "")
        named = changing.get("/api/stores/agents.db/agent?id=main").json()["config"]["named"]
        assert named == {"api_key": "${{SEARCH_KEY}}", "author": "Ada"}


def test_the_api_holds_no_secret(pages):
    for path in ("agents", "agent?id=main"):
        answer = pages.get(f"/api/stores/agents.db/{path}")
        assert answer.status_code == 200
        assert SECRET not in answer.text


def test_cookies_of_two_servers_have_two_names():
    names = {Access(TOKEN, frozenset({f"127.0.0.1:{port}"})).cookie_name for port in (1, 2)}
    assert len(names) == 2


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "::", "db.example"])
def test_other_machines_need_tls_or_a_flag(host, tmp_path):
    with pytest.raises(NotAllowed, match="--tls-certificate"):
        Address(host).check()
    Address(host, insecure=True).check()
    Address(host, certificate=tmp_path / "chain.pem").check()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.9", "::1", "localhost"])
def test_this_machine_needs_neither(host):
    Address(host).check()


def test_host_names_have_their_port():
    assert hosts_of(["localhost", "::1"], 8000, False) == {"localhost:8000", "[::1]:8000"}
    assert hosts_of(["A.example"], 443, True) == {"a.example:443", "a.example"}
