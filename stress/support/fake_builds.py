"""Other builds of the product, and what may go wrong in them.

A build is a copy of both packages in an environment of its own. Sabotage is code that is appended
to one of its modules; the same code, run before an actor serves, makes an actor of our own build
fail at a chosen step.
"""

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import hermes_actor
import hermes_protocol
from hermes_actor._version import __version__
from hermes_protocol.status import Status
from support.actor_process import Served
from support.actors import folder_of

OLDER, OURS, NEWER, NEWEST = "0.0.9", __version__, "7.0.0", "8.0.0"

_TELL = "print(f'killed pid {os.getpid()}', file=sys.stderr, flush=True); "
DIE = _TELL + "os._exit(9)"
LEAVE = _TELL + "os._exit(0)"
KILL = _TELL + "os.kill(os.getpid(), signal.SIGKILL)"
# To this thread: another one would let this one run on for a moment.
STOP = "signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)"
HANG = "time.sleep(600)"

_PACKAGES = [Path(package.__path__[0]) for package in (hermes_actor, hermes_protocol)]

_MAIN = "\nimport sys\nfrom hermes_actor.__main__ import main\nsys.exit(main())\n"
_LOG = "import logging\nlogging.basicConfig(level=logging.INFO)\n"


class Build:
    """A build. ``python`` runs it."""

    def __init__(self, folder: Path, version: str = NEWER) -> None:
        venv.create(folder, symlinks=True)
        self.python = folder / "bin" / "python"
        (self.packages,) = folder.glob("lib/python*/site-packages")
        # What the product needs comes from where it is; its own packages are found before.
        shared = [folder for folder in sys.path if folder.endswith("-packages")]
        (self.packages / "shared.pth").write_text("\n".join(shared))
        self.install(version)

    def install(self, version: str) -> Self:
        """Put the packages in place, as an update does."""
        for package in _PACKAGES:
            target = self.packages / package.name
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(package, target, ignore=shutil.ignore_patterns("*.pyc.*"))
        return self.append("hermes_actor._version", f"__version__ = {version!r}")

    def append(self, module: str, code: str) -> Self:
        """Put *code* at the end of a module."""
        place = self.packages.joinpath(*module.split("."))
        file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
        assert file.exists(), f"there is no module {module}"
        with file.open("a") as text:
            text.write(f"\n{textwrap.dedent(code)}\n")
        return self

    def around(self, where: str, before: str = "", after: str = "") -> Self:
        """Run code before and after a function of this build; see :func:`around`."""
        return self.append(where.partition(":")[0], around(where, before, after))


def around(where: str, before: str = "", after: str = "") -> str:
    """Code that makes ``module:Class.function`` run *before* and *after* around itself.

    ``result`` is what the function returned; ``return`` may give something else.
    """
    module, _, name = where.partition(":")
    owner, _, function = f"module.{name}".rpartition(".")
    body = """
def _around(function):
    import functools, inspect, os, signal, sys, threading, time

    def call(*args, **kwargs):
        {before}
        result = function(*args, **kwargs)
        {after}
        return result

    async def acall(*args, **kwargs):
        {before}
        result = await function(*args, **kwargs)
        {after}
        return result

    return functools.wraps(function)(acall if inspect.iscoroutinefunction(function) else call)
"""
    body = body.replace("{before}", textwrap.indent(textwrap.dedent(before), " " * 8).strip() or "")
    body = body.replace("{after}", textwrap.indent(textwrap.dedent(after), " " * 8).strip() or "")
    return f"import {module} as module\n{body}\n{owner}.{function} = _around({owner}.{function})\n"


def touch(file: Path) -> str:
    """Code that tells the test how far it is."""
    return f"open({str(file)!r}, 'a').close()"


def wait_until(file: Path) -> str:
    """Code that waits for the word of the test."""
    return f"while not os.path.exists({str(file)!r}): time.sleep(0.002)"


def while_there(file: Path, **seconds: float) -> str:
    """Code that makes limits small for as long as *file* is there."""
    return textwrap.dedent(f"""
        import os, types
        from hermes_actor import limits

        class Limits(types.ModuleType):
            pass

        for name, small in {seconds!r}.items():
            large = getattr(limits, name)
            look = lambda _, s=small, l=large: s if os.path.exists({str(file)!r}) else l
            setattr(Limits, name, property(look))
        limits.__class__ = Limits
    """)


@contextmanager
def serving(
    path: Path, *options: str, python: str | Path = sys.executable, prelude: str = ""
) -> Iterator[Served]:
    """``hermes-actor serve`` for the time of the block; *prelude* runs in it before.

    It logs where actors that are started on demand do.
    """
    folder_of(path).mkdir(mode=0o700, exist_ok=True)
    log = folder_of(path) / "log"
    words = [python, "-P", "-c", _LOG + prelude + _MAIN, "serve", "--db", path, *options]
    with log.open("a") as file:
        process = subprocess.Popen(
            list(map(str, words)), stdout=subprocess.PIPE, stderr=file, text=True, errors="replace"
        )
    with process:
        try:
            line = process.stdout.readline() if process.stdout else ""
            assert line.startswith("serving"), f"{line}{log.read_text()}"
            yield Served(process, log)
        finally:
            _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    """In order if that is possible, in any case."""
    if process.poll() is None:
        process.terminate()
        process.send_signal(signal.SIGCONT)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            raise


def failed_updates(found: Status) -> list[str]:
    """What a status says about updates; readers of the moment may give it more to say."""
    return [text for text in found.degraded if text.startswith("update")]


def command(
    *words: Any, python: str | Path = sys.executable, **environment: str
) -> subprocess.CompletedProcess[str]:
    """``hermes-actor`` with these words, to its end."""
    return subprocess.run(
        [str(python), "-P", "-m", "hermes_actor", *map(str, words)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        errors="replace",
        timeout=100,
    )
