"""Deliberate faults of the pages: each must be found by a test.

A plugin of pytest: ``WEB_FAULT=name pytest -p support.web_faults …`` runs tests on a broken build.
"""

import importlib
import os
from collections.abc import Callable
from typing import Any

from starlette.responses import Response

__all__ = ["FAULTS", "pytest_configure"]


def _module(name: str) -> Any:
    """Return a module whose names can be replaced: types would be in the way."""
    return importlib.import_module(name)


def _no_token() -> None:
    guard = _module("hermes_actor.web.security").Guard

    guard._first_visit = lambda self, scope: None


def _any_beginning_of_the_token() -> None:
    security = _module("hermes_actor.web.security")

    security.equal = lambda given, expected: expected.startswith(given[:4]) and bool(given)


def _no_csrf() -> None:
    api = _module("hermes_actor.web.api")
    pages = _module("hermes_actor.web.pages")

    api.equal = pages.equal = lambda given, expected: True


def _no_origin() -> None:
    guard = _module("hermes_actor.web.security").Guard

    guard._is_ours = lambda self, headers, by_bearer: True


def _any_host() -> None:
    access = _module("hermes_actor.web.security").Access

    class EveryHost(frozenset[str]):
        def __contains__(self, host: object) -> bool:
            return True

    made = access.__new__

    def new(cls: Any, token: str, hosts: frozenset[str], *more: Any, **named: Any) -> Any:
        return made(cls, token, EveryHost(hosts), *more, **named)

    access.__new__ = new


def _no_policy() -> None:
    security = _module("hermes_actor.web.security")

    security._HEADERS.clear()


def _unescaped() -> None:
    markup = _module("hermes_actor.web.markup")
    site = _module("hermes_actor.web.site")

    made = markup.environment

    def unescaped() -> Any:
        templates = made()
        templates.autoescape = False
        return templates

    site.environment = unescaped


def _not_isolated() -> None:
    site = _module("hermes_actor.web.site")

    made = site.render

    def turned(*args: Any, **values: Any) -> Any:
        return made(*args, **values).replace(b"<bdi>", b"").replace(b"</bdi>", b"")

    site.render = turned


def _writes_though_read_only() -> None:
    action = _module("hermes_actor.web.actions.action")
    sessions = _module("hermes_actor.web.stores").Sessions
    shown_store = _module("hermes_actor.web.stores").ShownStore

    action.read_only_refusal = lambda: AssertionError()
    shown_store.read_only = property(lambda self: False, lambda self, value: None)
    sessions.__init__ = _writable(sessions.__init__)


def _writable(init: Any) -> Any:
    return lambda self, read_only: init(self, False)


def _secrets_in_documents() -> None:
    agents = _module("hermes_actor.web.views.agents")

    agents.without_secrets = lambda value: value


def _secrets_in_headers() -> None:
    agents = _module("hermes_actor.web.views.agents")

    agents._item = lambda item: item


def _gap_unnoticed() -> None:
    live = _module("hermes_actor.web.live")

    live.LiveStore._welcome = lambda self, page, after: None


def _followed_from_now_on() -> None:
    feed = _module("hermes_actor.web.feed").Feed

    init = feed.__init__
    feed.__init__ = lambda self, store, after: init(self, store, None)
    feed.begin = lambda self: self.position


def _failed_look_loses_changes() -> None:
    feed = _module("hermes_actor.web.feed").Feed

    feed.begin_again = lambda self, after: self.close()


def _entry_for_ever() -> None:
    code = _module("hermes_actor.web.security").EntryCode

    code.take = lambda self, given: given == self.text


def _kept_connections() -> None:
    guard = _module("hermes_actor.web.security").Guard

    refusal = guard._refusal

    def kept(self: Any, scope: Any) -> Any:
        answer = refusal(self, scope)
        scope["has_entered"] = True
        return answer

    guard._refusal = kept


def _beginning_of_an_id() -> None:
    sessions = _module("hermes_actor.web.actions.sessions")
    views = _module("hermes_actor.web.views.sessions")

    sessions._session = lambda shown, values: views.found_session(shown.sessions, values["id"])


def _slow_page_keeps_all() -> None:
    live = _module("hermes_actor.web.live")

    live._QUEUED_FRAMES = 10**9


def _unconfirmed() -> None:
    api = _module("hermes_actor.web.api")

    class Confirmed(dict[str, Any]):
        def get(self, name: str, default: Any = None) -> Any:
            return True if name == "confirm" else super().get(name, default)

    body = api._body

    async def confirmed(request: Any, csrf: str) -> dict[str, Any]:
        return Confirmed(await body(request, csrf))

    api._body = confirmed


