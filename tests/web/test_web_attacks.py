"""Attacks on the pages: connections that are held, odd requests, ids and titles of others."""

import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

import pytest
from support.web import SECRET, TOKEN, WebProcess, opened

from hermes_actor import SessionDB
from hermes_actor.web import connections
from hermes_actor.web.actions import ACTIONS
from hermes_actor.web.security import Access
from hermes_actor.web.site import Site
from hermes_actor.web.stores import Stores
from hermes_actor.web.views import VIEWS

SECONDS = 60


@pytest.fixture
def web(home):
    with WebProcess(home) as web:
        yield web


def connect(web):
    host, port = web.base.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=SECONDS)


def answer(web, data):
    """What the server says to bytes, until it closes the connection or is silent."""
    with connect(web) as sock:
        sock.sendall(data)
        return sock.recv(65_536)


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: x\r\nX-A: "])
def test_a_thousand_held_connections_shut_no_visitor_out(web, sent):
    held = []
    try:
        for _ in range(1000):
            held.append(connect(web))
            held[-1].sendall(sent)
        with web.client() as client:
            for _ in range(5):
                assert client.get("/s/state.db/sessions").status_code == 200
    finally:
        for sock in held:
            sock.close()


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET / HTTP/1.1\r\nX-A: 1\r\n",
        b"POST /s/state.db/do/archive HTTP/1.1\r\nHost: HOST\r\nAuthorization: Bearer TOKEN\r\n"
        b"Content-Length: 50\r\n\r\ncsrf=",
    ],
    ids=["nothing", "half a head", "half a body"],
)
def test_a_request_that_does_not_arrive_is_ended(web, sent):
    sent = sent.replace(b"HOST", web.base.removeprefix("http://").encode())
    sent = sent.replace(b"TOKEN", web.token.encode())
    with connect(web) as sock:
        sock.sendall(sent)
        begun = time.monotonic()
        while sock.recv(65_536):
            pass
        assert time.monotonic() - begun < SECONDS
    assert connections._REQUEST_SECONDS < SECONDS


def test_a_live_page_is_no_request_that_is_late(web, home, monkeypatch):
    with SessionDB(home / "state.db") as db, web.client() as client:
        db.set_meta("a", "1")
        with client.stream("GET", "/s/state.db/events", timeout=SECONDS) as events:
            lines = events.iter_lines()
            assert next(lines) == "retry: 2000"
            time.sleep(connections._REQUEST_SECONDS + 2)  # it must still be there then
            db.create_session("late", "cli")
            assert any("session?id=late" in line for line in lines)


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost: HOST\r\nX: " + b"a" * 200_000 + b"\r\n\r\n", b"400"),
        (b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\nHost: HOST\r\n\r\n", b"400"),
        (b"POST /s/state.db/do/archive HTTP/1.1\r\nHost: HOST\r\nAuthorization: Bearer TOKEN\r\n"
         b"Content-Length: 999999999999\r\n\r\n", b"413"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: HOST\r\nHost: evil.example\r\n\r\n", b"400"),
        (b"GET http://evil.example/ HTTP/1.1\r\nHost: evil.example\r\n\r\n", b"421"),
        (b"CONNECT evil.example:80 HTTP/1.1\r\nHost: HOST\r\n\r\n", b"4"),
        (b"TRACE / HTTP/1.1\r\nHost: HOST\r\nAuthorization: Bearer TOKEN\r\n\r\n", b"405"),
    ],
    ids=["head", "line", "body", "tls", "hosts", "absolute", "connect", "trace"],
)  # fmt: skip
def test_odd_requests_are_refused(shared_process, request_, status):
    host = shared_process.base.removeprefix("http://").encode()
    data = request_.replace(b"HOST", host).replace(b"TOKEN", shared_process.token.encode())
    said = answer(shared_process, data)
    assert said.startswith(b"HTTP/1.1 " + status), said[:200]
    assert shared_process.token.encode() not in said


def test_a_body_without_a_length_is_bounded(shared_process):
    host = shared_process.base.removeprefix("http://")
    head = (
        f"POST /s/state.db/do/archive HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: chunked\r\n"
        f"Authorization: Bearer {shared_process.token}\r\n\r\n"
    )
    with connect(shared_process) as sock:
        sock.sendall(head.encode())
        sock.sendall(b"10000\r\n" + b"a" * 0x10000 + b"\r\n1\r\na\r\n")
        assert sock.recv(65_536).startswith(b"HTTP/1.1 413")
    with shared_process.client() as client:
        assert client.get("/").status_code == 200


