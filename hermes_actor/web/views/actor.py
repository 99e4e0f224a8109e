"""The actor of a store: its status document, and the newest lines of its log."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from hermes_actor.client.control import look
from hermes_actor.providers.resolve import StoreSpec, provider_class
from hermes_actor.store.rows import Row
from hermes_actor.web.stores import ShownStore
from hermes_actor.web.views.view import View
from hermes_protocol.status import Status

__all__ = ["VIEWS", "figures_of", "last_lines"]

_LOG_BYTES = 16 * 1024


def _actor(shown: ShownStore, _asked: Row) -> Row:
    # Before all figures: what is committed in between is shown twice, and never missed.
    newest = shown.newest_change()
    if shown.paths is None:
        assert shown.server is not None
        server = _server(shown.server)
        return {"newest": newest, "figures": None, "why": "", "log": [], "server": server}
    seen = look(shown.paths)
    return {
        "newest": newest,
        "figures": figures_of(seen) if isinstance(seen, Status) else None,
        "why": seen if isinstance(seen, str) else "",
        "log": last_lines(shown.paths.log),
        "server": None,
    }


def figures_of(status: Status) -> Row:
    """Return the status as the page shows it: without our own connections, ages in seconds."""
    mine, now = os.getpid(), time.time()
    document = status.document()
    document["connections"] = [one for one in document["connections"] if one["pid"] != mine]
    document["lease_text"] = "" if status.lease is None else status.lease.text(now)
    return document


def last_lines(log: Path) -> list[str]:
    """Return the newest lines of a log; none if there is no log."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _LOG_BYTES))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return []
    return lines[1:] if size > _LOG_BYTES else lines


def _server(chosen: StoreSpec) -> Row:
    """Return the status of a server, or what every provider can report."""
    ask: Any = getattr(provider_class(chosen.name), "status", None)
    if ask is None:
        return {"phase": "serving", "provider": chosen.name}
    found: Row = ask(chosen.url, settings=chosen.settings)
    return found


VIEWS = (
    View("actor", "Actor", "The actor of the store as it works: its status, and its log.", _actor,
         kind=None),
)  # fmt: skip
