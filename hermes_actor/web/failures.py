"""Errors as answers: the status of HTTP, and the same facts as the Python API."""

from __future__ import annotations

from http import HTTPStatus

from hermes_actor import errors
from hermes_actor.store.rows import Row
from hermes_actor.store.sessions.filters import MissingColumn

__all__ = ["FAILED", "REFUSALS", "document_of", "status_of"]

REFUSALS = (errors.HermesActorError, ValueError, LookupError, MissingColumn)
"""Errors that tell a caller something; any other is a fault of these pages."""

_STATUS: tuple[tuple[type[Exception], HTTPStatus], ...] = (
    (errors.NotFound, HTTPStatus.NOT_FOUND),
    (errors.UnknownSession, HTTPStatus.NOT_FOUND),
    (errors.NotAllowed, HTTPStatus.FORBIDDEN),
    (errors.PermissionDenied, HTTPStatus.FORBIDDEN),
    (errors.ReadOnly, HTTPStatus.FORBIDDEN),
    (errors.BadValue, HTTPStatus.BAD_REQUEST),
    (errors.RequestError, HTTPStatus.CONFLICT),
    (errors.HandoffFailed, HTTPStatus.CONFLICT),
    (errors.DeadlineExceeded, HTTPStatus.SERVICE_UNAVAILABLE),
    (errors.IndexBehind, HTTPStatus.SERVICE_UNAVAILABLE),
    (errors.Busy, HTTPStatus.SERVICE_UNAVAILABLE),
    (errors.OpenError, HTTPStatus.SERVICE_UNAVAILABLE),
    (errors.HermesActorError, HTTPStatus.INTERNAL_SERVER_ERROR),
    (ValueError, HTTPStatus.BAD_REQUEST),
    (LookupError, HTTPStatus.NOT_FOUND),
    (MissingColumn, HTTPStatus.CONFLICT),
)
"""The first class that an error is one of decides."""


FAILED = "this page has failed; the terminal of hermes-actor web says why"
"""Text of a fault of these pages, which holds nothing of the store."""


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
