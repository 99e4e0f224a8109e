"""Drop-in for the module ``hermes_state``: ``sys.modules["hermes_state"] = hermes_state``."""

from __future__ import annotations

import logging

from hermes_actor.compat.init_errors import format_unavailable as format_session_db_unavailable
from hermes_actor.compat.init_errors import last_init_error as get_last_init_error
from hermes_actor.compat.init_errors import set_last_init_error as _set_last_init_error
from hermes_actor.journal_mode import WAL_INCOMPAT_MARKERS as _WAL_INCOMPAT_MARKERS
from hermes_actor.journal_mode import apply_wal_with_fallback
from hermes_actor.journal_mode import warned_labels as _wal_fallback_warned_paths
from hermes_actor.session_db import DEFAULT_DB_PATH, SessionDB
from hermes_actor.sqlite import sqlite3
from hermes_actor.store.schema import FTS_SQL, FTS_TRIGRAM_SQL, SCHEMA_SQL, SCHEMA_VERSION

__all__ = [
    "DEFAULT_DB_PATH", "FTS_SQL", "FTS_TRIGRAM_SQL", "SCHEMA_SQL", "SCHEMA_VERSION",
    "_WAL_INCOMPAT_MARKERS", "SessionDB", "_set_last_init_error", "_wal_fallback_warned_paths",
    "apply_wal_with_fallback", "format_session_db_unavailable", "get_last_init_error", "logger",
    "sqlite3",
]  # fmt: skip

logger = logging.getLogger("hermes_state")
