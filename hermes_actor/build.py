"""Which build this is: the version, and a digest of the code that is running it.

Two checkouts of one version differ in the digest. ``versions`` tells which build is newer.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

import hermes_protocol
from hermes_actor._version import __version__

__all__ = ["build_id"]

_DIGEST_CHARACTERS = 12


@cache
def build_id() -> str:
    """``version+digest``. Reads every module of the package, so only an actor asks for it.

    Asked for at start: after an update the files on disk are no longer the code that runs.
    """
    digest = hashlib.blake2b(digest_size=16)
    for package in (Path(__file__).parent, Path(hermes_protocol.__file__).parent):
        for path in sorted(package.rglob("*.py")):
            digest.update(f"{package.name}/{path.relative_to(package)}\0".encode())
            digest.update(path.read_bytes())
    return f"{__version__}+{digest.hexdigest()[:_DIGEST_CHARACTERS]}"
