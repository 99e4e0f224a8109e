"""Sessions in an SQLite file, behind the actor that owns it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit

from hermes_actor.errors import BadConfig
from hermes_actor.session_db import SessionDB

__all__ = ["SQLiteSessionDBProvider"]


class SQLiteSessionDBProvider(SessionDB):
    """The provider ``sqlite``: a :class:`SessionDB` that is always a file.

    URLs are ``sqlite:///relative/path`` and ``sqlite:////absolute/path``; ``?mode=embedded`` runs
    the writer inside this process.
    """

    _is_file = True

    @classmethod
    def from_url(
        cls, url: str, *, settings: Mapping[str, Any] | None = None, timeout: float = 30.0
    ) -> Self:
        """Open the file that *url*, or a path without a scheme, names.

        Args:
            settings: Accepted for all providers; a file has none.
            timeout: As for :class:`SessionDB`.

        Raises:
            BadConfig: the URL names no file, or has an unknown parameter.

        Raises also what :class:`SessionDB` raises.
        """
        parts = urlsplit(url)
        if parts.scheme == "" and url:
            return cls(url, timeout=timeout)
        if parts.netloc or not parts.path.lstrip("/"):
            raise BadConfig(
                f"{url} names no file; write sqlite:///path or sqlite:////absolute/path"
            )
        query = parse_qs(parts.query)
        unknown = sorted(set(query) - {"mode"})
        if unknown:
            raise BadConfig(f"{url}: unknown parameter {unknown[0]}; there is only mode")
        mode = query.get("mode", ["actor"])[-1]
        return cls(unquote(parts.path[1:]), mode=mode, timeout=timeout)
