"""The environment that ``hermes`` runs in: which interpreter, which release, which folders.

The interpreter is asked itself, in a child process; nothing of the program is imported.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from hermes_actor.errors import AttachFailed

__all__ = ["PROBE", "Environment", "find_environment", "inspect", "interpreter_of"]

_PROBE_SECONDS = 60.0
_MOST_WRAPPERS = 5
"""Scripts that call one another until an interpreter is found."""

PROBE = """
import importlib.metadata, importlib.util, json, os, sys, sysconfig
found = {
    "python": sys.executable, "prefix": sys.prefix, "version": list(sys.version_info[:3]),
    "purelib": sysconfig.get_path("purelib"), "release": None, "names": [], "root": None,
    "own": None, "own_error": None, "editable": False, "folder": None,
}
names = set()
try:
    dist = importlib.metadata.distribution("hermes-agent")
except importlib.metadata.PackageNotFoundError:
    dist = None
if dist is not None:
    found["release"] = dist.version
    found["folder"] = str(getattr(dist, "_path", None) or "")
    for file in dist.files or ():
        first = file.parts[0]
        if len(file.parts) > 1 and file.suffix == ".py":
            names.add(first)
        elif first.endswith(".py"):
            names.add(first[:-3])
    names.update((dist.read_text("top_level.txt") or "").split())
spec = importlib.util.find_spec("hermes_state")
if spec is not None and spec.origin:
    root = found["root"] = os.path.dirname(os.path.realpath(spec.origin))
    if root != os.path.realpath(found["purelib"]):
        found["editable"], found["folder"] = True, root
        for entry in os.scandir(root):
            if entry.name.endswith(".py"):
                names.add(entry.name[:-3])
            elif entry.is_dir() and os.path.exists(os.path.join(entry.path, "__init__.py")):
                names.add(entry.name)
found["names"] = sorted(name for name in names if name.isidentifier() and name != "hermes_actor")
try:
    import hermes_actor.dbapi
    from hermes_actor._version import __version__
    found["own"] = __version__
except Exception as error:
    found["own_error"] = f"{type(error).__name__}: {error}"
