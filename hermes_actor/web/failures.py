"""Errors as answers: the status of HTTP, and the same facts as the Python API."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from http import HTTPStatus

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from hermes_actor import errors
from hermes_actor.store.rows import Row
from hermes_actor.store.sessions.filters import MissingColumn
from hermes_actor.web.security import BodyTooLarge

__all__ = ["Handler", "document_of", "explained", "status_of"]

_log = logging.getLogger("hermes_actor.web")

Handler = Callable[[Request], Awaitable[Response]]

_REFUSALS = (errors.HermesActorError, ValueError, MissingColumn)
"""Errors that tell a caller something; any other is a fault of these pages. A KeyError as
well: it would pass for a page that does not exist."""

_STATUS: tuple[tuple[type[Exception], HTTPStatus], ...] = (
    (errors.NotFound, HTTPStatus.NOT_FOUND),
    (errors.UnknownSession, HTTPStatus.NOT_FOUND),
    (errors.NotAllowed, HTTPStatus.FORBIDDEN),
    (errors.PermissionDenied, HTTPStatus.FORBIDDEN),
    (errors.ReadOnly, HTTPStatus.FORBIDDEN),
    (errors.BadValue, HTTPStatus.BAD_REQUEST),
    (errors.RequestError, HTTPStatus.CONFLICT),
    (errors.HandoffFailed, HTTPStatus.CONFLICT),
    (errors.DeadlineExceeded, HTTPStatus.GATEWAY_TIMEOUT),
    (errors.IndexBehind, HTTPStatus.SERVICE_UNAVAILABLE),
    (errors.Busy, HTTPStatus.SERVICE_UNAVAILABLE),
    (errors.OpenError, HTTPStatus.SERVICE_UNAVAILABLE),
    (BodyTooLarge, HTTPStatus.REQUEST_ENTITY_TOO_LARGE),
    (errors.HermesActorError, HTTPStatus.INTERNAL_SERVER_ERROR),
    (ValueError, HTTPStatus.BAD_REQUEST),
    (MissingColumn, HTTPStatus.CONFLICT),
)
"""The first class that an error is one of decides."""

_FAILED = "this page has failed; the terminal of hermes-actor web says why"
"""Text of a fault of these pages, which holds nothing of the store."""


_RETRY_SECONDS = "2"
"""Pause before a request that was refused for want of room is tried again."""


def explained(handler: Handler, shown: Callable[[Request, Row, HTTPStatus], Response]) -> Handler:
    """Return *handler* with its errors as answers: *shown* makes one of facts and a status."""

    async def answered(request: Request) -> Response:
        try:
            return await handler(request)
        except _REFUSALS as error:
            status = status_of(error)
            answer = shown(request, document_of(error), status)
        except ClientDisconnect:
            return Response(status_code=HTTPStatus.BAD_REQUEST)  # the visitor has left
        except Exception:
            # One bad page ends alone.
            _log.exception("%s failed", request.url.path)
            status = HTTPStatus.INTERNAL_SERVER_ERROR
            answer = shown(request, document_of(RuntimeError(_FAILED)), status)
        if status is HTTPStatus.SERVICE_UNAVAILABLE:
            answer.headers["Retry-After"] = _RETRY_SECONDS
        return answer

    return answered


def status_of(error: Exception) -> HTTPStatus:
    """Return the status of HTTP for an error."""
    for kind, status in _STATUS:
        if isinstance(error, kind):
            return status
    return HTTPStatus.INTERNAL_SERVER_ERROR


def document_of(error: Exception) -> Row:
    """Return an error as JSON has it: class, code, message, and whether its change was made."""
    return {
        "error": {
            "class": type(error).__name__,
            "code": getattr(error, "code", "value"),
            "message": str(error),
            "executed": getattr(error, "executed", "no"),
        }
    }