def _endless_reads() -> None:
    reads = _module("hermes_actor.web.reads")

    reads._STEPS = 2**31 - 1


def _endless_queue() -> None:
    reads = _module("hermes_actor.web.reads")

    reads.Slots._wait = lambda self: self._free.acquire()


def _many_reads() -> None:
    reads = _module("hermes_actor.web.reads")

    init = reads.Slots.__init__
    reads.Slots.__init__ = lambda self, address, places=0: init(self, address, 40)


def _hits_by_rank() -> None:
    matches = _module("hermes_actor.store.search.matches")

    matches.by_id = lambda conn, table, match, only, before, limit, offset: matches.by_rank(
        conn, table, match, only, limit, offset, True
    )


def _data_ends_events() -> None:
    live = _module("hermes_actor.web.live")

    live.frame = lambda event, data, commit_no=None: (
        b"id: %d\nevent: %s\ndata: %s\n\n" % (commit_no or 0, event.encode(), data)
    )


def _large_bodies() -> None:
    security = _module("hermes_actor.web.security")

    security.LARGEST_BODY_BYTES = 2**40


def _id_in_file_name() -> None:
    _module("hermes_actor.web.pages").Response = _Named


class _Named(Response):
    """An answer whose file is named as the address says."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if "content-disposition" in self.headers:
            name = scope["query_string"].decode()
            self.headers["Content-Disposition"] = f'attachment; filename="{name}.json"'
        await super().__call__(scope, receive, send)


def _starts_actors() -> None:
    feed = _module("hermes_actor.web.feed")

    stream = feed.ActorChangeStream
    feed.lock_holder = lambda paths: 1
    feed.ActorChangeStream = lambda *args, **options: stream(*args)


def _follows_alone() -> None:
    live_store = _module("hermes_actor.web.site").LiveStore
    site = _module("hermes_actor.web.site").Site

    def live(self: Any, store: Any) -> Any:
        return live_store(store, self.tasks, self._part_of(store))

    site.live = live


FAULTS: dict[str, tuple[Callable[[], None], str]] = {
    "no token is needed": (_no_token, "security.py"),
    "four letters of the token are enough": (_any_beginning_of_the_token, "security.py"),
    "a form needs no CSRF token": (_no_csrf, "security.py"),
    "a form of another site is taken": (_no_origin, "security.py"),
    "any host name is answered": (_any_host, "security.py"),
    "answers have no policy": (_no_policy, "security.py"),
    "bodies have no limit": (_large_bodies, "security.py"),
    "read-only pages change": (_writes_though_read_only, "security.py"),
    "documents show secrets": (_secrets_in_documents, "pages.py"),
    "servers show their headers": (_secrets_in_headers, "security.py"),
    "content is not escaped": (_unescaped, "pages.py"),
    "texts turn their surroundings": (_not_isolated, "pages.py"),
    "hits are paged by rank": (_hits_by_rank, "../providers/test_pages_of_hits.py"),
    "the id of a session names a file": (_id_in_file_name, "attacks.py"),
    "actions are not confirmed": (_unconfirmed, "actions.py"),
    "a gap is not resumed": (_gap_unnoticed, "feeds.py"),
    "a page follows what is to come": (_followed_from_now_on, "feeds.py"),
    "changes of a failed look are lost": (_failed_look_loses_changes, "feeds.py"),
    "an entry code is good for ever": (_entry_for_ever, "security.py"),
    "connections without the token are kept": (_kept_connections, "security.py"),
    "actions take the beginning of an id": (_beginning_of_an_id, "attacks.py"),
    "a slow page keeps every frame": (_slow_page_keeps_all, "live.py"),
    "data ends an event": (_data_ends_events, "live.py"),
    "a look starts an actor": (_starts_actors, "feeds.py"),
    "a read has no end": (_endless_reads, "reads.py"),
    "the queue of reads has no end": (_endless_queue, "reads.py"),
    "reads are not counted": (_many_reads, "process.py"),
    "each page has its own reader": (_follows_alone, "feeds.py"),
}
"""Fault by what it means, and the tests that find it: a path below ``tests/web``, or the end of
the name of one of its files."""


def pytest_configure() -> None:
    """Break the build as ``WEB_FAULT`` says."""
    name = os.environ.get("WEB_FAULT")
    if name:
        FAULTS[name][0]()
