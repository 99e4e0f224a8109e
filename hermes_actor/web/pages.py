"""Pages: every view as HTML, forms that confirm actions, exports, live events."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs, quote

import anyio
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from hermes_actor.client.control import has_owner
from hermes_actor.errors import NotAllowed, NotFound
from hermes_actor.store.rows import Row
from hermes_actor.tools.transcript import transcript
from hermes_actor.web.actions import ACTIONS, Action, perform, previewed
from hermes_actor.web.failures import explained
from hermes_actor.web.live import LiveStore
from hermes_actor.web.parameters import values_of
from hermes_actor.web.security import equal
from hermes_actor.web.site import site_of
from hermes_actor.web.stores import ShownStore
from hermes_actor.web.views import VIEWS

__all__ = ["ROUTES", "failed"]

_FIRST_VIEW = {"sessions": "sessions", "agents": "agents"}
"""The page that a store begins with, by kind; others begin with their actor."""


def failed(request: Request, facts: Row, status: HTTPStatus) -> Response:
    """Return the page of an error."""
    page = site_of(request).page(request, "error.html", status=status, **facts["error"])
    return _html(page, status)


def _html(page: bytes, status: int = 200) -> Response:
    return Response(page, status, media_type="text/html; charset=utf-8")


def _path(store: ShownStore) -> str:
    return f"/s/{quote(store.name, safe='~')}"


async def _home(request: Request) -> Response:
    site = site_of(request)

    def read() -> bytes:
        stores = [
            {"store": one, "path": _path(one), "first": _FIRST_VIEW.get(one.kind, "actor"),
             "running": one.paths is not None and has_owner(one.paths)}
            for one in site.stores.all()
        ]  # fmt: skip
        return site.page(request, "home.html", stores=stores, home=str(site.stores.home))

    return _html(await anyio.to_thread.run_sync(read))


async def _first(request: Request) -> Response:
    store = await site_of(request).store_of(request)
    return RedirectResponse(f"{_path(store)}/{_FIRST_VIEW.get(store.kind, 'actor')}", 303)


async def _view(request: Request) -> Response:
    site, store = site_of(request), await site_of(request).store_of(request)
    view = VIEWS.get(request.path_params["view"])
    if view is None or view.kind not in (None, store.kind):
        raise NotFound(f"this store has no page {request.path_params['view'][:80]!r}")
    asked = values_of(view.parameters, request.query_params)

    def read() -> bytes:
        found = view.read(store, asked)
        return site.page(
            request, f"{view.name}.html", store, view=view, asked=asked, path=_path(store), **found
        )

    return _html(await store.read(read))


async def _message(request: Request) -> Response:
    """Show one message as plain text, all of it."""
    store, view = await site_of(request).store_of(request), VIEWS["message"]
    found = await store.read(view.read, store, values_of(view.parameters, request.query_params))
    text = found["message"]["text"].encode("utf-8", "replace")
    return Response(text, media_type="text/plain; charset=utf-8")


async def _export(request: Request) -> Response:
    store, view = await site_of(request).store_of(request), VIEWS["export"]
    found = await store.read(view.read, store, values_of(view.parameters, request.query_params))
    if request.query_params.get("format") == "text":
        data, kind, ending = (
            transcript(found["messages"]).encode("utf-8", "replace"),
            "plain",
            "txt",
        )
    else:
        text = json.dumps(found, indent=2, default=str)
        data, kind, ending = text.encode("ascii"), "json", "json"
    media = "text/plain; charset=utf-8" if kind == "plain" else "application/json"
    answer = Response(data, media_type=media)
    # The id is data of others: no part of the name.
    answer.headers["Content-Disposition"] = f'attachment; filename="session.{ending}"'
    return answer


async def _confirm(request: Request) -> Response:
    """Ask before an action is carried out, and show what it concerns."""
    site, store, action = (
        site_of(request),
        await site_of(request).store_of(request),
        _action(request),
    )
    values = values_of(action.parameters, request.query_params)
    preview = await store.read(previewed, action, store, values)
    page = site.page(
        request, "confirm.html", store, action=action, values=values, path=_path(store),
        **preview._asdict(),
    )  # fmt: skip
    return _html(page)


async def _perform(request: Request) -> Response:
    site, store, action = (
        site_of(request),
        await site_of(request).store_of(request),
        _action(request),
    )
    fields = parse_qs((await request.body()).decode("utf-8", "replace"), keep_blank_values=True)
    given = {name: texts[-1] for name, texts in fields.items()}
    if not equal(given.get("csrf", ""), site.access.csrf):
        raise NotAllowed("this form is not one of these pages, or an old one; nothing was done")
    values = values_of(action.parameters, given)
    done = await store.change(perform, action, store, values)
    back = f"{_path(store)}/{action.lands(values)}"
    separator = "&" if "?" in back else "?"
    return RedirectResponse(f"{back}{separator}note={site.note(done['text'])}", 303)


def _action(request: Request) -> Action:
    action = ACTIONS.get(request.path_params["action"])
    if action is None:
        raise NotFound(f"there is no action {request.path_params['action'][:80]!r}")
    return action


async def _events(request: Request) -> Response:
    store = await site_of(request).store_of(request)
    live = site_of(request).live(store)
    if live.is_full:
        return PlainTextResponse("too many live pages of this store are open\n", 503)
    # What a page names that has seen events, then what the page was rendered with.
    given = (request.headers.get("last-event-id", ""), request.query_params.get("after", ""))
    for text in given:
        if text.isascii() and text.isdecimal() and len(text) < 19:
            return EventStream(live, int(text))
    return EventStream(live, await store.read(store.newest_change))


class EventStream(Response):
    """Server-sent events until the browser leaves."""

    def __init__(self, live: LiveStore, after: int | None) -> None:
        super().__init__(media_type="text/event-stream")
        del self.headers["content-length"]
        self._live, self._after = live, after

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def leave() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            tasks.cancel_scope.cancel()

        async with self._live.page(self._after) as page, anyio.create_task_group() as tasks:
            tasks.start_soon(leave)
            start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
            await send(start)
            # At once, so that the browser knows that it is connected.
            data = b"retry: 2000\n\n"
            while data:
                await send({"type": "http.response.body", "body": data, "more_body": True})
                data = await page.get()
            await send({"type": "http.response.body", "body": b""})
            tasks.cancel_scope.cancel()


async def _static(request: Request) -> Response:
    return site_of(request).static(request.path_params["file"])


async def _api(request: Request) -> Response:
    return _html(site_of(request).page(request, "api.html"))


def _route(path: str, handler: Any, **options: Any) -> Route:
    return Route(path, explained(handler, failed), **options)


ROUTES = (
    Route("/static/{file}", _static),
    _route("/", _home),
    _route("/api", _api),
    _route("/s/{store}", _first),
    _route("/s/{store}/events", _events),
    _route("/s/{store}/message", _message),
    _route("/s/{store}/export", _export),
    _route("/s/{store}/do/{action}", _confirm, methods=["GET"]),
    _route("/s/{store}/do/{action}", _perform, methods=["POST"]),
    _route("/s/{store}/{view}", _view),
)
"""The pages."""
