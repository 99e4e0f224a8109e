"""``hermes-actor tool``: what an agent can call, with JSON in and out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
import msgspec

from hermes_actor import exit_codes
from hermes_actor.cli.command_store import open_store
from hermes_actor.cli.options import db_option
from hermes_actor.cli.output.errors import CommandError
from hermes_actor.cli.output.formatting import print_json
from hermes_actor.config import load
from hermes_actor.settings import SEARCH_MAX_CONCURRENCY, SEARCH_TIMEOUT
from hermes_actor.tools.search_schema import SCHEMA
from hermes_actor.tools.session_search import session_search

__all__ = ["tool"]


@click.group()
def tool() -> None:
    """Tools for agents, with JSON in and out."""


@tool.command("session-search")
@click.argument("arguments", required=False)
@click.option("--schema", is_flag=True, help="Print the schema for function calling.")
@click.option(
    "--current-session", metavar="ID", help="Session that asks; its conversation is left out."
)
@db_option
def session_search_command(
    arguments: str | None, schema: bool, current_session: str | None, db: Path | None
) -> int:
    """Search earlier conversations.

    ARGUMENTS is a JSON object with the keys of the schema; without it, it is read from standard
    input. The answer is a JSON object on one line, also when something is wrong.

    Exit codes: 0 answered, 1 the answer says what is wrong.

    \b
    Examples:
      hermes-actor tool session-search --schema
      hermes-actor tool session-search '{"query": "parser AND fix", "limit": 2}'
      echo '{}' | hermes-actor tool session-search
    """
    if schema:
        print_json(SCHEMA)
        return exit_codes.OK
    text = sys.stdin.read() if arguments is None else arguments
    given = _arguments(text)
    if isinstance(given, str):
        return _failed(given)
    try:
        with open_store(db) as store:
            config = load(store.home, "auxiliary")
            workers = config.read(SEARCH_MAX_CONCURRENCY)
            seconds = config.read(SEARCH_TIMEOUT)
            answer = session_search(
                **given, db=store, current_session_id=current_session, max_concurrency=workers,
                summary_seconds=seconds,
            )  # fmt: skip
    except CommandError as error:
        return _failed(error.message)
    print(answer)
    return exit_codes.OK if msgspec.json.decode(answer)["success"] else exit_codes.REFUSED


def _failed(error: str) -> int:
    print_json({"error": error, "success": False})
    return exit_codes.REFUSED


def _arguments(text: str) -> dict[str, Any] | str:
    """The arguments, or what is wrong with them."""
    try:
        given = msgspec.json.decode(text or "{}")
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        return f"the arguments are not JSON: {error}"
    if not isinstance(given, dict):
        return "the arguments are not a JSON object"
    known = {*SCHEMA["parameters"]["properties"], "raw"}
    unknown = sorted(set(given) - known)
    return f"unknown arguments: {', '.join(unknown)}" if unknown else given
