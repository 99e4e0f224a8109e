"""Agents, and their config and security documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from msgspec import UNSET, UnsetType, structs

from hermes_actor.agent_store.channels import sealed_token
from hermes_actor.agent_store.subject import Records, Subject, given, mapping
from hermes_actor.agents import ids
from hermes_actor.agents.documents import (
    dumps,
    get_path,
    object_or_none,
    resolve,
    whole_document,
)
from hermes_actor.agents.questions import fleet
from hermes_actor.agents.rows import Row
from hermes_actor.agents.times import after
from hermes_actor.agents.values import shown
from hermes_actor.errors import BadValue
from hermes_protocol.agents import AgentsDocument, AgentsOwn, AgentsProvision, AgentsRemove

if TYPE_CHECKING:
    from hermes_actor.agent_store.store import AgentStore

__all__ = ["Agents", "Document", "default_config"]

_DAY = 24 * 3600


def default_config(workspace_dir: str) -> Row:
    """Return the config document of a new agent."""
    introspection = {
        "enabled": True, "turn_interval": 5, "passive_turn_interval": 20,
        "idle_timeout_minutes": 10, "max_tool_calls": 10, "model": None,
    }  # fmt: skip
    model = {"provider": "openrouter", "model": "google/gemini-3-flash-preview"}
    return {
        "workspace_root": workspace_dir,
        "model": {**model, "max_tokens": 8192},
        "web": {"provider": "defuddle"},
        "channels": {},
        "memory": {"introspection": introspection},
    }


def _first_instructions(name: str) -> dict[str, str]:
    return {
        "identity": f"You are {name}, an assistant that works for the people who talk to you.",
        "soul": "Be friendly, brief and exact. Say so when you do not know something.",
        "rules": "Ask before you do what cannot be undone. Keep what people confide to yourself.",
    }


class Agents(Subject):
    """Registered agents."""

    table = "agents"
    _SHOWN = ("agent_id", "name", "workspace_dir", "status", "created_at", "updated_at")

    def _record(self, row: Mapping[str, Any]) -> Row:
        made = super()._record(row)
        return {name: made[name] for name in self._SHOWN if made.get(name) not in (None, "")}

    def create(self, workspace_dir: str, *, name: str | None = None, status: str = "active") -> Row:
        """Register the agent of this store. Raises :class:`Conflict` if it is registered."""
        now = self._now()
        row = {"name": name, "workspace_dir": workspace_dir, "status": status}
        return self._stored({**row, "created_at": now, "updated_at": now}, "insert")

    def provision(
        self,
        workspace_dir: str,
        *,
        name: str | None = None,
        config: Row | None = None,
        security: Row | None = None,
        sandbox: Row | None = None,
        channels: Sequence[Row] = (),
        instructions: Mapping[str, str] | None = None,
        owner: str | None = None,
    ) -> Row:
        """Register the agent with documents, inbox, instructions, sandbox, channels and owner.

        All or nothing. *sandbox* has ``type`` and perhaps ``alias`` and ``config``; *channels* have
        ``channel_type`` and ``config``. Raises :class:`Conflict`, and :class:`NotConfigured` for
        channels without a key.
        """
        now = self._now()
        both = {"created_at": now, "updated_at": now}
        texts = instructions
        if texts is None:
            texts = _first_instructions(name or self._agent)
        agent = {
            "name": name,
            "workspace_dir": workspace_dir,
            "config_json": whole_document(
                default_config(workspace_dir) if config is None else config
            ),
            "security_json": whole_document({} if security is None else security),
        }
        inbox: Row = {
            "session_id": "inbox", "source_kind": "inbox", "source_platform": "inbox",
            "interactive": False, "created_at": now, "last_activity_at": now,
        }  # fmt: skip
        boxes = [] if sandbox is None else [_sandbox(sandbox, both)]
        made = [self._store.channels.new_row("builtin", now, **_channel(one)) for one in channels]
        whole = AgentsProvision(
            agent_id=self._agent,
            now=now,
            agent={**agent, **both},
            sessions=[inbox],
            sandboxes=boxes,
            instructions=[
                {"key": key, "content": text, "updated_at": now} for key, text in texts.items()
            ],
            owner=owner,
        )
        if not made:
            stored = self._store.submit(whole)
            return self._record(stored)
        row = self._store.submit_sealed(lambda vault: structs.replace(
            whole, channels=[sealed_token(*one, vault) for one in made], key_id=vault.key_id,
        ))  # fmt: skip
        return self._record(row)

    def get(self) -> Row | None:
        """Return the agent of this store, ``None`` if it is not registered."""
        return self._get({})

    def list(self) -> Records:
        """Return all registered agents, the oldest first."""
        return self._all()

    def update(
        self, *, name: str | UnsetType | None = UNSET, workspace_dir: str | None = None
    ) -> Row | None:
        """Change what is given; ``name=None`` clears it. Returns ``None`` for an unknown agent."""
        values = given(workspace_dir=workspace_dir, updated_at=self._now())
        if name is not UNSET:
            values["name"] = name
        return self._patch({}, values, missing="nothing")

    def set_status(self, status: str) -> Row | None:
        """Make the agent ``active`` or ``disabled``."""
        return self._patch({}, {"status": status, "updated_at": self._now()}, missing="nothing")

    def remove(self) -> dict[str, int]:
        """Delete the agent and its rows in every table; return how many of each went.

        Users, identities, assignments to all agents, and files on disk stay.
        """
        return self._store.submit(AgentsRemove(agent_id=self._agent))

    def assign_owner(self, user_id: str) -> None:
        """Make a user an owner; the user is created if it does not exist."""
        self._store.submit(AgentsOwn(agent_id=self._agent, user_id=user_id, now=self._now()))

    def backend_state(self) -> Any:
        """Return the state that an old sandbox backend has kept; ``None`` if there is none."""
        row = self._row({})
        if row is None or row["backend_state"] is None:
            return None
        from hermes_actor.agents.documents import loads

        return loads(row["backend_state"])

    def set_backend_state(self, state: Row) -> None:
        """Replace that state. Raises :class:`NotFound` for an unknown agent."""
        self._patched({}, {"backend_state": dumps(state)})

    def counts(self) -> dict[str, int]:
        """Return the number of rows of every table."""
        return self._store.ask(fleet.counts)

    def fleet_stats(
        self, agent_ids: Sequence[str], since: str | datetime | None = None
    ) -> dict[str, Row]:
        """Return activity and assignments of agents since a time; default: a day ago."""
        for one in agent_ids:
            if not isinstance(one, str):
                raise BadValue(f"the id of an agent is a text, not {shown(one)}")
        start = after(self._now(), -_DAY) if since is None else self._now(since)
        return self._store.ask(fleet.fleet_stats, list(agent_ids), start)

    def fleet_usage(self, agent_ids: Sequence[str], *, all_time: bool = False) -> dict[str, Row]:
        """Return the tokens of agents over a day and a week; over all time if asked for."""
        return self._store.ask(fleet.fleet_usage, list(agent_ids), self._now(), all_time)

    def usage_detail(self) -> Row:
        """Return the tokens of this agent: in all, by model, by day."""
        return self._store.ask(fleet.usage_detail, self._agent, self._now())

    def check(self) -> Row:
        """Return what refers to something that is missing, and secrets that no key opens."""
        return {**self._store.ask(fleet.check), **self._store.secrets.undecryptable()}


def _channel(wanted: Row) -> Row:
    unknown = set(mapping(wanted, "a channel")) - {"channel_type", "config", "label", "enabled"}
    if unknown or "channel_type" not in wanted:
        raise BadValue(
            "a channel of a new agent has a channel_type, and perhaps config, label and enabled;"
            f" not {', '.join(map(str, wanted))}"
        )
    return wanted


def _sandbox(wanted: Row, times: Row) -> Row:
    mapping(wanted, "a sandbox")
    return {
        "id": ids.random_id(),
        "alias": wanted.get("alias", "default"),
        "type": wanted.get("type"),
        "config": dumps(wanted.get("config", {})),
        **times,
    }


class Document(Subject):
    """The config or the security document of an agent."""

    table = "agents"

    def __init__(self, store: AgentStore, name: str) -> None:
        super().__init__(store)
        self._name = name

    def get(self) -> Row | None:
        """Return the document; ``None`` if there is none, or if it is no object."""
        row = self._row({})
        return None if row is None else object_or_none(row[f"{self._name}_json"])

    def set(self, document: Row) -> None:
        """Replace the document. Raises :class:`NotFound` for an unknown agent."""
        text = whole_document(document)
        self._patched({}, {f"{self._name}_json": text, "updated_at": self._now()})

    def get_path(self, path: str, default: Any = None) -> Any:
        """Return the value at a dotted path; *default* if there is none."""
        found, value = get_path(self.get(), path)
        return value if found else default

    def set_path(self, path: str, value: Any) -> None:
        """Set the value at a dotted path, in one step; siblings stay, objects are made."""
        self._store.submit(
            AgentsDocument(
                agent_id=self._agent,
                document=self._name,  # type: ignore[arg-type]
                path=path,
                value=dumps(value),
                now=self._now(),
            )
        )

    def resolved(self) -> Row:
        """Return the document for use: ``${{NAME}}`` replaced by secrets.

        Raises :class:`BadValue` if there is none.
        """
        document = self.get()
        if document is None:
            raise BadValue(f"the {self._name} of agent {self._agent} is missing")
        made: Row = resolve(document, self._store.secrets.values())
        return made
