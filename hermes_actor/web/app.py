"""The application: routes, the guard before them, and what runs while it serves."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from http import HTTPStatus

import anyio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from hermes_actor.errors import NotFound
from hermes_actor.web import api, pages
from hermes_actor.web.failures import document_of
from hermes_actor.web.security import Guard
from hermes_actor.web.site import Site

__all__ = ["create_app"]


def create_app(site: Site) -> ASGIApp:
    """Return the application of *site*. It closes the stores when it ends."""

    @contextlib.asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        async with anyio.create_task_group() as tasks:
            site.tasks = tasks
            yield
            tasks.cancel_scope.cancel()
        await anyio.to_thread.run_sync(site.stores.close)

    app = Starlette(
        routes=[*api.ROUTES, *pages.ROUTES], lifespan=lifespan,
        exception_handlers={404: _missing},
    )  # fmt: skip
    app.state.site = site
    return Guard(app, site.access)


async def _missing(request: Request, _error: Exception) -> Response:
    error = NotFound("there is no such page")
    if request.url.path.startswith("/api/"):
        return api.answer(document_of(error), HTTPStatus.NOT_FOUND)
    return pages.failed(request, document_of(error), HTTPStatus.NOT_FOUND)
