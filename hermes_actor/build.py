"""The build of the running code: its version and a digest, and the order of builds.

Two checkouts of one version differ in the digest; the one with the higher version is newer.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from hermes_actor._version import __version__

__all__ = ["build_id", "is_newer", "version_of"]

_DIGEST_CHARACTERS = 12

_MAX_DIGITS = 18
"""Far more than a version has. Builds come over the wire, and ``int`` refuses some 4,300 digits."""


@cache
def build_id() -> str:
    """Return ``version+digest``. Reads every module of the package, so only an actor calls it.

    Called at start: after an update the files on disk are no longer the code that runs.
    """
    import hashlib  # late: clients compare versions and never need a digest

    import hermes_protocol

    digest = hashlib.blake2b(digest_size=16)
    for package in (Path(__file__).parent, Path(hermes_protocol.__file__).parent):
        for path in sorted(package.rglob("*.py")):
            digest.update(f"{package.name}/{path.relative_to(package)}\0".encode())
            digest.update(path.read_bytes())
    return f"{__version__}+{digest.hexdigest()[:_DIGEST_CHARACTERS]}"


def version_of(build: str) -> tuple[int, ...]:
    """Return the version of a build as numbers that compare; empty, below all others, if none."""
    numbers = build.partition("+")[0].split(".")
    if not all(number.isdecimal() and len(number) <= _MAX_DIGITS for number in numbers):
        return ()
    return tuple(map(int, numbers))


def is_newer(build: str, than: str) -> bool:
    """Return True if the version of *build* is higher. Two builds of one version are equal."""
    return version_of(build) > version_of(than)