print(json.dumps(found))
"""

_STANDARD = frozenset(sys.stdlib_module_names) | {"setup", "conftest", "tests"}
"""Never names of the program, whatever lies in its checkout."""


class Environment(NamedTuple):
    """An environment with hermes-agent in it."""

    python: Path
    prefix: Path
    purelib: Path
    """The folder of its packages, where the hook is put."""
    root: Path
    """The folder with ``hermes_state``."""
    python_version: tuple[int, ...]
    release: str
    names: tuple[str, ...]
    """Top-level modules and packages of the program."""
    is_editable: bool
    folder: str
    """Folder of its metadata, whose name has the version, or the checkout itself."""
    own: str | None
    """Version of hermes-actor in this environment; ``None`` if it cannot be imported."""
    own_error: str | None

    @property
    def installer(self) -> str:
        """The program that looks after it: ``uv tool``, ``pipx``, ``checkout`` or ``pip``."""
        text = str(self.prefix)
        if f"{os.sep}uv{os.sep}tools{os.sep}" in text:
            return "uv tool"
        if f"{os.sep}pipx{os.sep}" in text:
            return "pipx"
        return "checkout" if (self.root / ".git").exists() else "pip"

    @property
    def install_command(self) -> str:
        """Return the command that adds hermes-actor to the environment."""
        source = shlex.quote(_source())
        if self.installer == "uv tool":
            return f"uv tool install hermes-agent --with {source}"
        if self.installer == "pipx":
            return f"pipx inject hermes-agent {source}"
        python = shlex.quote(str(self.python))
        if shutil.which("uv") and not (self.purelib / "pip").exists():
            return f"uv pip install --python {python} {source}"
        return f"{python} -m pip install {source}"


def _source() -> str:
    """Return what an installer takes for hermes-actor: the checkout that this one came from."""
    checkout = Path(__file__).parents[2]
    if (checkout / "pyproject.toml").exists():
        return str(checkout)
    try:
        url = json.loads(metadata.distribution("hermes-actor").read_text("direct_url.json") or "")
        return str(url["url"]).removeprefix("file://")
    except (metadata.PackageNotFoundError, ValueError, KeyError):
        return "/path/to/hermes-actor"


def find_environment(python: Path | None = None, hermes: Path | None = None) -> Environment:
    """Return the environment of *python*, or of the program *hermes*, or the one in use.

    The one in use is, in this order: that of this interpreter, if it has hermes-agent; that of
    ``hermes`` on ``PATH``; that of a usual place of an installation. Raises :class:`AttachFailed`.
    """
    if python is not None:
        return inspect(python)
    if hermes is not None:
        return inspect(interpreter_of(hermes))
    tried: list[str] = []
    for candidate in _candidates():
        try:
            return inspect(candidate)
        except AttachFailed as error:
            tried.append(str(error))
    looked = "; ".join(dict.fromkeys(tried))
    raise AttachFailed(
        f"no hermes-agent was found ({looked}). Name its interpreter with --python PATH, or the"
        " program with --hermes PATH"
    )


def _candidates() -> Iterator[Path]:
    yield Path(sys.executable)
    if (program := shutil.which("hermes")) is not None:
        yield interpreter_of(Path(program))
    here = os.environ.get
    home = Path.home()
    data = Path(here("XDG_DATA_HOME", "").strip() or home / ".local" / "share")
    checkout = Path(here("HERMES_HOME", "").strip() or home / ".hermes") / "hermes-agent"
    for folder in (
        checkout / "venv",
        checkout / ".venv",
        Path(here("UV_TOOL_DIR", "").strip() or data / "uv" / "tools") / "hermes-agent",
        Path(here("PIPX_HOME", "").strip() or data / "pipx") / "venvs" / "hermes-agent",
        home / ".local" / "pipx" / "venvs" / "hermes-agent",
    ):
        if (python := folder / "bin" / "python").exists():
            yield python


def interpreter_of(program: Path) -> Path:
    """Return the interpreter that runs *program*: a script, a link to one, or a wrapper in sh.

    Raises :class:`AttachFailed`.
    """
    script = program
    for _ in range(_MOST_WRAPPERS):
        try:
            text = script.resolve().read_text(errors="replace")[:8192]
        except OSError as error:
            raise AttachFailed(f"{script} cannot be read: {error.strerror}") from error
        found = _named_interpreter(text)
        if found is None:
            break
        if _is_python(found):
            return found
        script = found
    raise AttachFailed(f"{program} does not say which Python runs it: name that with --python PATH")


def _named_interpreter(text: str) -> Path | None:
    """Return the interpreter, or the next script, that the *text* of a script names."""
    first, _, rest = text.partition("\n")
    if not first.startswith("#!"):
        return None
    words = first[2:].split()
    if words and Path(words[0]).name == "env":
        name = next((word for word in words[1:] if not word.startswith("-")), "")
        if _is_python(Path(name)) and (found := shutil.which(name)) is not None:
            return Path(found)
    elif words and _is_python(Path(words[0])):
        return Path(words[0])
    # A path too long for the first line, or a wrapper: `exec PROGRAM ...`.
    for line in rest.splitlines():
        called = re.match(r"""\s*(?:'''exec'|exec)\s+(.*)""", line)
        if called:
            try:
                words = shlex.split(called[1])
            except ValueError:
                continue
            target = next((one for one in words if "=" not in one and one != "env"), "")
            path = Path(os.path.expanduser(os.path.expandvars(target)))
            if path.is_absolute() and path.exists():
                return path
    return None


def _is_python(path: Path) -> bool:
    return re.fullmatch(r"(python|pypy)[\d.]*", path.name) is not None


def inspect(python: Path) -> Environment:
    """Ask the interpreter *python* what it has. Raises :class:`AttachFailed`."""
    try:
        done = subprocess.run(
            [os.path.abspath(python), "-c", PROBE], capture_output=True, text=True, cwd="/",
            timeout=_PROBE_SECONDS, env={**os.environ, "HERMES_ACTOR_DISABLE": "1"}, check=False,
        )  # fmt: skip
        found = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        raise AttachFailed(f"{python} does not answer as a Python interpreter: {error}") from error
    if found["root"] is None:
        raise AttachFailed(f"{python} has no hermes-agent")
    return Environment(
        python=Path(found["python"]),
        prefix=Path(found["prefix"]),
        purelib=Path(found["purelib"]),
        root=Path(found["root"]),
        python_version=tuple(found["version"]),
        release=found["release"] or "unknown",
        names=tuple(name for name in found["names"] if name not in _STANDARD),
        is_editable=found["editable"],
        folder=found["folder"] or "",
        own=found["own"],
        own_error=found["own_error"],
    )
