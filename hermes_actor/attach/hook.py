"""The hook in an environment: a line that every interpreter runs at its start, and what it imports.

Both are files of ours among the packages of the environment; no file of another program changes.
"""

from __future__ import annotations

import ast
import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from hermes_actor.attach import boot
from hermes_actor.errors import AttachFailed

__all__ = ["changing", "is_current", "put_hook", "read_hook", "remove_hook"]

_MODULE = "hermes_actor_boot"
_LINE_NAME = "hermes_actor_attach.pth"
_LINE = f"import sys; exec('try:\\n    import {_MODULE}\\nexcept Exception:\\n    pass')\n"
"""An exception here would be printed at the start of every program of the environment."""
_CALL = "\n\ninstall("


_WAIT_SECONDS = 600.0
"""Longest wait for another command that changes the same hook."""


@contextlib.contextmanager
def changing(purelib: Path, on_step: Callable[[str], None]) -> Iterator[None]:
    """Keep other commands from changing the hook in *purelib* in the block, after a wait for them.

    Raises :class:`AttachFailed` if one takes very long. The lock is on the folder itself: it leaves
    no file, and ends with the process.
    """
    with contextlib.ExitStack() as stack:
        try:
            folder = os.open(purelib, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            yield  # it is gone, and with it the hook
            return
        stack.callback(os.close, folder)
        until = time.monotonic() + _WAIT_SECONDS
        while not _locked(folder):
            on_step(f"waiting for another hermes-actor attach in {purelib}")
            if time.monotonic() > until:
                raise AttachFailed(f"another hermes-actor attach is at work in {purelib}")
            time.sleep(0.1)
        yield


def _locked(folder: int) -> bool:
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # a file system without locks
    return True


def put_hook(purelib: Path, settings: Mapping[str, Any]) -> None:
    """Write the hook with *settings* among the packages in *purelib*; replaces an older one.

    Raises :class:`AttachFailed`.
    """
    try:
        # The line comes last: what it imports is complete by then.
        _write(purelib / f"{_MODULE}.py", _text(settings))
        _write(purelib / _LINE_NAME, _LINE)
    except OSError as error:
        raise AttachFailed(f"the hook cannot be written to {purelib}: {error.strerror}") from error


def remove_hook(purelib: Path) -> None:
    """Remove the hook from *purelib*, whatever is left of it. Raises :class:`AttachFailed`."""
    try:
        for path in (purelib / _LINE_NAME, purelib / f"{_MODULE}.py"):
            # Asked first: where nothing can be written, there may be nothing to remove either.
            if path.exists():
                path.unlink(missing_ok=True)
    except OSError as error:
        raise AttachFailed(f"the hook in {purelib} cannot be removed: {error.strerror}") from error
    cache = purelib / "__pycache__"
    for compiled in cache.glob(f"{_MODULE}.*"):
        compiled.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        cache.rmdir()  # if it was there for the hook alone


def read_hook(purelib: Path) -> dict[str, Any] | None:
    """Return the settings of the hook in *purelib*; ``None`` if there is none, or half of one."""
    try:
        if (purelib / _LINE_NAME).read_text() != _LINE:
            return None
        text = (purelib / f"{_MODULE}.py").read_text()
        settings = ast.literal_eval(text.rpartition(_CALL)[2].strip().removesuffix(")"))
    except (OSError, ValueError, SyntaxError):
        return None
    return settings if isinstance(settings, dict) else None


def is_current(purelib: Path) -> bool:
    """Return True if the hook in *purelib* is the one that this build writes."""
    settings = read_hook(purelib)
    return settings is not None and (purelib / f"{_MODULE}.py").read_text() == _text(settings)


def _text(settings: Mapping[str, Any]) -> str:
    return Path(boot.__file__).read_text() + f"{_CALL}{dict(settings)!r})\n"


def _write(path: Path, text: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        if path.read_text() == text:
            return  # what was compiled from it stays valid
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_text(text)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
