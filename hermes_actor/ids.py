"""Session ids: the second of their making, and random digits."""

from __future__ import annotations

import os
import time

__all__ = ["new_session_id"]


def new_session_id(now: float | None = None, hex_len: int = 8) -> str:
    """``YYYYMMDD_HHMMSS_<hex>`` in local time. Ids are opaque: no code reads the time from one."""
    second = time.strftime("%Y%m%d_%H%M%S", time.localtime(time.time() if now is None else now))
    return f"{second}_{os.urandom((hex_len + 1) // 2).hex()[:hex_len]}"