PATHS = ("../../etc/passwd", "/etc/passwd", "state.db/../state.db", "state.db\x00", "%2e%2e",
         "..\\..\\x", "state.db~..~x", "a" * 1500, "\udcff")  # fmt: skip


@pytest.mark.parametrize("name", PATHS)
def test_names_are_no_paths(pages, home, name):
    given = quote(name, safe="", errors="surrogateescape")
    assert pages.get(f"/s/{given}/sessions").status_code == 404
    for view in ("session", "export", "message"):
        assert pages.get(f"/s/state.db/{view}?id={given}&session={given}").status_code in (400, 404)
    assert pages.get(f"/static/{given}").status_code == 404


@pytest.mark.parametrize("ident", ['x"\r\nX-Evil: 1\r\n\r\nbody', "ünïcode 大", "../x", "a;b=c"])
def test_ids_and_titles_are_no_part_of_a_head(changing, home, ident):
    with SessionDB(home / "state.db") as db:
        db.create_session(ident, "cli")
        db.set_session_title(ident, f"title {ident}"[:90].replace("\r", "").replace("\n", ""))
    for form in ("json", "text"):
        got = changing.get("/s/state.db/export", params={"id": ident, "format": form})
        assert got.status_code == 200
        ending = "json" if form == "json" else "txt"
        assert got.headers["content-disposition"] == f'attachment; filename="session.{ending}"'
        assert "x-evil" not in got.headers
    page = changing.get("/s/state.db/do/archive", params={"id": ident}).text
    csrf = page.partition('name="csrf" value="')[2].partition('"')[0]
    done = changing.post("/s/state.db/do/archive", data={"id": ident, "csrf": csrf})
    assert done.status_code == 303
    assert done.headers["location"].startswith("/s/state.db/session?id=")
    assert "x-evil" not in done.headers


def test_pages_are_not_kept_by_caches(pages):
    for path in (
        "/",
        "/s/state.db/session?id=hostile",
        "/api/stores",
        "/s/state.db/export?id=s0001",
    ):
        assert pages.get(path).headers["cache-control"] == "no-store"


@pytest.mark.parametrize("path", ["/s/state.db/sessions", "/api/stores", "/", "/static/live.js"])
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_methods_are_not_confused(changing, method, path):
    assert changing.request(method, path).status_code == 405
    forged = {"X-HTTP-Method-Override": "POST", "X-Method-Override": "POST"}
    address = "/s/state.db/do/archive?id=s0001&_method=POST&confirm=1"
    assert changing.get(address, headers=forged).status_code == 200
    session = changing.get("/api/stores/state.db/session?id=s0001").json()["session"]
    assert session["archived"] is False


WRONG = (None, [], {}, 1.5, True, -1, 2**70, "x" * 3000, "\x00", "\ud800", "' OR 1=1 --", "*", "")


@pytest.mark.parametrize("name", ACTIONS)
def test_values_of_wrong_types_are_refused_by_actions(changing, name):
    store = "agents.db" if ACTIONS[name].kind == "agents" else "state.db"
    proper = {"id": "s0001", "what": "skill", "item": "reviews", "agent": "main",
              "schedule": "daily"}  # fmt: skip
    for parameter in ACTIONS[name].parameters:
        for wrong in WRONG:
            body = {**proper, parameter.name: wrong}
            got = changing.post(
                f"/api/stores/{store}/do/{name}", content=json.dumps(body),
                headers={"Content-Type": "application/json"},
            )  # fmt: skip
            assert got.status_code in (400, 404, 409, 428), (parameter.name, wrong, got.text)
    for body in (b"[]", b"7", b'"x"', b"{", b"\xff", b"[" * 60_000, b"null", b'{"a": 1e999}'):
        got = changing.post(
            f"/api/stores/{store}/do/{name}", content=body,
            headers={"Content-Type": "application/json"},
        )  # fmt: skip
        assert got.status_code in (400, 404, 428), (body[:20], got.text)


