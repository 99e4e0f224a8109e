"""Which of two builds is newer: the one with the higher version."""

from __future__ import annotations

__all__ = ["is_newer", "version_of"]

_MAX_DIGITS = 18
"""Far more than a version has. Builds come over the wire, and ``int`` refuses some 4,300 digits."""


def version_of(build: str) -> tuple[int, ...]:
    """The version of a build as numbers that compare; empty, below all others, if it has none."""
    numbers = build.partition("+")[0].split(".")
    if not all(number.isdecimal() and len(number) <= _MAX_DIGITS for number in numbers):
        return ()
    return tuple(map(int, numbers))


def is_newer(build: str, than: str) -> bool:
    """Whether the version of *build* is higher. Two builds of one version are not."""
    return version_of(build) > version_of(than)
