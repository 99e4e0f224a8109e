"""The file with the key for secrets: made once, changed only after the store has followed."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hermes_actor.agent_store.secret_files import replace_file
from hermes_actor.agents.vault import Vault, key_variable, load_vault, new_key, read_key
from hermes_actor.errors import Conflict, NotConfigured

if TYPE_CHECKING:
    from hermes_actor.agent_store.store import AgentStore

__all__ = ["KeyPlace", "Rekeyed", "ensure_key", "rekey"]


class KeyPlace(NamedTuple):
    """The place of a key, and whether it was made by this call."""

    place: str
    made: bool


class Rekeyed(NamedTuple):
    """The end of a change of keys."""

    values: int
    place: str
    advice: str


def ensure_key(file: Path) -> KeyPlace:
    """Return the place of the key; without one make *file*. Raises :class:`NotConfigured`."""
    name = key_variable()
    if name is not None or file.exists():
        load_vault(file)  # it must be usable
        return KeyPlace(name or str(file), False)
    _make(file)
    return KeyPlace(str(file), True)


def _make(file: Path) -> None:
    """Write a new key, never over a file that exists."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w") as opened:
        opened.write(f"{new_key()}\n")
        opened.flush()
        os.fsync(opened.fileno())


def _rekey(store: AgentStore, new: Vault) -> int:
    """Change the key in the store; again while others set secrets at the same moment."""
    until = time.monotonic() + store.timeout
    while True:
        try:
            return store.secrets.rekey(new)
        except Conflict:
            if time.monotonic() > until:
                raise


def rekey(store: AgentStore, new_file: Path) -> Rekeyed:
    """Encrypt everything with the key of *new_file*, which is made if it does not exist.

    The key file of the store is replaced after the store has acknowledged the change; until then
    the old key opens everything, and afterwards the key of *new_file* does. If it was ended in
    between, the same call again completes it. Raises :class:`Conflict` if others change secrets so
    often that the store's timeout ends first; nothing has changed then.
    """
    file = store.port.key_file
    if new_file.exists() and file.exists() and new_file.samefile(file):
        raise NotConfigured(f"{new_file} is the present key; name another file")
    if not new_file.exists() and not new_file.is_symlink():
        _make(new_file)
    key = read_key(new_file)
    count = _rekey(store, Vault(key))
    name = key_variable()
    if name is not None:
        return Rekeyed(count, str(new_file), f"Set {name} to the key in {new_file} now.")
    previous = file.with_name(f"{file.name}.previous")
    replace_file(previous, file.read_text("utf-8"))
    replace_file(file, f"{key.strip()}\n")
    return Rekeyed(count, str(file), f"{file} holds the new key, {previous} the old one.")
