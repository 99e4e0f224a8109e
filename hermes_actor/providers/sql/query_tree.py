"""Parser of search queries: FTS5's query language as a tree, for the search of a server.

FTS5 itself decides whether a query is valid, on an empty table in memory, and cuts the snippets of
the hits, so both are the same as with a file. The parser below works between the two and may rely
on the query being valid. Operators by how tightly they bind: terms side by side, NOT, AND, OR.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import TypeAlias

from hermes_actor.sqlite import Connection, connect_alone, sqlite3
from hermes_actor.store.search.query import TRIGRAM, Route
from hermes_actor.store.search.snippets import cut_safely
from hermes_actor.system.fork import inside

__all__ = ["And", "Node", "Not", "Or", "Phrase", "looked_for", "parse", "snippets", "words_of"]


@dataclass(frozen=True)
class Phrase:
    """Consecutive words; with *prefix* the last one is a prefix. *text* is the source text."""

    words: tuple[str, ...]
    prefix: bool
    text: str


@dataclass(frozen=True)
class And:
    """A node that matches if all *parts* match."""

    parts: tuple[Node, ...]


@dataclass(frozen=True)
class Or:
    """A node that matches if one of *parts* does."""

    parts: tuple[Node, ...]


@dataclass(frozen=True)
class Not:
    """A node that matches if *kept* does and *dropped* does not."""

    kept: Node
    dropped: Node


Node: TypeAlias = Phrase | And | Or | Not

# FTS5 takes everything outside of ASCII for part of a bare word.
_TOKEN = re.compile(r'"((?:[^"]|"")*)"|([\w\x1a\x80-\U0010ffff]+)|(\S)')
_OPERATORS = {"OR": 1, "AND": 2, "NOT": 3}


_folding: dict[int, str] = {ord(c): c.lower() if c.isalnum() else " " for c in map(chr, range(128))}
"""Result of FTS5's tokenizer for a character: a letter without case and accent, nothing for an
accent of its own, a blank for what separates words."""


def words_of(text: str) -> list[str]:
    """Return the words that FTS5's tokenizer sees in *text*."""
    if not text.isascii():
        unknown = {character for character in set(text) if ord(character) not in _folding}
        if unknown:
            _folding.update(inside(_ask_fts5, unknown))
    return text.translate(_folding).split()


def _ask_fts5(characters: set[str]) -> dict[int, str]:
    """Return *characters* as FTS5 folds them.

    It decides character by character, by tables of its own that no rule of Unicode gives: it keeps
    ``й``, and the two accents of ``ệ``. So it is asked, once for each character.
    """
    folded = dict.fromkeys(map(ord, characters), " ")
    with closing(connect_alone()) as conn:
        conn.execute("CREATE VIRTUAL TABLE texts USING fts5(content)")
        conn.execute("CREATE VIRTUAL TABLE words USING fts5vocab(texts, instance)")
        conn.executemany(
            "INSERT INTO texts(rowid, content) VALUES (?, ?)",
            # A lone surrogate is no character; no file takes it either.
            [(ord(c), f"a{c}b") for c in characters if not 0xD800 <= ord(c) < 0xE000],
        )
        for code, term, count in conn.execute(
            "SELECT doc, term, count(*) FROM words GROUP BY doc"
        ).fetchall():
            if count == 1:
                folded[code] = term[1:-1]
    return folded


def parse(match: str, route: Route) -> Node | None:
    """Return the tree of a MATCH expression; ``None`` if it is invalid or can match nothing."""
    try:
        _check(match, route)
    except sqlite3.OperationalError:
        return None
    reader = _Reader(_TOKEN.findall(match), route)
    return reader.expression(1)


class _Reader:
    """Parser over tokens: a quoted text, a bare word, or one other character."""

    def __init__(self, tokens: list[tuple[str, str, str]], route: Route) -> None:
        self._tokens = tokens
        self._route = route
        self._at = 0

    def expression(self, binding: int) -> Node | None:
        """Return everything that binds at least as tightly as *binding*."""
        left = self._terms()
        while (operator := self._operator()) is not None and _OPERATORS[operator] >= binding:
            self._at += 1
            right = self.expression(_OPERATORS[operator] + 1)
            left = _combined(operator, left, right)
        return left

    def _operator(self) -> str | None:
        if self._at >= len(self._tokens):
            return None
        bare = self._tokens[self._at][1]
        return bare if bare in _OPERATORS else None

    def _terms(self) -> Node | None:
        """Return terms side by side, all of which must match; those without a word are skipped."""
        found: list[Node] = []
        while self._at < len(self._tokens) and self._operator() is None:
            term = self._phrase()
            if term is not None:
                found.append(term)
        if not found:
            return None
        return found[0] if len(found) == 1 else And(tuple(found))

    def _phrase(self) -> Node | None:
        quoted, bare, _ = self._tokens[self._at]
        self._at += 1
        if self._next_is(":"):
            self._at += 1  # the only column there is
            return None
        text = bare or quoted.replace('""', '"')
        prefix = self._next_is("*")
        if prefix:
            self._at += 1
        if self._route is Route.TRIGRAMS:
            return Phrase((), prefix, text) if len(text) >= TRIGRAM else None
        words = tuple(words_of(text))
        return Phrase(words, prefix, text) if words else None

    def _next_is(self, character: str) -> bool:
        return self._at < len(self._tokens) and self._tokens[self._at][2] == character


def _combined(operator: str, left: Node | None, right: Node | None) -> Node | None:
    """Return two sides of an operator as one node. A term without a word matches nothing.

    A chain of one operator becomes one node with many parts: however long a query is, its tree is
    only as deep as there are operators of different binding.
    """
    if operator == "OR":
        parts = tuple(part for part in (left, right) if part is not None)
        return _joined(Or, parts) if len(parts) == 2 else (parts[0] if parts else None)
    if left is None or (right is None and operator == "AND"):
        return None
    if right is None:
        return left
    if operator == "AND":
        return _joined(And, (left, right))
    if isinstance(left, Not):  # a NOT b NOT c
        return Not(left.kept, _joined(Or, (left.dropped, right)))
    return Not(left, right)


def _joined(kind: type[And | Or], parts: tuple[Node, ...]) -> Node:
    return kind(
        tuple(one for part in parts for one in (part.parts if isinstance(part, kind) else (part,)))
    )


def looked_for(tree: Node) -> Iterator[Phrase]:
    """Yield the phrases whose presence makes a hit."""
    if isinstance(tree, Phrase):
        yield tree
    elif isinstance(tree, Not):
        yield from looked_for(tree.kept)
    else:
        for part in tree.parts:
            yield from looked_for(part)


def snippets(match: str, route: Route, texts: Iterable[tuple[int, str]]) -> dict[int, str]:
    """Return the snippet of each text, by id; a text that FTS5 would not have found has none."""
    return inside(cut_safely, match, texts, trigrams=route is Route.TRIGRAMS)


def _check(match: str, route: Route) -> None:
    """Have FTS5 raise its error for a query that is not valid."""

    def run(conn: Connection) -> None:
        tokenizer = ", tokenize='trigram'" if route is Route.TRIGRAMS else ""
        conn.execute(f"CREATE VIRTUAL TABLE hits USING fts5(content{tokenizer})")
        conn.execute("SELECT 1 FROM hits WHERE hits MATCH ?", (match,)).fetchall()

    with closing(connect_alone()) as conn:
        inside(run, conn)
