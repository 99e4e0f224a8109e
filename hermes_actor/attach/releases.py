"""Releases of hermes-agent that are tested while attached."""

from __future__ import annotations

__all__ = ["TESTED_RELEASES"]

TESTED_RELEASES = ("0.14.0", "0.15.2", "0.16.0", "0.17.0", "0.18.2", "0.19.0")
"""The first and the last as whole programs, those between by their stores."""
