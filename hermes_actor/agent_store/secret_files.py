"""The file that stands in for encrypted secrets while there is no key: development only."""

from __future__ import annotations

import json
import os
from pathlib import Path

from hermes_actor.agents.rows import Row
from hermes_actor.errors import BadValue

__all__ = ["FileMark", "SecretFile", "mark_of", "replace_file"]


def replace_file(path: Path, text: str) -> None:
    """Write *text* to *path* at once, readable by its owner alone; a crash leaves old or new."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    handle = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


FileMark = tuple[int, int, int]


def mark_of(path: Path) -> FileMark | None:
    """Return what tells versions of a file apart; ``None`` if there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


class SecretFile:
    """``agents/AGENT/secrets.json`` of a home."""

    def __init__(self, home: Path, agent_id: str) -> None:
        # An id is data, and data never becomes a path.
        if "/" in agent_id or "\0" in agent_id or agent_id in (".", ".."):
            raise BadValue(f"the agent {agent_id[:60]!r} cannot have a file; make a key first")
        self.path = home / "agents" / agent_id / "secrets.json"

    def read(self) -> dict[str, Row]:
        """Return the secrets by name. Raises :class:`BadValue` for a file that is not JSON."""
        try:
            found = json.loads(self.path.read_text("utf-8"))
        except FileNotFoundError:
            return {}
        except ValueError:
            raise BadValue(f"{self.path} is not JSON; correct it or move it away") from None
        if not isinstance(found, dict):
            return {}
        made = {}
        for name in sorted(found):
            one = found[name]
            if isinstance(one, str):
                made[name] = {"value": one, "pass_through": False}
            elif isinstance(one, dict) and isinstance(one.get("value"), str):
                flag = one.get("passThrough") is True
                made[name] = {"value": one["value"], "pass_through": flag}
        return made

    def _write(self, entries: dict[str, Row]) -> None:
        stored = {
            name: {"value": one["value"], "passThrough": one["pass_through"]}
            for name, one in entries.items()
        }
        text = json.dumps(stored, indent=2, sort_keys=True, ensure_ascii=False)
        replace_file(self.path, f"{text}\n")

    def set(self, name: str, value: str, pass_through: bool | None) -> None:
        """Store a secret."""
        found = self.read()
        flag = found.get(name, {}).get("pass_through", False)
        kept = flag if pass_through is None else pass_through
        self._write({**found, name: {"value": value, "pass_through": kept}})

    def set_flag(self, name: str, flag: bool) -> None:
        """Change the flag of a secret. Raises :class:`BadValue`."""
        found = self.read()
        if name not in found:
            raise BadValue(f"Secret not found: {name}")
        self._write({**found, name: {**found[name], "pass_through": flag}})

    def delete(self, name: str) -> bool:
        """Delete a secret; without one nothing is written."""
        found = self.read()
        if name not in found:
            return False
        del found[name]
        self._write(found)
        return True

    def replace(self, values: dict[str, str]) -> None:
        """Replace all secrets."""
        self._write({n: {"value": v, "pass_through": False} for n, v in values.items()})

    def retire(self) -> None:
        """Rename the file after its secrets were imported."""
        self.path.rename(self.path.with_name("secrets.json.imported"))
