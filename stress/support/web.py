"""A home as people have it, and ``hermes-actor web`` over it, for tests and pictures."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import httpx2
from starlette.testclient import TestClient

import hermes_protocol.operations as ops
from hermes_actor import AgentStore, SessionDB
from hermes_actor.agents.vault import Vault
from hermes_actor.gateway import Hooks, SessionSource, SessionStore
from hermes_actor.web.app import create_app
from hermes_actor.web.security import Access
from hermes_actor.web.site import Site
from hermes_actor.web.stores import Stores
from support.agent_stores import KEY

__all__ = ["HOSTILE", "LARGE", "SECRET", "TOKEN", "WebProcess", "opened", "seed"]

DAY = 86_400.0

TOKEN = "token-of-a-test"
"""The token of pages that are served in the process of a test."""

SECRET = "hush-4711-nobody-may-see-this"
HOSTILE = (
    '<script>document.title="owned"</script><img src=x onerror="document.title=\'owned\'">'
    "</textarea></style></title>\"'><svg onload=alert(1)> {{ 7 * 7 }}"
    " \u202egnp.exe\u202c \x00\x1b[31m"
)
LARGE = "walrus " * 300_000
"""About 2 MB."""

_TALK = (
    ("user", "The parser test is flaky since yesterday. Can you find out why?"),
    ("assistant", "I look at the last runs first."),
    ("tool", "run 812 ok\nrun 813 failed: timeout in test_nested\nrun 814 ok\n" * 40),
    ("assistant", "`test_nested` waits for a fixed time. I replace the sleep by an event."),
    ("user", "Thanks. 大别野项目呢？"),
    ("assistant", "Its build has passed on all three platforms."),
)
_CALL = [
    {"id": "call_1", "type": "function",
     "function": {"name": "terminal", "arguments": '{"command": "pytest -x tests"}'}}
]  # fmt: skip
_MODELS = ("claude-sonnet-4.5", "gpt-5", "gemini-3-flash")
_TITLES = ("Flaky parser test", "Release notes", None, "Invoice export", "Cluster upgrade")


def seed(home: Path, now: float, sessions: int = 70) -> None:
    """Fill *home* with sessions, chats and an agent, as if the last weeks had passed."""
    home.mkdir(parents=True, exist_ok=True)
    with SessionDB(home / "state.db", mode="embedded") as db:
        for number in range(sessions):
            _session(db, number, now)
        db.create_session("hostile", "cli", model='"><b>model')
        db.append_message("hostile", "user", HOSTILE)
        db.append_message("hostile", "assistant", HOSTILE, tool_calls=[
            {"function": {"name": "<b>tool</b>", "arguments": HOSTILE}}
        ])  # fmt: skip
        db.append_message("hostile", "tool", LARGE, tool_name="<i>read</i>")
        db.set_session_title("hostile", "<b>Hostile</b> \u202etitle")
        db.create_session("child", "cli", parent_session_id="s0005", model="gpt-5")
        db.append_message("child", "user", "What came of it?")
        db.create_session("archived", "cli")
        db.append_message("archived", "user", "Old matters")
        db.archive_session("archived")
        _chats(db, home)
    with AgentStore("main", home / "agents.db", mode="embedded", vault=Vault(KEY)) as store:
        _agent(store)


def _session(db: SessionDB, number: int, now: float) -> None:
    session_id, began = f"s{number:04}", now - (number * 0.37 + 0.1) * DAY
    source = ("cli", "telegram", "cron")[number % 3]
    rows = [
        ops.MessageRow(
            role=role, content=text,
            timestamp=began + 30 * place, tool_name="terminal" if role == "tool" else None,
            tool_calls=json.dumps(_CALL) if place == 1 else None, calls=int(place == 1),
        )
        for place, (role, text) in enumerate(_TALK)
    ]  # fmt: skip
    row = ops.SessionRow(
        id=session_id, source=source, model=_MODELS[number % 3], started_at=began,
        ended_at=began + 900 if number % 4 else None,
        end_reason="cli_close" if number % 4 else None,
        title=f"{_TITLES[number % 5]} {number}" if _TITLES[number % 5] else None,
        input_tokens=4000 + 700 * (number % 11), output_tokens=900 + 90 * (number % 7),
        estimated_cost_usd=0.02 + 0.013 * (number % 9),
    )  # fmt: skip
    db.import_session(row, rows)


def _chats(db: SessionDB, home: Path) -> None:
    gateway = SessionStore(home / "sessions", db=db, hooks=Hooks(entry_points=False))
    for chat in ("42", "1729"):
        source = SessionSource(platform="telegram", chat_id=chat, user_id=chat)
        gateway.get_or_create_session(source)
    gateway.close()


def _agent(store: AgentStore) -> None:
    store.agents.provision("/srv/main", name="Main", owner="user-1")
    store.config.set_path("web", {"provider": "search", "api_key": SECRET})
    store.memories.put("Deploys happen on Tuesdays.", key="project/deploys")
    store.memories.put(HOSTILE.replace("\x00", ""), key="project/hostile")
    store.secrets.set("SEARCH_KEY", SECRET)
    store.skills.upsert(
        {"id": "reviews", "name": "Code reviews", "path": "/skills/reviews", "source": "system"}
    )
    store.mcp.upsert({
        "id": "search", "name": "Search", "url": f"https://u:{SECRET}@mcp.example/sse",
        "headers": {"Authorization": f"Bearer {SECRET}"},
    })  # fmt: skip
    store.schedules.create(
        "cron", "Greet the team.", schedule_id="daily", cron_expression="0 9 * * *"
    )


def opened(home: Path, **options: Any) -> TestClient:
    """The pages of *home* in this process; enter the block to serve."""
    app = create_app(Site(Stores(home, **options), Access(TOKEN, frozenset({"testserver"}))))
    return TestClient(app, follow_redirects=False)


class WebProcess:
    """``hermes-actor web`` on a free port; ends with the block."""

    def __init__(self, home: Path, *options: str, **env: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "hermes_actor", "web", "--port", "0", "--json",
             "--home", str(home), *options],
            env={**os.environ, "HERMES_ACTOR_SECRETS_KEY": KEY, **env},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], 90)
        line = self._process.stdout.readline() if ready else b""
        if not line:
            self._process.kill()
            raise AssertionError(self._process.communicate()[1].decode())
        self.url: str = json.loads(line)["url"]
        self.base, _, self.token = self.url.partition("/?token=")
        self.pid = self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """End it as a person would; return its exit code and what it has said."""
        if self._process.poll() is None:
            self._process.send_signal(number)
        try:
            _, said = self._process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise
        return self._process.returncode, said.decode()

    @contextlib.contextmanager
    def client(self) -> Iterator[httpx2.Client]:
        """Give a client that has entered with the token, as a browser does."""
        with httpx2.Client(base_url=self.base, timeout=60) as client:
            assert client.get("/", params={"token": self.token}).status_code == 303
            yield client
