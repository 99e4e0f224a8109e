"""The proof of an attachment: a fresh interpreter of the environment uses the stores through us.

The parent calls :func:`prove`; the child runs :func:`main`, as every program of the environment
would start, hook included.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hermes_actor.attach.environments import Environment
from hermes_actor.attach.selftest import answers
from hermes_actor.errors import AttachFailed
from hermes_actor.paths import StorePaths

__all__ = ["main", "prove", "prove_plain"]

_SECONDS = 180.0
_CHILD = "from hermes_actor.attach.proof import main; main()"
_DIRECT_CHILD = """
import json, os, pathlib
from hermes_actor.attach.selftest import answers
print(json.dumps(answers(pathlib.Path(os.environ["HERMES_HOME"]))))
"""

_PLAIN_CHILD = """
import json, sqlite3, sys
assert not any(getattr(finder, "is_hermes_actor", False) for finder in sys.meta_path), "still bound"
import hermes_state
for path in json.loads(sys.argv[1]):
    conn = sqlite3.connect(path)
    conn.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
    assert not conn.execute(
        "SELECT name FROM sqlite_master WHERE name GLOB 'hermes_actor_*'").fetchall(), path
    conn.close()
"""


def prove(environment: Environment, stores: Sequence[StorePaths]) -> None:
    """Have the program use a store in a home of its own, and read and write each of *stores*.

    What it is answered there is compared with what it is answered without us. The writes to
    *stores* are rolled back. Raises :class:`AttachFailed` with what did not work.
    """
    ours = _in_own_home(environment, _CHILD, stores, {})
    plain = _in_own_home(environment, _DIRECT_CHILD, (), {"HERMES_ACTOR_DISABLE": "1"})
    for (name, answer), (_, expected) in zip(ours, plain, strict=True):
        if answer != expected:
            raise AttachFailed(
                f"hermes-agent {environment.release} does not work through us: {name} answers"
                f" {answer!r:.200}, by itself {expected!r:.200}"
            )


def _in_own_home(
    environment: Environment, code: str, stores: Sequence[StorePaths], variables: dict[str, str]
) -> list[list[Any]]:
    home = Path(tempfile.mkdtemp(prefix="hermes-actor-proof-"))
    try:
        output = _run(environment, code, home, stores, variables)
        answers: list[list[Any]] = json.loads(output.splitlines()[-1])
        return answers
    finally:
        from hermes_actor.client.control import has_owner, stop_actor
        from hermes_actor.paths import resolve_paths

        made = resolve_paths(home / "state.db")
        if has_owner(made):
            stop_actor(made, _SECONDS)
        shutil.rmtree(home, ignore_errors=True)


def prove_plain(environment: Environment, stores: Sequence[StorePaths]) -> None:
    """Have the program open *stores* by itself, with nothing of ours in them.

    Raises :class:`AttachFailed`.
    """
    with tempfile.TemporaryDirectory(prefix="hermes-actor-proof-") as home:
        _run(environment, _PLAIN_CHILD, Path(home), stores)


def _run(
    environment: Environment,
    code: str,
    home: Path,
    stores: Sequence[StorePaths],
    variables: dict[str, str] | None = None,
) -> str:
    kept = {name: value for name, value in os.environ.items() if name != "HERMES_ACTOR_DISABLE"}
    words = [str(environment.python), "-c", code, json.dumps([str(one.db) for one in stores])]
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=_SECONDS, cwd="/",
            env={**kept, "HERMES_HOME": str(home), **(variables or {})}, check=False,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        raise AttachFailed(f"the proof could not be run: {error}") from error
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise AttachFailed(f"hermes-agent {environment.release} does not work through us: {last}")
    return done.stdout


def main() -> None:
    """Use the stores as the program does and print its answers. An exception is the verdict."""
    finder: Any = next(
        (one for one in sys.meta_path if getattr(one, "is_hermes_actor", False)), None
    )
    assert finder is not None, "the hook is not active in a fresh interpreter"
    finder.add_home(os.environ["HERMES_HOME"])  # before: the typed class asks for it
    import hermes_state  # type: ignore[import-not-found]

    bound = vars(hermes_state)["__builtins__"]["__import__"]("sqlite3")
    home = Path(os.environ["HERMES_HOME"])
    seen = answers(home)
    _check_descriptors(str(home / "state.db"))
    for path in json.loads(sys.argv[1]):
        with contextlib.closing(bound.connect(path, isolation_level=None, timeout=30)) as conn:
            assert type(conn).__module__.startswith("hermes_actor"), f"{path} is not attached"
            conn.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
            conn.execute("BEGIN IMMEDIATE")
            conn.execute("CREATE TABLE hermes_attach_proof (id INTEGER)")
            conn.execute("ROLLBACK")
            _check_descriptors(path)
    sys.stdout.write(json.dumps(seen))


def _check_descriptors(path: str) -> None:
    """Check that this process has the file open for reading only."""
    wanted = os.stat(path)
    with contextlib.suppress(FileNotFoundError):  # where there is no /proc
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                found = os.stat(f"/proc/self/fd/{name}")
                if (found.st_dev, found.st_ino) != (wanted.st_dev, wanted.st_ino):
                    continue
                flags = Path(f"/proc/self/fdinfo/{name}").read_text().split("flags:")[1].split()[0]
                assert int(flags, 8) & os.O_ACCMODE == os.O_RDONLY, f"{path} is open for writing"
