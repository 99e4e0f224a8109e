"""Channels and their credentials: encrypted here, before anything leaves the process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import UNSET, UnsetType

from hermes_actor.agent_store.secrets import plain
from hermes_actor.agent_store.subject import Records, Subject, given, mapping
from hermes_actor.agents import ids
from hermes_actor.agents.documents import dumps, resolve
from hermes_actor.agents.questions import fleet
from hermes_actor.agents.rows import Row
from hermes_actor.agents.vault import Secret, Vault
from hermes_protocol.agents import AgentsPut, AgentsReplace

__all__ = ["Channels", "Credentials", "sealed_token"]


def sealed_token(row: Row, token: str, vault: Vault) -> Row:
    """Return the row of a channel with its token as ciphertext."""
    return {**row, "token_ciphertext": vault.encrypt(token)}


class Channels(Subject):
    """Channels of an agent."""

    table = "agent_channels"

    def new_row(
        self,
        kind: str,
        now: str,
        *,
        channel_type: str,
        label: str | None = None,
        config: Row | None = None,
        enabled: bool = False,
        created_by: str | None = None,
    ) -> tuple[Row, str]:
        """Return the row of a new channel without its ciphertext, and its token."""
        token, settings = ids.channel_token(), mapping(config or {}, "the config of a channel")
        row = {
            "id": ids.channel_id(), "kind": kind, "channel_type": channel_type,
            "namespace": channel_type, "label": label, "enabled": enabled,
            "config": dumps(dict(settings)), "token_prefix": token[:12],
            "created_by": created_by, "created_at": now, "updated_at": now,
        }  # fmt: skip
        return row, token

    def _create(self, kind: str, **options: Any) -> Row:
        row, token = self.new_row(kind, self._now(), **options)
        done = self._store.submit_sealed(lambda vault: AgentsPut(
            table=self.table, rows=[sealed_token(row, token, vault)], agent_id=self._scope,
            returning=True, key_id=vault.key_id,
        ))  # fmt: skip
        return {**self._record(done.rows[0]), "token": token}

    def create_external(self, namespace: str, **options: Any) -> Row:
        """Create a channel of another program; the token is in this answer only.

        Options: label, config, enabled, created_by. Raises :class:`Conflict`.
        """
        return self._create("external", channel_type=namespace, **options)

    def create_builtin(self, channel_type: str, **options: Any) -> Row:
        """Create a channel of a built-in adapter; the token is in this answer only."""
        return self._create("builtin", channel_type=channel_type, **options)

    def list(self) -> Records:
        """Return the channels that were not revoked."""
        return [one for one in self._list() if "revoked_at" not in one]

    def find_builtin(self, channel_type: str) -> Row | None:
        """Return the channel of a built-in adapter."""
        wanted = ("builtin", channel_type)
        found = (one for one in self.list() if (one["kind"], one["channel_type"]) == wanted)
        return next(found, None)

    def get(self, id_: str) -> Row | None:
        """Return a channel, revoked ones included."""
        return self._get({"id": id_})

    def settings(self, id_: str) -> Row:
        """Return the config of a channel for use: ``${{NAME}}`` replaced by secrets."""
        found = self.get(id_)
        made: Row = resolve((found or {}).get("config", {}), self._store.secrets.values())
        return made

    def update(
        self,
        id_: str,
        *,
        enabled: bool | None = None,
        label: str | UnsetType | None = UNSET,
        config: Row | None = None,
    ) -> Row | None:
        """Change what is given; returns ``None`` for an unknown channel."""
        values = given(enabled=enabled, updated_at=self._now())
        if label is not UNSET:
            values["label"] = label
        if config is not None:
            values["config"] = dumps(dict(mapping(config, "the config of a channel")))
        return self._patch({"id": id_}, values, missing="nothing")

    def revoke(self, id_: str) -> None:
        """Switch a channel off for good; its row stays."""
        self._patched({"id": id_}, {"revoked_at": self._now(), "enabled": False})

    def delete(self, id_: str) -> bool:
        """Delete a channel; returns False if there was none."""
        return bool(self._delete({"id": id_}))

    def load_active(self) -> Records:
        """Return the channels of all agents with their tokens, for the gateway alone.

        Rows that the key cannot open are left out.
        """
        vault, made = self._store.needed_vault(), []
        names = ("id", "agent_id", "kind", "channel_type", "namespace", "enabled", "config")
        for row in self._store.ask(fleet.all_of, self.table, "revoked_at IS NULL"):
            token = vault.try_decrypt(row["token_ciphertext"])
            if token is not None:
                public = self._record(row)
                made.append({**{name: public[name] for name in names}, "token": token})
        return made

    def record_error(self, id_: str, error: str) -> None:
        """Note a failure; both counters go up by one."""
        values = {"last_error": error, "last_error_at": self._now()}
        add = {"consecutive_failure_count": 1, "total_failure_count": 1}
        self._patched({"id": id_}, values, add=add)

    def record_success(self, id_: str) -> None:
        """Note a success: the failures in a row begin at zero again."""
        values: Row = {"last_error": None, "last_error_at": None}
        values |= {"last_success_at": self._now(), "consecutive_failure_count": 0}
        self._patched({"id": id_}, values)

    def clear_error(self, id_: str) -> None:
        """Forget the last error."""
        self._patched({"id": id_}, {"last_error": None, "last_error_at": None})


class Credentials(Subject):
    """State that adapters keep, by channel type, profile and key."""

    table = "agent_channel_credentials"

    def _sealed(
        self, channel_type: str, profile: str, values: Mapping[str, str | Secret], vault: Vault
    ) -> Records:
        now = self._now()
        return [
            {"channel_type": channel_type, "profile": profile, "key": key,
             "value_ciphertext": vault.encrypt(plain(value)), "created_at": now, "updated_at": now}
            for key, value in values.items()
        ]  # fmt: skip

    def get(self, channel_type: str, profile: str, key: str) -> str | None:
        """Return a value; ``None`` if there is none, or if the key cannot open it."""
        vault = self._store.needed_vault()
        row = self._row({"channel_type": channel_type, "profile": profile, "key": key})
        return None if row is None else vault.try_decrypt(row["value_ciphertext"])

    def list(self, channel_type: str, profile: str) -> dict[str, str]:
        """Return the values of a profile by key; what cannot be opened is left out."""
        vault = self._store.needed_vault()
        opened = {
            row["key"]: vault.try_decrypt(row["value_ciphertext"])
            for row in self._rows({"channel_type": channel_type, "profile": profile})
        }
        return {key: value for key, value in opened.items() if value is not None}

    def set(self, channel_type: str, profile: str, key: str, value: str | Secret) -> None:
        """Store a value."""
        self._store.submit_sealed(lambda vault: AgentsPut(
            table=self.table, rows=self._sealed(channel_type, profile, {key: value}, vault),
            agent_id=self._scope, mode="upsert", key_id=vault.key_id,
        ))  # fmt: skip

    def delete(self, channel_type: str, profile: str, key: str) -> bool:
        """Delete a value; returns False if there was none."""
        self._store.needed_vault()
        return bool(self._delete({"channel_type": channel_type, "profile": profile, "key": key}))

    def replace(self, channel_type: str, profile: str, values: Mapping[str, str | Secret]) -> None:
        """Replace the values of a profile, all or nothing."""
        self._store.submit_sealed(lambda vault: AgentsReplace(
            table=self.table, key={"channel_type": channel_type, "profile": profile},
            rows=self._sealed(channel_type, profile, values, vault), agent_id=self._agent,
            key_id=vault.key_id,
        ))  # fmt: skip

    def clear(self, channel_type: str, profile: str) -> None:
        """Delete the values of a profile."""
        self.replace(channel_type, profile, {})

    def of(self, channel_type: str) -> ScopedCredentials:
        """Return the credentials of one channel type, as an adapter gets them."""
        return ScopedCredentials(self, channel_type)


class ScopedCredentials:
    """Credentials of one agent and channel type: an adapter names profiles and keys only."""

    def __init__(self, credentials: Credentials, channel_type: str) -> None:
        self._all, self._type = credentials, channel_type

    def get(self, profile: str, key: str) -> str | None:
        """Return a value."""
        return self._all.get(self._type, profile, key)

    def list(self, profile: str) -> dict[str, str]:
        """Return the values of a profile."""
        return self._all.list(self._type, profile)

    def set(self, profile: str, key: str, value: str | Secret) -> None:
        """Store a value."""
        self._all.set(self._type, profile, key, value)

    def delete(self, profile: str, key: str) -> bool:
        """Delete a value."""
        return self._all.delete(self._type, profile, key)

    def replace(self, profile: str, values: Mapping[str, str | Secret]) -> None:
        """Replace the values of a profile."""
        self._all.replace(self._type, profile, values)

    def clear(self, profile: str) -> None:
        """Delete the values of a profile."""
        self._all.clear(self._type, profile)
