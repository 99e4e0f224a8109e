"""Secrets, channels and their credentials: encrypted here, before anything leaves the process."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import UNSET, UnsetType

from hermes_actor.agent_store.secret_files import SecretFile
from hermes_actor.agent_store.subject import Names, Records, Subject, given, mapping
from hermes_actor.agents import ids
from hermes_actor.agents.documents import dumps, masked, resolve
from hermes_actor.agents.questions import fleet
from hermes_actor.agents.rows import Row
from hermes_actor.agents.tables import TABLES
from hermes_actor.agents.values import shown
from hermes_actor.agents.vault import Secret, Vault
from hermes_actor.errors import BadValue, NotFound
from hermes_protocol.agents import AgentsCompare, AgentsReplace, Comparison

__all__ = ["Channels", "Credentials", "Secrets"]

_log = logging.getLogger("hermes_actor.agents")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CIPHERTEXTS = {
    "agent_secrets": "value_ciphertext",
    "agent_channel_credentials": "value_ciphertext",
    "agent_channels": "token_ciphertext",
}
"""Tables with ciphertext, and its column."""


def _plain(value: str | Secret) -> str:
    text = value.value if isinstance(value, Secret) else value
    if not isinstance(text, str):
        raise BadValue("a secret is a text")
    return text


def _check_name(name: Any) -> None:
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise BadValue(f"the name of a secret is letters, digits and _: not {shown(name)}")


class Secrets(Subject):
    """Secrets of an agent. Without a key, for development, a file takes them in plain text."""

    table = "agent_secrets"

    def _file(self) -> SecretFile | None:
        """Return the file that stands in for the store while there is no key."""
        if self._store.vault is not None:
            return None
        file = SecretFile(self._store.port.home, self._agent)
        _log.warning(
            "there is no key for secrets: %s holds them in plain text, which is for development"
            " only; make a key with: hermes-actor agents setup", file.path,
        )  # fmt: skip
        return file

    def entries(self) -> dict[str, Row]:
        """Return value and pass_through of every secret that can be decrypted, by name."""
        if (file := self._file()) is not None:
            return file.read()
        vault = self._store.needed_vault()
        made = {}
        for row in self._rows():
            value = vault.try_decrypt(row["value_ciphertext"])
            if value is not None:
                flag = bool(row["pass_through"])
                made[row["name"]] = {"value": value, "pass_through": flag}
        return made

    def values(self) -> dict[str, str]:
        """Return the values by name, for use inside the process."""
        return {name: one["value"] for name, one in self.entries().items()}

    def get(self, name: str) -> str | None:
        """Return a value; ``None`` if there is none, or if the key cannot open it."""
        return self.values().get(name)

    def set(self, name: str, value: str | Secret, *, pass_through: bool | None = None) -> None:
        """Store a secret; *pass_through* stays as it is unless given."""
        _check_name(name)
        if (file := self._file()) is not None:
            return file.set(name, _plain(value), pass_through)
        now, sealed = self._now(), self._store.needed_vault().encrypt(_plain(value))
        row = {"name": name, "value_ciphertext": sealed, "created_at": now, "updated_at": now}
        self._put({**row, **given(pass_through=pass_through)})
        return None

    def set_pass_through(self, name: str, flag: bool) -> None:
        """Say whether sandboxes get a secret as a variable. Raises :class:`BadValue`."""
        if (file := self._file()) is not None:
            return file.set_flag(name, flag)
        values = {"pass_through": flag, "updated_at": self._now()}
        if self._patch({"name": name}, values, missing="nothing") is None:
            raise BadValue(f"Secret not found: {name}")
        return None

    def delete(self, name: str) -> bool:
        """Delete a secret; returns False if there was none."""
        if (file := self._file()) is not None:
            return file.delete(name)
        return bool(self._delete({"name": name}))

    def replace_all(self, values: Mapping[str, str | Secret]) -> None:
        """Replace all secrets of the agent, all or nothing."""
        for name in mapping(values, "the secrets of an agent"):
            _check_name(name)
        if (file := self._file()) is not None:
            return file.replace({name: _plain(value) for name, value in values.items()})
        now, vault = self._now(), self._store.needed_vault()
        rows: Records = [
            {"name": name, "value_ciphertext": vault.encrypt(_plain(value)),
             "created_at": now, "updated_at": now}
            for name, value in values.items()
        ]  # fmt: skip
        self._store.submit(AgentsReplace(table=self.table, key={}, rows=rows, agent_id=self._agent))
        return None

    def names(self) -> Names:
        """Return the names, sorted."""
        if (file := self._file()) is not None:
            return sorted(file.read())
        return [row["name"] for row in self._rows()]

    def masked(self) -> dict[str, Row]:
        """Return what may be shown: a mask for every value."""
        return {
            name: {"masked": masked(one["value"]), "pass_through": one["pass_through"]}
            for name, one in self.entries().items()
        }

    def resolve(self, names: Sequence[str]) -> dict[str, str]:
        """Return the values of *names*. Raises :class:`NotFound` that names a missing one."""
        values = self.values()
        for name in names:
            if name not in values:
                raise NotFound(f"Secret not found: {name}")
        return {name: values[name] for name in names}

    def import_file(self) -> int:
        """Take the secrets of the plain file into an empty store; returns how many."""
        file = SecretFile(self._store.port.home, self._agent)
        found = file.read()
        if not found or self._rows(limit=1):
            return 0
        now, vault = self._now(), self._store.needed_vault()
        self._put(*(
            {"name": name, "value_ciphertext": vault.encrypt(one["value"]),
             "pass_through": one["pass_through"], "created_at": now, "updated_at": now}
            for name, one in found.items()
        ), mode="insert")  # fmt: skip
        file.retire()
        return len(found)

    def undecryptable(self) -> Row:
        """Return how many ciphertexts of all agents the key cannot open, by table."""
        vault = self._store.vault
        if vault is None:
            return {"undecryptable": None}
        found = {}
        for table, column in _CIPHERTEXTS.items():
            rows = self._store.ask(fleet.all_of, table)
            found[table] = sum(vault.try_decrypt(row[column]) is None for row in rows)
        return {"undecryptable": {name: count for name, count in found.items() if count}}

    def rekey(self, new: Vault) -> int:
        """Encrypt every secret, token and credential of all agents with *new*; returns how many.

        All or nothing: what the present key cannot open, or what changes or comes meanwhile, ends
        it before anything is written. Raises :class:`BadValue` or :class:`Conflict`.
        """
        old = self._store.needed_vault()

        def collect(rows: Any) -> list[Comparison]:
            return [
                _comparison(table, column, row, old, new)
                for table, column in _CIPHERTEXTS.items()
                for row in fleet.all_of(rows, table)
            ]

        items = self._store.ask(collect)
        self._store.submit(AgentsCompare(items=items, complete=True))
        self._store._vault = new
        return len(items)


def _comparison(table: str, column: str, row: Row, old: Vault, new: Vault) -> Comparison:
    plain = old.try_decrypt(row[column])
    key = {name: row[name] for name in TABLES[table].key}
    if plain is None:
        shown = ", ".join(map(str, key.values()))
        raise BadValue(
            f"the present key cannot open {table} {shown} of {row['agent_id']}; nothing was changed"
        )
    return Comparison(
        table=table, agent_id=row["agent_id"], key=key, column=column, old=row[column],
        new=new.encrypt(plain),
    )  # fmt: skip


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
        """Return the row of a new channel, and its token. Raises :class:`NotConfigured`."""
        token, settings = ids.channel_token(), mapping(config or {}, "the config of a channel")
        row = {
            "id": ids.channel_id(), "kind": kind, "channel_type": channel_type,
            "namespace": channel_type, "label": label, "enabled": enabled,
            "config": dumps(dict(settings)), "token_prefix": token[:12],
            "token_ciphertext": self._store.needed_vault().encrypt(token),
            "created_by": created_by, "created_at": now, "updated_at": now,
        }  # fmt: skip
        return row, token

    def _create(self, kind: str, **options: Any) -> Row:
        row, token = self.new_row(kind, self._now(), **options)
        return {**self._stored(row, "insert"), "token": token}

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

    def _seal(self, channel_type: str, profile: str, key: str, value: str | Secret) -> Row:
        now = self._now()
        return {
            "channel_type": channel_type, "profile": profile, "key": key,
            "value_ciphertext": self._store.needed_vault().encrypt(_plain(value)),
            "created_at": now, "updated_at": now,
        }  # fmt: skip

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
        self._put(self._seal(channel_type, profile, key, value))

    def delete(self, channel_type: str, profile: str, key: str) -> bool:
        """Delete a value; returns False if there was none."""
        self._store.needed_vault()
        return bool(self._delete({"channel_type": channel_type, "profile": profile, "key": key}))

    def replace(self, channel_type: str, profile: str, values: Mapping[str, str | Secret]) -> None:
        """Replace the values of a profile, all or nothing."""
        rows = [self._seal(channel_type, profile, key, value) for key, value in values.items()]
        self._store.needed_vault()
        self._store.submit(AgentsReplace(
            table=self.table, key={"channel_type": channel_type, "profile": profile}, rows=rows,
            agent_id=self._agent,
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
