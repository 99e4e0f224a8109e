"""The store object: a scope, a way to its writer, and one object for each subject."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from hermes_actor.agent_store.agents import Agents, Document
from hermes_actor.agent_store.assignments import McpServers, Skills
from hermes_actor.agent_store.bad_values import check_texts, refusal
from hermes_actor.agent_store.channels import Channels, Credentials
from hermes_actor.agent_store.extras import Approvals, Attachments, Policies, Tokens
from hermes_actor.agent_store.ports import Port, open_port
from hermes_actor.agent_store.sandboxes import Sandboxes
from hermes_actor.agent_store.schedules import Schedules
from hermes_actor.agent_store.secret_files import FileMark, mark_of
from hermes_actor.agent_store.secrets import Secrets
from hermes_actor.agent_store.sessions import Events, Sessions
from hermes_actor.agent_store.texts import Instructions, Memories, Meta
from hermes_actor.agent_store.users import Users
from hermes_actor.agents import times
from hermes_actor.agents.questions import fleet
from hermes_actor.agents.rows import Row, Rows
from hermes_actor.agents.values import scope_of, table_named
from hermes_actor.agents.vault import Vault, key_variable, load_vault
from hermes_actor.errors import KeyChanging, KeyReplaced, NotConfigured, Unsupported
from hermes_protocol.agents import AgentsCompare
from hermes_protocol.operations import Operation

__all__ = ["AgentStore"]

_KEY_CHANGE_SECONDS = 5.0
"""Longer than a change of keys takes, with the key file that it writes at its end."""

P = ParamSpec("P")
R = TypeVar("R")


class AgentStore:
    """The rows of one agent, or with :meth:`global_` what belongs to no agent.

    Every change is one operation of the writer, made exactly once, and acknowledged when it is
    committed and synced. Reads run in the calling process and see every acknowledged change.

    Example::

        store = AgentStore("main")
        store.memories.put("Deploys happen on Tuesdays.", key="project/deploys")
        print(store.memories.search("deploy"))
        store.close()

    Args:
        agent_id: The scope. Any name will do: a row in ``agents`` is not needed.
        store: The path of a file, or the URL of a store; default: ``agents.dsn`` of
            ``config.yaml``, else ``HERMES_HOME/agents.db``. Missing folders of a ``Path`` and of
            the default are created; that of a text must exist.
        mode: ``"actor"``; ``"on demand"``, which connects to the actor with the first change, for
            programs that mostly read; or ``"embedded"`` for a writer in this process.
        timeout: Seconds that a call waits for the writer.
        vault: The key for secrets; default: that of the environment or of the key file.
        clock: Returns the present time; for tests.

    Raises:
        BadValue: the scope cannot be one.
        OpenError: the store cannot be reached or opened.
    """

    def __init__(
        self,
        agent_id: str | None,
        store: Path | str | None = None,
        *,
        mode: str = "actor",
        timeout: float = 30.0,
        vault: Vault | None = None,
        clock: Callable[[], str] = times.now,
    ) -> None:
        if agent_id is not None:
            scope_of(table_named("agents"), agent_id)
        self.agent_id = agent_id
        self.timeout = timeout
        self.now = clock
        self._vault = vault
        self._key_mark: FileMark | None = None
        self._own = True
        self.port: Port = open_port(store, mode, timeout)
        self._make_subjects()

    @classmethod
    def global_(cls, store: Path | str | None = None, **options: Any) -> Self:
        """Open a store for an administrator, without an agent."""
        return cls(None, store, **options)

    def of(self, agent_id: str | None) -> Self:
        """Return the store of another agent over the same connection, which stays this one's."""
        if agent_id is not None:
            scope_of(table_named("agents"), agent_id)
        other = copy.copy(self)
        other.agent_id, other._own = agent_id, False
        other._make_subjects()
        return other

    def _make_subjects(self) -> None:
        self.agents = Agents(self)
        self.config = Document(self, "config")
        self.security = Document(self, "security")
        self.sessions = Sessions(self)
        self.events = Events(self)
        self.memories = Memories(self)
        self.instructions = Instructions(self)
        self.meta = Meta(self)
        self.users = Users(self)
        self.skills = Skills(self)
        self.mcp = McpServers(self)
        self.channels = Channels(self)
        self.credentials = Credentials(self)
        self.secrets = Secrets(self)
        self.schedules = Schedules(self)
        self.sandboxes = Sandboxes(self)
        self.policies = Policies(self)
        self.approvals = Approvals(self)
        self.attachments = Attachments(self)
        self.tokens = Tokens(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<AgentStore {self.agent_id!r} {self.port.address}>"

    def close(self) -> None:
        """Stop using the store. Calling it again is harmless; later calls raise ``Closed``."""
        if self._own:
            self.port.close()

    def subscribe(self, after: int | None = None) -> Any:
        """Follow the changes of the store, made by any process.

        Gives :class:`Changed` with operation, table and agent, and :class:`Gap` where some were
        missed. Close it, or use it in a ``with`` block.
        """
        from hermes_actor.client.subscription import Subscription

        return Subscription(self.port.subscribe(after, self.timeout))

    @property
    def vault(self) -> Vault | None:
        """The key for secrets; ``None`` without one. Raises :class:`NotConfigured`.

        One from the key file follows it: another process may give everything a new key.
        """
        file = self.port.key_file
        if self._vault is None or self._key_mark not in (None, mark := mark_of(file)):
            mark = mark_of(file)
            found = load_vault(file)
            # Without the file the key in hand is still the one: nothing falls back to plain text.
            if found is not None:
                self._vault = found
                self._key_mark = mark if key_variable() is None else None
        return self._vault

    def needed_vault(self) -> Vault:
        """Return the key for secrets. Raises :class:`NotConfigured` without one."""
        vault = self.vault
        if vault is None:
            raise NotConfigured(
                "there is no key for secrets: set HERMES_ACTOR_SECRETS_KEY, or make a key file"
                " with: hermes-actor agents setup"
            )
        return vault

    def submit_sealed(self, make: Callable[[Vault], Operation[R]]) -> R:
        """Submit what *make* encrypts with the key.

        If the key is being replaced, it waits; if it was, the key file has the new one, or will in
        a moment. Raises :class:`KeyReplaced` for a key that came another way.
        """
        until = time.monotonic() + min(self.timeout, _KEY_CHANGE_SECONDS)
        while True:
            vault = self.needed_vault()
            try:
                return self.submit(make(vault))
            except (KeyReplaced, KeyChanging) as refused:
                over = time.monotonic() > until
                if isinstance(refused, KeyReplaced) and (over or self._key_mark is None):
                    raise
                if over:
                    # A change of keys that was killed must not keep others waiting for good.
                    self.submit(AgentsCompare(items=[], new_key_id=vault.key_id))
                else:
                    time.sleep(0.02)

    def rows(self, table: str) -> list[Row]:
        """Return the rows of every agent as they are stored, for an administrator's checks."""
        return self.ask(fleet.all_of, table_named(table).name)

    def submit(self, operation: Operation[R]) -> R:
        """Have *operation* applied; return its result once it is committed and synced.

        Raises :class:`BadValue` for values that no store can hold, before anything is sent.
        """
        try:
            return self.port.submit(operation, self.timeout)
        except (UnicodeEncodeError, TypeError, OverflowError, Unsupported) as error:
            raise refusal(operation, error) from error

    def ask(
        self, question: Callable[Concatenate[Rows, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Return the answer to *question* from one snapshot.

        Raises :class:`BadValue` for arguments that no row can hold.
        """
        check_texts((args, kwargs))
        return self.port.ask(lambda rows: question(rows, *args, **kwargs), self.timeout)