@pytest.mark.parametrize("name", VIEWS)
def test_values_of_wrong_types_are_refused_by_views(pages, name):
    store = "agents.db" if VIEWS[name].kind == "agents" else "state.db"
    for parameter in VIEWS[name].parameters:
        for wrong in WRONG:
            given = quote(str(wrong), safe="", errors="surrogatepass")
            others = "id=s0001&session=s0001" if parameter.name not in ("id", "session") else ""
            for start in (f"/api/stores/{store}/{name}", f"/s/{store}/{name}"):
                got = pages.get(f"{start}?{parameter.name}={given}&{others}")
                assert got.status_code in (200, 400, 404, 409), (parameter.name, wrong, got.text)


def test_two_at_once_change_once(changing):
    def delete(_):
        body = {"id": "s0003", "confirm": True}
        return changing.post("/api/stores/state.db/do/delete", json=body).status_code

    with ThreadPoolExecutor(6) as threads:
        found = sorted(threads.map(delete, range(6)))
    assert found == [200, 404, 404, 404, 404, 404]


def test_neither_token_nor_secret_is_logged(home):
    with WebProcess(home) as web:
        with web.client() as client:
            client.get("/s/agents.db/agent?id=main")
            client.get("/s/state.db/session?id=none")
        said = [answer(web, b"GET /?token=" + web.token.encode() + b" HTTP/9.9\r\n\r\n").decode()]
        code, logged = web.end()
        assert code
    assert web.token not in logged + "".join(said)
    assert SECRET not in logged


def test_a_fault_of_the_pages_tells_nothing_of_the_store(shared_home, monkeypatch, caplog):
    def broken(_store, _asked):
        raise RuntimeError(SECRET)

    monkeypatch.setitem(VIEWS, "chats", VIEWS["chats"]._replace(read=broken))
    with opened(shared_home) as client:
        client.headers["Authorization"] = f"Bearer {TOKEN}"
        for start in ("/s/state.db", "/api/stores/state.db"):
            got = client.get(f"{start}/chats")
            assert got.status_code == 500
            assert SECRET not in got.text
            assert "has failed" in got.text


def test_many_visitors_at_once(shared_process):
    failed = []

    def visit():
        with shared_process.client() as client:
            for _ in range(5):
                status = client.get("/s/state.db/session?id=s0005").status_code
                if status not in (200, 503):
                    failed.append(status)

    visitors = [threading.Thread(target=visit) for _ in range(20)]
    for visitor in visitors:
        visitor.start()
    for visitor in visitors:
        visitor.join(SECONDS)
    assert failed == []


@pytest.mark.parametrize("path", ["/", "/static/style.css", "/api/stores"])
def test_connections_without_the_token_are_not_kept(web, path):
    """Requests that are refused again and again would keep places, and shut visitors out."""
    host = web.base.removeprefix("http://")
    request = f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()
    held = []
    try:
        for _ in range(connections.MOST_CONNECTIONS + 20):
            held.append(connect(web))
            held[-1].sendall(request)
            said = held[-1].recv(65_536).lower()
            assert said.startswith(b"http/1.1 ")
            assert b"\r\nconnection: close\r\n" in said
        with web.client() as client:
            for _ in range(5):
                assert client.get("/s/state.db/sessions").status_code == 200
    finally:
        for sock in held:
            sock.close()


@pytest.mark.parametrize(("action", "more"), [("delete", {}), ("rename", {"title": "x"}),
                                              ("archive", {})])  # fmt: skip
def test_an_action_made_twice_meets_no_other_session(changing, home, action, more):
    """The beginning of an id means another session once its own is gone."""
    with SessionDB(home / "state.db") as db:
        db.create_session("job1", "cli")
        db.create_session("job10", "cli")
        body = {"id": "job1", "confirm": True, **more}
        address = f"/api/stores/state.db/do/{action}"
        assert changing.post(address, json=body).status_code == 200
        db.delete_session("job1")
        for values in (body, {**body, "confirm": False}):
            assert changing.post(address, json=values).status_code == 404
        left = db.get_session("job10")
        assert (left["id"], left["title"]) == ("job10", None)


def test_a_title_does_not_turn_the_question_around(changing, home):
    hostile = "safe\u202e\u2066\u2069\u200f desrever \u2069"
    with SessionDB(home / "state.db") as db:
        db.set_session_title("s0001", hostile)
        for action in ("delete", "archive"):
            answer = changing.post(f"/api/stores/state.db/do/{action}", json={"id": "s0001"})
            question = answer.json()["confirm"]["question"]
            inside = question.partition("\u2068")[2].partition("\u2069")[0]
            assert inside.startswith("safe")
            rest = question.replace("\u2068", "").replace("\u2069", "")
            assert not set(rest) & set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u200e\u200f")
            assert question.count("\u2068") == question.count("\u2069") == 2


