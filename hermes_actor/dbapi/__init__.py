"""The ``sqlite3`` of programs that share a file: its names, and connections with one writer.

``from hermes_actor import dbapi as sqlite3`` is all that a program needs. :func:`connect` returns
connections whose reads run here and whose writes are made by the actor of the file; every other
name is the one of the standard module.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from hermes_actor.sqlite import sqlite3 as _native

if TYPE_CHECKING:
    from sqlite3 import *  # noqa: F403 - every name, as at run time

from hermes_actor.dbapi.connection import Connection as Connection
from hermes_actor.dbapi.connection import connect as connect  # type: ignore[no-redef]
from hermes_actor.dbapi.cursor import Cursor as Cursor

__all__ = [*(name for name in dir(_native) if not name.startswith("_"))]

globals().update(
    {
        name: getattr(_native, name)
        for name in vars(_native)
        if not name.startswith("_") and name not in ("Connection", "Cursor", "connect", "dbapi2")
    }
)

dbapi2 = sys.modules[__name__]
"""This module, for programs that use ``sqlite3`` by its second name."""

if hasattr(_native, "__getattr__"):
    # Names that the standard module makes up when they are asked for, with a warning that must
    # point to the line that asks.
    __getattr__ = _native.__getattr__
