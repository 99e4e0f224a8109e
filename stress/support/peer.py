"""The peer program, hermes-agent, beside our store: run in processes of its own, never imported.

``make test`` puts it into ``.venv/peer``. Its module needs nothing but the standard library.
"""

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / ".venv" / "peer"

_PREFACE = """
import json, sys, time
from pathlib import Path
from hermes_state import SessionDB

path = Path(sys.argv[1])


def tell(value=None):
    print(json.dumps(value), flush=True)


def wait():
    assert sys.stdin.readline(), "the test has ended"


"""


class Peer:
    """A running script of the peer. It tells us values and waits for our word."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.pid = process.pid

    def hear(self) -> Any:
        """The next value that the script tells."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the peer has ended without a word"
        return json.loads(line)

    def go_on(self) -> None:
        """Let a script that waits go on."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def has_ended(self) -> bool:
        return self._process.poll() is not None


@contextmanager
def peer(path: Path, code: str, *args: Any) -> Iterator[Peer]:
    """Run *code* beside the block. The script must end by itself, and well."""
    assert FOLDER.is_dir(), f"the peer is not in {FOLDER}; `make test` puts it there"
    process = subprocess.Popen(
        [sys.executable, "-c", _PREFACE + textwrap.dedent(code), str(path), *map(str, args)],
        env={**os.environ, "PYTHONPATH": str(FOLDER)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield Peer(process)
            process.communicate(timeout=60)
        except BaseException:
            process.kill()
            raise
    assert process.returncode == 0


def run_peer(path: Path, code: str, *args: Any) -> Any:
    """What *code* tells first, once it has ended."""
    with peer(path, code, *args) as running:
        return running.hear()
