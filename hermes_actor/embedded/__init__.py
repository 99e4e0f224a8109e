"""Embedded mode: the writer as a thread of the calling process.

For tests and programs of one process. All SessionDB objects on one file share one writer; a
second process gets an error that names the holder.
"""

from __future__ import annotations

from hermes_actor.embedded.registry import share

__all__ = ["share"]
