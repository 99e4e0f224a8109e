"""Actions: each with its preview, its effect, and the errors of the Python API."""

import pytest

from hermes_actor import AgentStore, SessionDB
from hermes_actor.recovery.backup import list_backups
from hermes_actor.web.actions import ACTIONS
from hermes_actor.web.views import VIEWS


def do(client, action, store="state.db", **values):
    return client.post(f"/api/stores/{store}/do/{action}", json=values)


def test_nothing_is_done_without_confirmation(changing, home):
    answer = do(changing, "delete", id="s0001")
    assert answer.status_code == 428
    assert "Delete session" in answer.json()["confirm"]["question"]
    with SessionDB(home / "state.db") as db:
        assert db.get_session("s0001") is not None


def test_rename(changing, home):
    answer = do(changing, "rename", id="s0001", title="  A new  name ", confirm=True)
    assert answer.json()["title"] == "A new name"
    with SessionDB(home / "state.db") as db:
        assert db.get_session_title("s0001") == "A new name"
    assert do(changing, "rename", id="s0001", title="", confirm=True).json()["title"] is None


def test_errors_are_those_of_python(changing):
    do(changing, "rename", id="s0001", title="Taken", confirm=True)
    answer = do(changing, "rename", id="s0002", title="Taken", confirm=True)
    assert answer.status_code == 409
    error = answer.json()["error"]
    assert (error["class"], error["code"], error["executed"]) == (
        "TitleInUse",
        "title-in-use",
        "no",
    )
    assert "s0001" in error["message"]
    assert do(changing, "rename", id="none", title="x").status_code == 404
    long = do(changing, "rename", id="s0002", title="x" * 500, confirm=True)
    assert long.status_code == 400
    assert long.json()["error"]["class"] == "ValueError"
    assert do(changing, "none").status_code == 404
    assert do(changing, "handoff", confirm=True, store="none").status_code == 404
    assert (
        do(changing, "assign", store="state.db", what="mcp", item="x", agent="*").status_code == 404
    )


def test_archive_and_back(changing):
    def listed(archived):
        answer = changing.get("/api/stores/state.db/sessions", params={"archived": archived})
        return {row["id"] for row in answer.json()["sessions"]}

    assert do(changing, "archive", id="s0001", confirm=True).json()["changed"] == ["s0001"]
    assert "s0001" in listed("1")
    assert "s0001" not in listed("0")
    do(changing, "archive", id="s0001", archived=False, confirm=True)
    assert "s0001" in listed("0")


def test_delete(changing, home):
    transcripts = home / "sessions"
    transcripts.mkdir(exist_ok=True)
    (transcripts / "s0001.jsonl").write_text("{}\n")
    assert do(changing, "delete", id="s0001", confirm=True).status_code == 200
    assert changing.get("/api/stores/state.db/session?id=s0001").status_code == 404
    assert not (transcripts / "s0001.jsonl").exists()


def test_prune_shows_what_it_then_deletes(changing):
    preview = do(changing, "prune", older_than_days=2).json()["confirm"]
    assert preview["total"] > 0
    done = do(changing, "prune", older_than_days=2, confirm=True).json()
    assert len(done["removed"]) == preview["total"]
    assert do(changing, "prune", older_than_days=2).json()["confirm"]["total"] == 0


def test_backup(changing, home):
    done = do(changing, "backup", confirm=True).json()
    assert [str(copy) for copy in list_backups(home / "state.db")] == [done["path"]]


def test_handoff_and_rebuild(changing, home):
    refused = do(changing, "handoff", confirm=True)
    assert refused.status_code == 503
    assert refused.json()["error"]["class"] == "NotRunning"
    with SessionDB(home / "state.db") as db:
        db.set_meta("key", "value")
        before = changing.get("/api/stores/state.db/actor").json()["figures"]["pid"]
        done = do(changing, "handoff", confirm=True).json()
        assert done["pid"] != before
        assert changing.get("/api/stores/state.db/actor").json()["figures"]["pid"] == done["pid"]
        assert do(changing, "rebuild-index", confirm=True).json()["newest"] > 0
        assert db.search_messages("flaky")


def test_assignments_for_one_and_for_all(changing, home):
    def in_effect():
        found = changing.get("/api/stores/agents.db/agent?id=main").json()["mcp"]
        return [(one["enabled"], one["own"], one["all"]) for one in found]

    asked = {"what": "mcp", "item": "search", "store": "agents.db", "confirm": True}
    assert in_effect() == [(False, None, None)]
    do(changing, "assign", agent="*", **asked)
    assert in_effect() == [(True, None, True)]
    do(changing, "assign", agent="main", enabled=False, **asked)
    assert in_effect() == [(False, False, True)]
    with AgentStore("main", home / "agents.db") as store:
        assert store.mcp.list_enabled() == []
    asked["item"] = "none"
    assert do(changing, "assign", agent="*", **asked).status_code == 404


def test_a_schedule_is_run_now(changing, home):
    done = do(changing, "run-schedule", "agents.db", agent="main", schedule="daily", confirm=True)
    assert done.status_code == 200
    with AgentStore("main", home / "agents.db") as store:
        assert [one["schedule_id"] for one in store.schedules.due()] == ["daily"]
    missing = do(changing, "run-schedule", "agents.db", agent="main", schedule="x", confirm=True)
    assert missing.json()["error"]["class"] == "NotFound"


def test_bad_bodies(changing):
    address = "/api/stores/state.db/do/rename"
    for body in (b"{", b"[]", b'{"id": 5}', b"", None):
        kind = "application/json" if body is not None else "text/plain"
        answer = changing.post(address, content=body or b"{}", headers={"Content-Type": kind})
        assert answer.status_code == 400, body
        assert answer.json()["error"]["class"] == "BadValue"


def test_openapi_describes_every_call(pages):
    document = pages.get("/api/openapi.json").json()
    described = {path.rpartition("/")[2] for path in document["paths"]}
    assert described == {"stores", *VIEWS, *ACTIONS}
    for path, calls in document["paths"].items():
        for method, call in calls.items():
            assert call["summary"]
            assert call["operationId"]
            assert ("requestBody" in call) == (method == "post") == ("/do/" in path)


@pytest.mark.parametrize("name", [name for name, view in VIEWS.items() if not view.parameters])
def test_views_without_parameters_answer(pages, name):
    store = "agents.db" if VIEWS[name].kind == "agents" else "state.db"
    assert pages.get(f"/api/stores/{store}/{name}").status_code == 200
