"""Installations of hermes-agent: a released version with its dependencies, and homes for it.

``make test`` installs them once. A test gets a copy that it may change: its files are links, which
installers replace and never write to.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from support.actors import end_actors
from support.model_server import MODEL

__all__ = ["FOLDER", "WHEELS", "Host", "is_installed", "tree_of"]

FOLDER = Path(__file__).parents[2] / ".venv" / "hosts"
WHEELS = FOLDER / "wheels"
"""The newest of them and its dependencies, for updates without a network."""

_SECONDS = 300.0
"""Of one command; the machine may be very busy."""

_CONFIG = """\
model:
  default: {model}
  provider: custom
  base_url: {url}
  api_key: sk-test
  context_length: 128000
"""


def is_installed(version: str) -> bool:
    """Whether ``make`` has put *version* there."""
    return (FOLDER / version / ".installed").is_file()


class Host:
    """One installation and one home, both in *folder*; the environment is *prefix* there."""

    def __init__(self, version: str, folder: Path, url: str, prefix: str = "env") -> None:
        self.prefix = folder / prefix
        self.home = folder / "user" / ".hermes"
        self.user = folder / "user"
        self.version = version
        self.prefix.parent.mkdir(parents=True, exist_ok=True)
        _copy(FOLDER / version, self.prefix)
        self.make_home(self.home, url)

    def make_home(self, home: Path, url: str) -> None:
        """Make *home*, with the model server at *url* in its settings."""
        home.mkdir(parents=True, exist_ok=True)
        (home / "config.yaml").write_text(_CONFIG.format(model=MODEL, url=url))

    @property
    def db(self) -> Path:
        return self.home / "state.db"

    @property
    def python(self) -> Path:
        return self.prefix / "bin" / "python"

    @property
    def purelib(self) -> Path:
        return next((self.prefix / "lib").glob("python3*")) / "site-packages"

    @property
    def variables(self) -> dict[str, str]:
        """Those of a user of their own: nothing of the test's but the path."""
        kept = {name: os.environ[name] for name in ("PATH", "TMPDIR", "LANG") if name in os.environ}
        return {
            **kept,
            "HOME": str(self.user),
            "HERMES_HOME": str(self.home),
            "HERMES_ACTOR_IDLE_EXIT": "120",
            "OPENAI_API_KEY": "sk-test",
            "COLUMNS": "200",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PIP_NO_INDEX": "1",  # the program fetches what it misses
        }

    def run(
        self, *words: str | Path, code: int | None = 0, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a program of the installation to its end; it must end with *code*."""
        done = subprocess.run(
            [str(self.prefix / "bin" / words[0]), *map(str, words[1:])],
            env={**self.variables, **variables}, cwd=self.user, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=_SECONDS, check=False,
        )  # fmt: skip
        assert code is None or done.returncode == code, f"{words}: {done.stdout}{done.stderr}"
        return done

    def hermes(self, *words: str, code: int | None = 0, **variables: str) -> str:
        """What the program prints for people."""
        return self.run("hermes", *words, code=code, **variables).stdout

    def actor(self, *words: str, code: int | None = 0, **variables: str) -> str:
        """What our command prints, run by the interpreter of the installation."""
        return self.run("hermes-actor", *words, code=code, **variables).stdout

    def script(self, code: str, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run Python in the installation."""
        return self.run("python", "-c", code, *words, code=0, **variables)

    @contextmanager
    def running(self, *words: str, log: Path, **variables: str) -> Iterator[int]:
        """Run a program beside the block, which gets its process id; it ends by SIGTERM."""
        with log.open("wb") as output:
            process = subprocess.Popen(
                [str(self.prefix / "bin" / words[0]), *words[1:]],
                env={**self.variables, **variables}, cwd=self.user, stdin=subprocess.DEVNULL,
                stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            try:
                yield process.pid
            finally:
                process.terminate()
                try:
                    process.wait(60)
                finally:
                    # What it has started itself belongs to its session.
                    with suppress(ProcessLookupError, PermissionError):
                        os.killpg(process.pid, signal.SIGKILL)
                    process.wait()

    def databases(self) -> list[Path]:
        """Those that the program keeps in the home."""
        found = self.home.rglob("*.db")
        return sorted(one for one in found if "backups" not in one.parts)

    def end(self) -> None:
        """End every actor of the home."""
        for path in self.databases():
            end_actors(path)


def tree_of(folder: Path) -> dict[str, tuple[int, str]]:
    """Every file below *folder* with its mode and a digest, and every link with its target."""
    found: dict[str, tuple[int, str]] = {}
    for path in folder.rglob("*"):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = (0, os.readlink(path))
        elif path.is_file():
            digest = hashlib.blake2b(path.read_bytes()).hexdigest()
            found[name] = (path.stat().st_mode, digest)
        else:
            found[name] = (path.stat().st_mode, "")
    return found


def _copy(source: Path, target: Path) -> None:
    """Copy an environment; its programs name their interpreter, which is another one then."""

    def link(one: str, other: str) -> None:
        try:
            os.link(one, other)
        except OSError:  # another file system
            shutil.copy2(one, other)

    shutil.copytree(
        source, target, symlinks=True, copy_function=link,
        ignore=lambda folder, names: ["bin"] if Path(folder) == source else [],
    )  # fmt: skip
    (target / "bin").mkdir()
    for program in (source / "bin").iterdir():
        copy = target / "bin" / program.name
        if program.is_symlink():
            copy.symlink_to(os.readlink(program))
        else:
            shutil.copy2(program, copy)
            text = copy.read_bytes()
            copy.write_bytes(text.replace(os.fsencode(source), os.fsencode(target)))
