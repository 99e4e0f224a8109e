"""A real terminal for a command: tmux, with keys to press and a screen to look at."""

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Terminal:
    """One command on a screen of its own."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket

    def tmux(self, *arguments: str) -> str:
        done = subprocess.run(
            ["tmux", "-S", str(self._socket), "-f", "/dev/null", *arguments],
            capture_output=True, text=True, timeout=30,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    def press(self, *keys: str) -> None:
        """Press keys by their names (``Down``, ``Enter``, ``C-r``)."""
        self.tmux("send-keys", "-t", "0", *keys)

    def type(self, text: str) -> None:
        # tmux takes a semicolon at the end of a word for the end of its own command.
        self.tmux("send-keys", "-t", "0", "-l", text[:-1] + r"\;" if text.endswith(";") else text)

    def screen(self, *, colours: bool = False) -> str:
        return self.tmux("capture-pane", "-p", "-t", "0", *(["-e"] if colours else []))

    def wait_for(self, text: str, timeout: float = 60.0) -> str:
        """Look until *text* is on the screen; the screen."""
        give_up = time.monotonic() + timeout
        while text not in (screen := self.screen()):
            assert time.monotonic() < give_up, f"{text!r} does not appear:\n{screen}"
            time.sleep(0.05)
        return screen


@contextmanager
def terminal(
    folder: Path, *arguments: object, columns: int = 100, lines: int = 14, **env: str
) -> Iterator[Terminal]:
    """``hermes-actor`` with *arguments* in a terminal; its exit code is shown at the end."""
    program = [sys.executable, "-m", "hermes_actor", *map(str, arguments)]
    # Ctrl-C is for the command: its shell must live to show the exit code.
    script = f'trap : INT; {shlex.join(program)}; echo "[exit $?]"; sleep 1000'
    made = Terminal(folder / "tmux.sock")
    full = {**os.environ, "LC_ALL": "C.UTF-8", "SHELL": "/bin/sh", **env}
    # The size is that of the screen, whatever the shell of the tests says.
    for name in ("TMUX", "COLUMNS", "LINES"):
        full.pop(name, None)
    subprocess.run(
        ["tmux", "-S", str(folder / "tmux.sock"), "-f", "/dev/null", "-u", "new-session", "-d",
         "-x", str(columns), "-y", str(lines), script],
        env=full, check=True, timeout=30,
    )  # fmt: skip
    try:
        yield made
    finally:
        made.tmux("kill-server")
