"""The environment of an actor: of the starter's, what Python itself needs, and the few settings.

The actor must not depend on who happened to start it.
"""

from __future__ import annotations

import contextlib
import os
import site
from collections.abc import Iterator
from pathlib import Path

import msgspec

import hermes_protocol
from hermes_actor.system.interpreter import library_variables

__all__ = ["actor_environment", "interpreter_variables"]

_KEPT: tuple[str, ...] = (
    "PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TZ",
    "HERMES_ACTOR_IDLE_EXIT", "HERMES_ACTOR_DRAIN_SECONDS", "HERMES_ACTOR_PRIVATE_SQL",
    "HERMES_ACTOR_RESCUE", "XDG_RUNTIME_DIR", "XDG_STATE_HOME",
)  # fmt: skip


def actor_environment() -> dict[str, str]:
    """Return the variables that an actor is started with."""
    # A list of what is kept, not of what is removed: any program may be the starter, with secrets
    # under any name, and the actor outlives it.
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    return {**kept, **interpreter_variables()}


def interpreter_variables() -> dict[str, str]:
    """Return the variables without which this interpreter would not start elsewhere, or would not
    find this package and what comes with it."""
    found, paths = library_variables(), os.pathsep.join(_module_paths())
    return {**found, "PYTHONPATH": paths} if paths else found


def _module_paths() -> list[str]:
    """The folders of this package and of what comes with it, if a plain interpreter would not look
    there: they were found through ``PYTHONPATH``, which is then kept as it is, or the program has
    put them on ``sys.path`` itself."""
    folders = [
        str(Path(file).parents[depth])
        for file, depth in ((__file__, 2), (hermes_protocol.__file__, 1), (msgspec.__file__, 1))
    ]
    given = [os.path.abspath(p) for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    # Nothing here came through PYTHONPATH, so the actor does not need it.
    if not set(folders) & set(given):
        given = []
    known = {*given, *_site_paths()}
    return [*given, *(one for one in dict.fromkeys(folders) if one not in known)]


def _site_paths() -> Iterator[str]:
    """Yield the folders in which a plain interpreter finds installed packages."""
    folders = site.getsitepackages()
    if site.ENABLE_USER_SITE:
        folders.append(site.getusersitepackages())
    for folder in folders:
        yield os.path.abspath(folder)
        with contextlib.suppress(OSError):
            # Editable installs are found through such files.
            for listed in Path(folder).glob("*.pth"):
                for line in listed.read_text(errors="replace").splitlines():
                    yield os.path.abspath(os.path.join(folder, line.strip()))
