"""Copies and removals of folders with databases in them, as hermes-agent makes of its profiles.

``shutil`` would copy a database and its WAL one after the other, beside the actor that writes them,
and stop at its socket. A removal on purpose would look like an accident to the actor.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hermes_actor.client.control import has_owner, stop_actor
from hermes_actor.errors import HermesActorError
from hermes_actor.paths import resolve_paths, stores_below
from hermes_actor.recovery.backup import create_backup

__all__ = ["bound", "copy_tree", "remove_tree"]

_STOP_SECONDS = 10.0

_Ignore = Callable[[Any, list[str]], Iterable[str]]
_Names = Collection[str]


def bound(name: str, original: Callable[..., Any], homes: Sequence[str]) -> Callable[..., Any]:
    """Return our function *name* for the *original* one of ``shutil``."""
    if name in ("copy_tree", "remove_tree"):
        return copy_tree if name == "copy_tree" else remove_tree
    from hermes_actor.attach import replacements

    replacements.watch_removals(homes)
    return partial(getattr(replacements, name), original)


def copy_tree(
    src: Any,
    dst: Any,
    symlinks: bool = False,
    ignore: _Ignore | None = None,
    copy_function: Callable[..., Any] = shutil.copy2,
    ignore_dangling_symlinks: bool = False,
    dirs_exist_ok: bool = False,
) -> Any:
    """Copy a folder like ``shutil.copytree``; a database that has an actor becomes one whole file.

    Side folders stay: they belong to the file at its place.
    """
    stores: set[str] = set()

    def ignore_side_files(folder: Any, names: list[str]) -> _Names:
        ignored = set(ignore(folder, names)) if ignore is not None else set()
        for name in names:
            side = f".{name}.actor"
            if name not in ignored and side in names:
                stores.add(os.path.join(folder, name))
                ignored |= {side, f"{name}-wal", f"{name}-shm", f"{name}-journal"}
            elif name.startswith(".") and name.endswith(".actor"):
                ignored.add(name)
        return ignored

    def copy(source: Any, target: Any, **named: Any) -> Any:
        if os.fspath(source) in stores and os.path.getsize(source):
            create_backup(Path(source), Path(target))
            shutil.copystat(source, target)
            return target
        return copy_function(source, target, **named)

    return shutil.copytree(
        src, dst, symlinks, ignore_side_files, copy, ignore_dangling_symlinks, dirs_exist_ok
    )


def remove_tree(path: Any, *arguments: Any, **named: Any) -> None:
    """Remove a folder like ``shutil.rmtree``, after the actors of its databases have ended."""
    with contextlib.suppress(OSError, HermesActorError):
        for paths in stores_below(Path(os.fspath(path))):
            if has_owner(resolve_paths(paths.db)):
                stop_actor(paths, _STOP_SECONDS)
    shutil.rmtree(path, *arguments, **named)
