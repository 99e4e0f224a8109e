"""The JSON API: every view, and every action with its confirmation."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any

import anyio
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from hermes_actor.errors import BadValue, NotAllowed, NotFound
from hermes_actor.web import openapi
from hermes_actor.web.actions import ACTIONS, perform, previewed
from hermes_actor.web.failures import Handler, explained
from hermes_actor.web.parameters import values_of
from hermes_actor.web.security import equal
from hermes_actor.web.site import site_of
from hermes_actor.web.views import VIEWS

__all__ = ["ROUTES", "answer"]


def answer(document: Any, status: int = HTTPStatus.OK) -> Response:
    """Return an answer of the API."""
    # ASCII: half characters and control characters of a message travel as escapes.
    text = json.dumps(document, default=_plain)
    return Response(text.encode("ascii"), status, media_type="application/json")


def _plain(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes) else str(value)


def _explained(handler: Handler) -> Handler:
    return explained(handler, lambda _request, facts, status: answer(facts, status))


async def _stores(request: Request) -> Response:
    stores = await anyio.to_thread.run_sync(site_of(request).stores.all)
    return answer([{"name": one.name, "kind": one.kind, "address": one.address} for one in stores])


async def _view(request: Request) -> Response:
    view = VIEWS.get(request.path_params["view"])
    if view is None:
        raise NotFound(f"there is no view {request.path_params['view'][:80]!r}")
    store = await site_of(request).store_of(request)
    values = values_of(view.parameters, request.query_params)
    return answer(await store.read(view.read, store, values))


async def _action(request: Request) -> Response:
    site, action = site_of(request), ACTIONS.get(request.path_params["action"])
    if action is None:
        raise NotFound(f"there is no action {request.path_params['action'][:80]!r}")
    given = await _body(request, site.access.csrf)
    store = await site_of(request).store_of(request)
    values = values_of(action.parameters, given)
    if given.get("confirm") is not True:
        preview = await store.read(previewed, action, store, values)
        return answer({"confirm": preview._asdict()}, HTTPStatus.PRECONDITION_REQUIRED)
    return answer(await store.change(perform, action, store, values))


async def _body(request: Request, csrf: str) -> dict[str, Any]:
    """Return the JSON of a request. Raises :class:`NotAllowed` without the CSRF token."""
    given = request.headers.get("x-csrf-token", "")
    # A program with the bearer token was not led here by a page of another site.
    if not request.scope["by_bearer"] and not equal(given, csrf):
        raise NotAllowed("the header X-CSRF-Token is missing or wrong; nothing was done")
    if request.headers.get("content-type", "").partition(";")[0] != "application/json":
        raise BadValue("send JSON: Content-Type: application/json")
    try:
        body = json.loads(await request.body() or b"{}")
    except (ValueError, RecursionError) as error:
        raise BadValue(f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise BadValue("the body is a JSON object")
    return body


async def _openapi(_request: Request) -> Response:
    return answer(openapi.document())


ROUTES = (
    Route("/api/openapi.json", _openapi),
    Route("/api/stores", _explained(_stores)),
    Route("/api/stores/{store}/do/{action}", _explained(_action), methods=["POST"]),
    Route("/api/stores/{store}/{view}", _explained(_view)),
)
"""The calls of the API."""