@pytest.mark.parametrize(
    "key",
    ["nan~nan~0~0~x", "inf~1~0~0~x", f"1~1~{10**20}~0~x", f"1~1~0~{'9' * 1900}~x", "~~~~", "1~2~3"],
)
def test_odd_keys_of_pages_are_refused(pages, key):
    for order in ("active", "started", "messages"):
        answer = pages.get("/s/state.db/sessions", params={"after": key, "sort": order})
        assert answer.status_code == 400, answer.text


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 10**30, "1e3", "٣", "1_0", " 1", "0x1"])
def test_odd_numbers_break_no_page(pages, number):
    for path in (
        "session?id=s0001&after={}", "session?id=s0001&before={}", "message?session=s0001&id={}",
        "search?q=flaky&sort=newest&before={}", "insights?days={}",
        "do/prune?older_than_days={}",
    ):  # fmt: skip
        answer = pages.get(f"/s/state.db/{path.format(quote(str(number)))}")
        assert answer.status_code in (200, 400, 404), (path, answer.text)


def test_events_take_odd_positions_for_none(web):
    with web.client() as client:
        for given in ("-1", "x", "9" * 40, "²", "1\r\nX: 2"):
            address = f"/s/state.db/events?after={quote(given)}"
            with client.stream("GET", address, headers={"Last-Event-ID": "x"}) as events:
                assert events.status_code == 200
                assert next(events.iter_lines()) == "retry: 2000"


def test_a_message_of_very_many_calls_is_a_page(changing, home):
    calls = [{"function": {"name": f"tool{n}", "arguments": "x" * 9000}} for n in range(3000)]
    with SessionDB(home / "state.db") as db:
        db.create_session("calls", "cli")
        db.append_message("calls", "assistant", "", tool_calls=calls)
    page = changing.get("/s/state.db/session?id=calls").text
    assert len(page) < 1_000_000
    assert "and 2,950 more calls" in page
    exported = changing.get("/s/state.db/export?id=calls").json()
    assert len(exported["messages"][0]["tool_calls"]) == 3000


def test_a_file_that_holds_something_else_has_new_live_pages(home):
    stores = Stores(home)
    site = Site(stores, Access(TOKEN, frozenset()))
    site.tasks = object()
    before = site.live(stores.named("state.db"))
    (home / "state.db").rename(home / "old.db")
    (home / "agents.db").rename(home / "state.db")
    stores._look_again = 0.0
    store = {one.name: one for one in stores.all()}["state.db"]
    after = site.live(store)
    assert (after.store.kind, before.is_full, after.is_full) == ("agents", True, False)
    assert site.live(store) is after
    stores.close()


def test_ids_and_names_without_an_end_are_pages_of_bounded_size(changing, home):
    long = "<" * 400_000
    with SessionDB(home / "state.db") as db:
        for number in range(60):
            session = f"s{number}{long if number % 2 else ''}"
            db.create_session(session, f"cli{long}", model=f"m{long}")
            db.append_message(session, "user", "hello walrus")
        db.append_message("s0", "tool", "done", tool_name=long)
        db.append_message("s0", "assistant", "x", tool_calls=[{"function": {"name": long}}])
    for path in ("sessions", "search?q=walrus", "insights?tools=1", "session?id=s0", "chats",
                 "do/prune?older_than_days=1", "session?id=s1%3C"):  # fmt: skip
        page = changing.get(f"/s/state.db/{path}")
        assert page.status_code == 200, path
        assert len(page.content) < 3_000_000, path


def test_long_values_stay_whole_in_forms_and_addresses(changing, home):
    ident = "大" * 1900
    with SessionDB(home / "state.db") as db:
        db.create_session(ident, "cli")
        page = changing.get("/s/state.db/do/archive", params={"id": ident}).text
        csrf = page.partition('name="csrf" value="')[2].partition('"')[0]
        assert f'name="id" value="{ident}"' in page
        form = {"id": ident, "csrf": csrf}
        done = changing.post("/s/state.db/do/archive", data=form)
        assert done.status_code == 303
        assert changing.get(done.headers["location"]).status_code == 200
        listed = changing.get("/s/state.db/sessions?archived=1").text
        assert f"id={quote(ident)}" in listed
        assert changing.get("/s/state.db/session", params={"id": ident}).status_code == 200
