"""The JSON API in words that programs read: an OpenAPI document, made from views and actions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hermes_actor._version import __version__
from hermes_actor.web.actions import ACTIONS, Action
from hermes_actor.web.parameters import Parameter
from hermes_actor.web.views import VIEWS, View

__all__ = ["document"]

_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["class", "code", "message", "executed"],
            "properties": {
                "class": {"type": "string", "description": "Class of the error in Python."},
                "code": {"type": "string"},
                "message": {"type": "string"},
                "executed": {"enum": ["no", "yes", "unknown"]},
            },
        }
    },
}

_STORE = {"name": "store", "in": "path", "required": True, "schema": {"type": "string"}}


def document() -> dict[str, Any]:
    """Return the description of every call."""
    paths: dict[str, Any] = {
        "/api/stores": {"get": _operation("stores", "The stores that are served.")},
    }
    for view in VIEWS.values():
        paths[f"/api/stores/{{store}}/{view.name}"] = {"get": _of_view(view)}
    for action in ACTIONS.values():
        paths[f"/api/stores/{{store}}/do/{action.name}"] = {"post": _of_action(action)}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "hermes-actor",
            "version": __version__,
            "description": "Stores of an agent: what they hold, and what can be done with them.",
        },
        "components": {
            "schemas": {"Error": _ERROR},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
        "paths": paths,
    }


def _operation(name: str, words: str) -> dict[str, Any]:
    failed = {"$ref": "#/components/schemas/Error"}
    return {
        "operationId": name,
        "summary": words,
        "responses": {
            "200": {"description": "Done.", "content": {"application/json": {}}},
            "default": {
                "description": "An error, the same as in Python.",
                "content": {"application/json": {"schema": failed}},
            },
        },
    }


def _of_view(view: View) -> dict[str, Any]:
    given = [
        {"name": one.name, "in": "query", "required": one.needed, "schema": one.schema()}
        for one in view.parameters
    ]
    return {**_operation(view.name, view.words), "parameters": [_STORE, *given]}


def _of_action(action: Action) -> dict[str, Any]:
    operation = _operation(action.name, action.words)
    operation["responses"]["428"] = {
        "description": "Not confirmed: what would be done. Nothing was done.",
        "content": {"application/json": {}},
    }
    body = {"application/json": {"schema": _body(action.parameters)}}
    return {
        **operation, "parameters": [_STORE], "requestBody": {"required": True, "content": body},
    }  # fmt: skip


def _body(parameters: Sequence[Parameter]) -> dict[str, Any]:
    confirm = {
        "type": "boolean",
        "description": "True carries it out; without it the answer says what would be done.",
    }
    return {
        "type": "object",
        "required": [one.name for one in parameters if one.needed],
        "properties": {**{one.name: one.schema() for one in parameters}, "confirm": confirm},
    }
