"""The text of a title: cleaning it, and writing it into a pattern of LIKE. No SQL of its own."""

from __future__ import annotations

import re
from functools import cache

__all__ = ["MAX_TITLE_LENGTH", "escape_like", "sanitize_title"]

MAX_TITLE_LENGTH = 100

# Control characters except tab, line feed and carriage return (those are whitespace and become a
# space), then what is invisible or turns the direction of text: zero-width characters, line and
# paragraph separators, embeddings and isolates, the byte order mark, annotation anchors.
_REMOVED = (
    "\x00-\x08\x0b\x0c\x0e-\x1f\x7f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\ufffc"
)


@cache
def _patterns() -> tuple[re.Pattern[str], re.Pattern[str]]:
    return re.compile(f"[{_REMOVED}]"), re.compile(r"\s+")


def sanitize_title(title: str | None) -> str | None:
    """Return the clean title; ``None`` if nothing is left.

    Raises ``ValueError`` if more than :data:`MAX_TITLE_LENGTH` characters are left.
    """
    if not title:
        return None
    removed, blanks = _patterns()
    clean = blanks.sub(" ", removed.sub("", title)).strip()
    if len(clean) > MAX_TITLE_LENGTH:
        raise ValueError(
            f"Title too long: {len(clean)} characters, the maximum is {MAX_TITLE_LENGTH}"
        )
    return clean or None


def escape_like(text: str) -> str:
    r"""Return *text* with LIKE's wildcards made literal, for use with ``ESCAPE '\'``."""
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
