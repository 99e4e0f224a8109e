"""Memories, instructions, and values of the whole store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from hermes_actor.agent_store.subject import Names, Records, Subject, clamped, mapping
from hermes_actor.agents import ids, words
from hermes_actor.agents.documents import dumps, loads
from hermes_actor.agents.questions import memories
from hermes_actor.agents.rows import Row
from hermes_actor.agents.values import check_text, shown
from hermes_actor.errors import BadValue, Conflict
from hermes_protocol.agents import AgentsFanout, AgentsMergeMemory, AgentsPatch

__all__ = ["Instructions", "Memories", "Meta"]

_AT_ONCE = 200


class Memories(Subject):
    """Long-term memory by key."""

    table = "memories"

    def put(
        self,
        content: str,
        *,
        key: str | None = None,
        metadata: Row | None = None,
        grants: Sequence[Row] = (),
    ) -> Row:
        """Store a memory and return it; one of this key is replaced as a whole.

        Without a key it gets one. Raises :class:`BadValue` for what cannot be stored.
        """
        if key is not None and not isinstance(key, str):
            raise BadValue(f"the key of a memory is a text, not {shown(key)}")
        name, now = (key or "").strip() or ids.memory_key(), self._now()
        row = self._texts(name, content)
        row |= {"metadata": _object(metadata or {}), "grants": _grants(grants)}
        made = {**row, "memory_key": name, "created_at": now, "updated_at": now}
        return memories.entry(self._put(made, returning=True).rows[0])

    @staticmethod
    def _texts(key: str, content: Any) -> Row:
        if not isinstance(content, str):
            raise BadValue("the content of a memory is a text")
        # Before its words are looked for, which takes a second for each million.
        check_text("memories.content", content)
        return {"content": content, **words.columns(key, content)}

    def get(self, key: str) -> Row | None:
        """Return a memory, ``None`` if there is none."""
        row = self._row({"memory_key": key})
        return None if row is None else memories.entry(row)

    def update(
        self,
        key: str,
        *,
        content: str | None = None,
        metadata: Row | None = None,
        grants: Sequence[Row] | None = None,
    ) -> Row:
        """Change what is given; metadata is merged. Raises :class:`NotFound`."""
        values: Row = {"updated_at": self._now()}
        if content is not None:
            values |= self._texts(key, content)
        if grants is not None:
            values["grants"] = _grants(grants)
        row = self._store.submit(
            AgentsMergeMemory(
                agent_id=self._agent,
                memory_key=key,
                set=values,
                metadata=None if metadata is None else _object(metadata),
            )
        )
        return memories.entry(row)

    def delete(self, key: str) -> bool:
        """Delete a memory; returns False if there was none."""
        return bool(self._delete({"memory_key": key}))

    def list(
        self, prefix: str = "", *, limit: float = 20, principal: memories.Principal | None = None
    ) -> Records:
        """Return memories whose key begins with *prefix*, newest first; at most 50."""
        return self._store.ask(memories.newest, self._agent, prefix, clamped(limit), principal)

    def search(
        self, query: str, *, limit: float = 10, principal: memories.Principal | None = None
    ) -> Records:
        """Return the memories that match, the best first; at most 50.

        Memories that hold every word, in any form of it, come first. Then those that hold any piece
        of the query as it is, in key or text: parts of words, and languages without blanks.
        *principal* is user id and role of the caller; what the grants hide is left out.
        """
        if not isinstance(query, str):
            raise BadValue(f"a query is a text, not {shown(query)}")
        return self._store.ask(memories.search, self._agent, query, clamped(limit), principal)

    def context_block(
        self, limit: float = 10, principal: memories.Principal | None = None
    ) -> str | None:
        """Return the newest memories as Markdown; ``None`` if there are none."""
        found = self.list(limit=limit, principal=principal)
        blocks = [f"## {one['id']}\n{one['content']}" for one in found]
        return "\n\n".join(blocks) or None

    def reindex(self) -> int:
        """Make the columns for search again, of all agents, in small steps; returns how many."""
        done, after = 0, ("", "")
        while some := self._store.ask(memories.with_old_words, after, _AT_ONCE):
            for row in some:
                done += self._index_again(row)
            after = (some[-1]["agent_id"], some[-1]["memory_key"])
        return done

    def _index_again(self, row: Row) -> bool:
        key = row["memory_key"]
        change = AgentsPatch(
            table=self.table,
            key={"memory_key": key},
            set=dict(words.columns(key, row["content"])),
            agent_id=row["agent_id"],
            expect={"content": row["content"]},
            missing="nothing",
        )
        try:
            return self._store.submit(change) is not None
        except Conflict:
            return False  # it was written again meanwhile, with its words


def _object(value: Any) -> str:
    return dumps(dict(mapping(value, "metadata")))


def _grants(value: Any) -> str:
    if not isinstance(value, list | tuple):
        raise BadValue(f"grants are a list, not {shown(value)}")
    return dumps(list(value))


class Instructions(Subject):
    """Sections of the prompt."""

    table = "instructions"

    def _record(self, row: Mapping[str, Any]) -> Row:
        return {name: row[name] for name in ("key", "content", "updated_at")}

    def get(self, key: str) -> Row | None:
        """Return a section, ``None`` if there is none."""
        return self._get({"key": key})

    def list(self) -> Records:
        """Return all sections by key."""
        return self._list()

    def set(self, key: str, content: str, updated_at: str | datetime | None = None) -> None:
        """Set a section."""
        self._put({"key": key, "content": content, "updated_at": self._now(updated_at)})

    def seed(self, texts: Mapping[str, str]) -> Names:
        """Insert the sections that are missing; returns their keys."""
        now, before = self._now(), {one["key"] for one in self.list()}
        rows = [{"key": key, "content": text, "updated_at": now} for key, text in texts.items()]
        if rows:
            self._put(*rows, mode="ignore")
        return [key for key in texts if key not in before]

    def delete(self, key: str) -> bool:
        """Delete a section; returns False if there was none."""
        return bool(self._delete({"key": key}))

    def change(self, mode: str, key: str, content: str | None = None) -> Names:
        """Set, append to or remove a section: of this agent, or without one of all registered.

        Returns the ids of the agents.
        """
        only = None if self._store.agent_id is None else self._agent
        return self._store.submit(
            AgentsFanout(mode=mode, key=key, content=content, now=self._now(), agent_id=only)
        )

    def fan_out(self, mode: str, key: str, content: str | None = None) -> Names:
        """Set, append to or remove a section of every registered agent; returns their ids."""
        return self._store.submit(
            AgentsFanout(mode=mode, key=key, content=content, now=self._now())
        )


class Meta(Subject):
    """Values of the whole store."""

    table = "meta"

    def get(self, key: str) -> str | None:
        """Return the text under *key*."""
        row = self._row({"key": key})
        return None if row is None else row["value"]

    def set(self, key: str, value: str) -> None:
        """Set the text under *key*."""
        self._put({"key": key, "value": value})

    def get_json(self, key: str) -> Any:
        """Return the value under *key*; ``None`` if there is none, or if it is not JSON."""
        text = self.get(key)
        try:
            return None if text is None else loads(text)
        except BadValue:
            return None

    def set_json(self, key: str, value: Any) -> None:
        """Set the value under *key*."""
        self.set(key, dumps(value))

    def delete(self, key: str) -> None:
        """Delete what is under *key*."""
        self._delete({"key": key})
