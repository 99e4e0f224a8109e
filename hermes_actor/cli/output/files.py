"""Files that commands write: nothing is replaced that the caller has not named and released.

A new file appears under its name when it is complete. An existing one is replaced only with
``--force``. Pipes, devices and open descriptors (``/dev/stdout``) are written to as they are, and a
symbolic link stays: what it points to is written. A store, with all files that belong to it, is
never an output; it is known by its identity, whatever it is called.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, NamedTuple, NoReturn

from hermes_actor.cli.output.errors import fail
from hermes_actor.errors import HermesActorError
from hermes_actor.paths import StorePaths

__all__ = ["Output", "checked_folder", "checked_output"]


_DESCRIPTOR = re.compile(r"/(?:dev|proc/(?:self|thread-self|\d+))/fd/(\d+)")
_MAX_LINKS = 40


class Output(NamedTuple):
    """Output of a command that :func:`checked_output` has found to be safe."""

    name: str
    """As the caller gave it, for messages."""
    path: Path
    """With links resolved, for a file; as it is opened, for a pipe or a device."""
    force: bool
    stream: bool
    """Written to as it is: it cannot be replaced, or must not be."""
    descriptor: int | None = None
    """One of ours, which goes on where it stands."""

    @property
    def is_stdout(self) -> bool:
        return self.descriptor == 1

    @contextlib.contextmanager
    def writing(self, check: Callable[[IO[bytes]], None] | None = None) -> Iterator[IO[bytes]]:
        """The stream, or a private file that appears when the block has ended well.

        The file, though no stream, is read back by *check* first.
        """
        with self._named_errors():
            if self.stream:
                with self._opened() as file:
                    yield file
                return
            with self._unfinished() as part:
                with part.open("wb") as file:
                    yield file
                    file.flush()
                    os.fsync(file.fileno())
                if check is not None:
                    with part.open("rb") as file:
                        check(file)
                self._put(part)

    @contextlib.contextmanager
    def filling(self) -> Iterator[Path]:
        """A path for a program that makes a file of its own, such as SQLite.

        What is there when the block has ended well becomes the output.
        """
        with self._named_errors():
            if not self.stream:
                with self._unfinished() as part:
                    yield part
                    self._put(part)
                return
            with tempfile.TemporaryDirectory() as folder:
                made = Path(folder) / "output"
                yield made
                with made.open("rb") as source, self._opened() as file:
                    shutil.copyfileobj(source, file)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[IO[bytes]]:
        if self.is_stdout:
            # Behind what was printed, and in front of what will be.
            sys.stdout.flush()
            yield sys.stdout.buffer
            sys.stdout.buffer.flush()
            return
        if self.descriptor is not None:
            handle = os.dup(self.descriptor)
        else:
            handle = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOCTTY)
        with os.fdopen(handle, "wb") as file:
            yield file

    @contextlib.contextmanager
    def _unfinished(self) -> Iterator[Path]:
        handle, name = tempfile.mkstemp(".part", ".hermes-actor-", self.path.parent)
        os.close(handle)
        part = Path(name)
        try:
            yield part
        finally:
            part.unlink(missing_ok=True)

    def _put(self, part: Path) -> None:
        """Give a complete file its name, and make that durable."""
        if self.force:
            part.replace(self.path)
        else:
            # Not a rename, which would replace a file that has appeared by now.
            try:
                os.link(part, self.path)
            except FileExistsError:
                _fail_exists(self.name)
            except OSError:
                # A file system without hard links. The gap is as small as it can be there.
                if self.path.exists():
                    _fail_exists(self.name)
                part.replace(self.path)
        folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    @contextlib.contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if isinstance(error, HermesActorError):
                raise
            if isinstance(error, BrokenPipeError) and self.descriptor is not None:
                raise  # the reader of our output has seen enough
            fail(f"cannot write {self.name}: {error.strerror or error}")


def checked_output(name: str | Path, *stores: StorePaths, force: bool = False) -> Output:
    """Return the output that *name* means; fail for a file that must not be written.

    ``-`` is standard output. *stores* are those of the command; a file with the side folder of an
    actor is one, too.
    """
    given = str(name)
    descriptor = 1 if given == "-" else _descriptor_of(given)
    if descriptor is not None:
        given = "standard output" if given == "-" else given
        _refuse_stores(given, None, _stat(descriptor), stores)
        return Output(given, Path(given), force, True, descriptor)
    path = Path(given)
    try:
        # Resolved before it is looked at, because a link is written through.
        found = _stat(path)
        path = path.resolve() if found is None or stat.S_ISREG(found.st_mode) else path
        parent = path.parent.stat()
    except FileNotFoundError:
        fail(f"cannot write {given}: there is no folder {path.parent}")
    except (OSError, RuntimeError, ValueError) as error:
        fail(f"cannot write {given}: {getattr(error, 'strerror', None) or error}")
    _refuse_stores(given, path, found, stores)
    if not stat.S_ISDIR(parent.st_mode):
        fail(f"cannot write {given}: {path.parent} is not a folder")
    if found is None:
        return _writable(Output(given, path, force, False))
    if stat.S_ISDIR(found.st_mode):
        fail(f"cannot write {given}: it is a folder")
    if stat.S_ISREG(found.st_mode):
        if not force:
            _fail_exists(given)
        return _writable(Output(given, path, force, False))
    if stat.S_ISBLK(found.st_mode) and not force:
        fail(f"{given} is a disk; use --force to overwrite it")
    return Output(given, path, force, True)


def _fail_exists(name: str) -> NoReturn:
    fail(f"{name} exists; use --force to overwrite it")


def _writable(output: Output) -> Output:
    if not os.access(output.path.parent, os.W_OK | os.X_OK):
        fail(f"cannot write {output.name}: the folder {output.path.parent} is not writable")
    return output


def checked_folder(path: Path, *stores: StorePaths) -> Path:
    """A folder to write files into; made if only its last part is missing."""
    folder = path.resolve()
    if not folder.is_dir():
        checked_output(folder, *stores)  # its parent is there, and nothing else has its name
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            fail(f"cannot write {path}: {error.strerror}")
    _refuse_stores(str(path), folder / "file", None, stores)
    return folder


def _descriptor_of(name: str) -> int | None:
    """The descriptor of this process that *name* stands for, such as ``/dev/stdout``."""
    path = os.path.abspath(name)
    for _ in range(_MAX_LINKS):
        found = _DESCRIPTOR.fullmatch(path)
        if found is not None and path.startswith(("/dev/", "/proc/self/", f"/proc/{os.getpid()}/")):
            return int(found.group(1))
        try:
            path = os.path.normpath(os.path.join(os.path.dirname(path), os.readlink(path)))
        except (OSError, ValueError):
            return None
    return None


def _stat(file: Path | int) -> os.stat_result | None:
    try:
        return os.stat(file)
    except FileNotFoundError:
        return None
    except OSError:
        if isinstance(file, int):  # a descriptor that is not open
            return None
        raise


# --- what belongs to a store ---------------------------------------------------------------------


def _refuse_stores(
    name: str, path: Path | None, found: os.stat_result | None, stores: tuple[StorePaths, ...]
) -> None:
    owner = next((paths for paths in stores if _belongs(path, found, paths)), None)
    if owner is None and path is not None:
        owner = _served(path)
    if owner is not None:
        fail(f"{name} belongs to the store {owner.db}; choose another file")


def _belongs(path: Path | None, found: os.stat_result | None, paths: StorePaths) -> bool:
    """Return True if *path*, with the status *found*, is or would become a file of the store."""
    for own in paths.files:
        there = _stat(own)
        if found is not None and there is not None and os.path.samestat(found, there):
            return True
        if path is not None and path.name == own.name and _same(path.parent, own.parent):
            return True
    return path is not None and any(_same(folder, paths.folder) for folder in path.parents)


def _same(one: Path, other: Path) -> bool:
    with contextlib.suppress(OSError):
        return one.samefile(other)
    return False


def _served(path: Path) -> StorePaths | None:
    """The store that *path* is a file of, known by the side folder that an actor has made."""
    for suffix in ("", "-wal", "-shm", "-journal"):
        paths = StorePaths(path.with_name(path.name.removesuffix(suffix) or path.name))
        if path in paths.files and paths.folder.is_dir():
            return paths
    return None
