"""Secrets of agents: encrypted here, before anything leaves the process."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any

from hermes_actor.agent_store.secret_files import SecretFile
from hermes_actor.agent_store.subject import Names, Subject, given, mapping
from hermes_actor.agents.documents import masked
from hermes_actor.agents.questions import fleet
from hermes_actor.agents.rows import Row, Rows
from hermes_actor.agents.tables import TABLES
from hermes_actor.agents.values import shown
from hermes_actor.agents.vault import Secret, Vault
from hermes_actor.errors import BadValue, NotFound
from hermes_protocol.agents import AgentsCompare, AgentsPut, AgentsReplace, Comparison

__all__ = ["Secrets", "plain"]

_log = logging.getLogger("hermes_actor.agents")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CIPHERTEXTS = {
    "agent_secrets": "value_ciphertext",
    "agent_channel_credentials": "value_ciphertext",
    "agent_channels": "token_ciphertext",
}
"""Tables with ciphertext, and its column."""


def plain(value: str | Secret) -> str:
    """Return the text of a secret. Raises :class:`BadValue`."""
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
            return file.set(name, plain(value), pass_through)
        text, now = plain(value), self._now()
        row = {"name": name, "created_at": now, "updated_at": now}
        row |= given(pass_through=pass_through)
        self._store.submit_sealed(lambda vault: AgentsPut(
            table=self.table, rows=[{**row, "value_ciphertext": vault.encrypt(text)}],
            agent_id=self._scope, mode="upsert", key_id=vault.key_id,
        ))  # fmt: skip
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
            return file.replace({name: plain(value) for name, value in values.items()})
        now, texts = self._now(), {name: plain(value) for name, value in values.items()}
        self._store.submit_sealed(lambda vault: AgentsReplace(
            table=self.table, key={}, agent_id=self._agent, key_id=vault.key_id,
            rows=[{"name": name, "value_ciphertext": vault.encrypt(text),
                   "created_at": now, "updated_at": now} for name, text in texts.items()],
        ))  # fmt: skip
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
        now = self._now()
        self._store.submit_sealed(lambda vault: AgentsPut(
            table=self.table, agent_id=self._scope, key_id=vault.key_id,
            rows=[{"name": name, "value_ciphertext": vault.encrypt(one["value"]),
                   "pass_through": one["pass_through"], "created_at": now, "updated_at": now}
                  for name, one in found.items()],
        ))  # fmt: skip
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
        it before anything is written. Raises :class:`BadValue` or :class:`Conflict`. Afterwards
        nothing that was encrypted with the present key is taken (:class:`KeyReplaced`). One that
        was ended between the store and the key file is completed: everything has *new* already.
        """
        old = self._store.needed_vault()
        # Those who set secrets wait meanwhile, or this would find new ones for ever.
        self._store.submit(AgentsCompare(items=[], old_key_id=old.key_id))
        try:
            count = self._replace_key(old, new)
        except BaseException:
            self._store.submit(AgentsCompare(items=[], new_key_id=old.key_id))
            raise
        self._store._vault = new
        return count

    def _replace_key(self, old: Vault, new: Vault) -> int:
        sealed = self._store.ask(_sealed)
        there = bool(sealed) and all(
            new.try_decrypt(row[column]) is not None for _, column, row in sealed
        )
        items = [] if there else [_comparison(*one, old, new) for one in sealed]
        self._store.submit(AgentsCompare(
            items=items, complete=not there, old_key_id=None if there else old.key_id,
            new_key_id=new.key_id,
        ))  # fmt: skip
        return len(sealed)


def _sealed(rows: Rows) -> list[tuple[str, str, Row]]:
    """Return every ciphertext of the store as table, column and row."""
    return [
        (table, column, row)
        for table, column in _CIPHERTEXTS.items()
        for row in fleet.all_of(rows, table)
    ]


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
