"""Templates, and how values of a store are written into them.

Every value is escaped by the templates; none is marked as safe. Control characters are made
visible, and half characters replaced, so that a page is always UTF-8.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from hermes_actor._version import __version__
from hermes_actor.tools.timestamps import in_words
from hermes_actor.web import charts
from hermes_actor.web.parameters import LONGEST_TEXT

__all__ = ["FOLDER", "environment", "render"]

FOLDER = Path(__file__).parent

_ISO = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class _Long(str):
    """A text that a view has cut already, or that is shown whole."""

    __slots__ = ()


def plain(value: Any) -> Any:
    """Return a text as a page can take it.

    Without control characters, which neither markup nor a reader can take; and cut, unless the
    template says that it may be long: ids and names in a store have no limit.
    """
    if not isinstance(value, str):
        return "" if value is None else value
    if isinstance(value, Markup):
        return value  # what a macro has made, and escaped
    if len(value) > LONGEST_TEXT and not isinstance(value, _Long):
        value = value[:LONGEST_TEXT] + "…"
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", value)


def _date(moment: Any) -> str:
    return in_words(moment, "%Y-%m-%d %H:%M", "—")


def _machine_date(moment: Any) -> str:
    try:
        return datetime.fromtimestamp(float(moment), UTC).isoformat(timespec="seconds")
    except (TypeError, ValueError, OverflowError, OSError):
        return ""


def _moment(text: Any) -> Any:
    """Return a time of an agent store, text in UTC, as people write it."""
    return str(text)[:16].replace("T", " ") if _ISO.fullmatch(str(text)) else text


def _number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int | float) else "—"


def _money(value: Any) -> str:
    return f"${value:,.4f}" if isinstance(value, int | float) else "—"


def _size(value: Any) -> str:
    size = float(value or 0)
    for unit in ("bytes", "KiB", "MiB"):
        if size < 1024:
            return f"{size:,.0f} {unit}"
        size /= 1024
    return f"{size:,.1f} GiB"


def _duration(seconds: Any) -> str:
    rest = int(seconds or 0)
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if rest >= size:
            return f"{rest / size:.1f} {unit}"
    return f"{rest} s"


def _query(**values: Any) -> str:
    """Return values as the query of an address; those that are ``None`` or False are left out."""
    given = {
        # A character more than a value may have: what is longer is refused, and not another one.
        name: "1" if value is True else str(value)[: LONGEST_TEXT + 1]
        for name, value in values.items()
        if value is not None and value is not False and value != ""
    }
    return _Long(urlencode(given, errors="replace"))


def _pretty(value: Any) -> str:
    return _Long(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def environment() -> Environment:
    """Return the templates with their filters."""
    made = Environment(
        loader=FileSystemLoader(FOLDER / "templates"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, finalize=plain, auto_reload=False,
    )  # fmt: skip
    made.filters |= {
        "date": _date, "machine_date": _machine_date, "moment": _moment, "number": _number,
        "long": _Long, "money": _money, "size": _size, "duration": _duration, "pretty": _pretty,
    }  # fmt: skip
    made.globals |= {
        "query": _query, "columns": charts.columns, "rows": charts.rows, "version": __version__,
    }  # fmt: skip
    return made


def render(templates: Environment, template: str, **values: Any) -> bytes:
    """Return a page, or a part of one, as UTF-8."""
    return templates.get_template(template).render(**values).encode("utf-8", "replace")
