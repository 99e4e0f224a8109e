"""An actor as a child of the tests: its exit code and its last words can be seen."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.processes import SCRIPTS

_MAIN = "\nimport sys\nfrom hermes_actor.__main__ import main\nsys.exit(main())\n"


class Served:
    """A running actor."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process = process
        self._log = log
        self.pid = process.pid

    @property
    def lives(self) -> bool:
        return self._process.poll() is None

    def exit_code(self, timeout: float = 60.0) -> int:
        """Wait for the end. A drain takes 10 s of wall clock on a machine at load 10."""
        return self._process.wait(timeout)

    def last_words(self) -> str:
        """What it has logged."""
        return self._log.read_text()


@contextmanager
def served(
    path: Path,
    prelude: str = "",
    *,
    serves: bool = True,
    log: Path | None = None,
    kind: str = "sessions",
) -> Iterator[Served]:
    """The actor of *path* for the time of the block. *prelude* runs in it before it serves.

    Without *serves* it is not waited for: it may end before it says anything.
    """
    log = log or path.with_name(f"{path.name}.served.log")
    python_path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(SCRIPTS)]))
    with log.open("a") as file:
        process = subprocess.Popen(
            [sys.executable, "-c", prelude + _MAIN, "serve", "--db", str(path), "--kind", kind],
            env={**os.environ, "PYTHONPATH": python_path},
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
        )
    with process:
        try:
            if serves:
                line = process.stdout.readline() if process.stdout else ""
                assert line.startswith("serving"), f"{line}{log.read_text()}"
            yield Served(process, log)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(30)
