"""State that all requests share: stores, templates, access, live pages, notes."""

from __future__ import annotations

import hashlib
import secrets
from collections import OrderedDict
from typing import Any

import anyio
from anyio.abc import TaskGroup
from starlette.requests import Request
from starlette.responses import Response

from hermes_actor.web.actions import ACTIONS
from hermes_actor.web.feed import Seen
from hermes_actor.web.live import LiveStore
from hermes_actor.web.markup import FOLDER, environment, render
from hermes_actor.web.security import Access
from hermes_actor.web.stores import ShownStore, Stores
from hermes_actor.web.views import VIEWS

__all__ = ["STATIC", "Site"]

_NOTES = 100
"""Results of actions that wait to be shown by the next page."""

STATIC = {
    file.name: file.read_bytes() for file in sorted((FOLDER / "static").iterdir()) if file.is_file()
}
"""Files that pages load, by name."""

_DIGESTS = {name: hashlib.sha256(data).hexdigest()[:10] for name, data in STATIC.items()}


class Site:
    """One run of ``hermes-actor web``."""

    def __init__(self, stores: Stores, access: Access) -> None:
        self.stores, self.access = stores, access
        self.tasks: TaskGroup | None = None
        """The tasks of live pages, while the server runs."""
        self._templates = environment()
        self._templates.globals |= {
            "csrf": access.csrf,
            "read_only": stores.read_only,
            "static": lambda name: f"/static/{name}?v={_DIGESTS[name]}",
            "views": VIEWS,
            "actions": ACTIONS,
        }
        self._notes: OrderedDict[str, str] = OrderedDict()
        self._live: dict[str, LiveStore] = {}

    def render(self, template: str, **values: Any) -> bytes:
        """Return a page as UTF-8. Safe in any thread."""
        return render(self._templates, template, **values)

    def page(
        self, request: Request, template: str, store: ShownStore | None = None, **values: Any
    ) -> bytes:
        """Return a whole page, with its place in the menu and the note it was called with."""
        note = self._notes.get(request.query_params.get("note", ""))
        return self.render(template, store=store, note=note, **values)

    async def store_of(self, request: Request) -> ShownStore:
        """Return the store that the address of a request names. Raises :class:`NotFound`."""
        # In a thread: an unknown name is looked for in all folders of the home.
        return await anyio.to_thread.run_sync(self.stores.named, request.path_params["store"])

    def note(self, text: str) -> str:
        """Keep a result for the next page and return its key."""
        key = secrets.token_urlsafe(9)
        self._notes[key] = text
        while len(self._notes) > _NOTES:
            self._notes.popitem(last=False)
        return key

    def live(self, store: ShownStore) -> LiveStore:
        """Return the live pages of a store."""
        assert self.tasks is not None
        known = self._live.get(store.name)
        if known is None or known.store is not store:
            if known is not None:
                known.end()  # the file of this name holds something else now
            known = self._live[store.name] = LiveStore(store, self.tasks, self._part_of(store))
        return known

    def end_live(self) -> None:
        """End every live page, so that the server can end. Safe in a signal handler."""
        for live in self._live.values():
            live.end()

    def _part_of(self, store: ShownStore) -> Any:
        def part(name: str, seen: Seen) -> bytes:
            return self.render(f"live_{name}.html", store=store, **seen._asdict())

        return part

    def static(self, name: str) -> Response:
        """Return a file that pages load; addresses change with its content."""
        if name not in STATIC:
            return Response("there is no such file\n", 404, media_type="text/plain")
        kinds = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
        answer = Response(STATIC[name], media_type=kinds[name.rpartition(".")[2]])
        answer.headers["Cache-Control"] = "max-age=86400"
        return answer


def site_of(request: Request) -> Site:
    """Return what the requests of an application share."""
    found: Site = request.app.state.site
    return found
