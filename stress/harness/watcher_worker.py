"""A process with an expiry watcher under test, which is killed and started again.

    python -m harness.watcher_worker DATABASE PYTHON LOG

``start`` on the standard input forks a child that watches, ``kill`` kills it, ``stop`` ends it
after the session that it is at; each is answered with a line. The hooks write what they are called
for into LOG, one line for each call.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from harness.mutations import break_client
from hermes_actor import SessionDB
from hermes_actor.gateway import GatewayConfig, Hooks, SessionResetPolicy, SessionStore, Watcher

__all__ = ["IDLE"]

IDLE = GatewayConfig(
    default_reset_policy=SessionResetPolicy(mode="idle", idle_minutes=60), write_jsonl=False
)
_HOOK_SECONDS = 0.01
"""So that the watchers meet, and kills hit the hook."""


def watch(database: Path, log: Path) -> None:
    """Watch until the process is asked to end."""
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    hooks = Hooks(entry_points=False)

    def before_reset(entry: Any, **_: Any) -> None:
        os.write(file, f"before {entry.session_id}\n".encode())
        time.sleep(_HOOK_SECONDS)

    def session_finalize(session_id: str, **_: Any) -> None:
        os.write(file, f"end {session_id}\n".encode())

    hooks.add("before_reset", before_reset)
    hooks.add("session_finalize", session_finalize)
    db = SessionDB(database, timeout=60)
    watcher = Watcher(SessionStore(config=IDLE, db=db, hooks=hooks), every=0.01, first=0.0)
    signal.signal(signal.SIGTERM, lambda *_: watcher.stop())
    watcher.run()
    db.close()


def main() -> None:
    database, sys.executable, log = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    break_client()
    child = 0
    print("ready", flush=True)
    for line in sys.stdin:
        word = line.strip()
        if word == "start":
            child = os.fork()
            if child == 0:
                watch(database, log)
                os._exit(0)
        else:
            os.kill(child, signal.SIGKILL if word == "kill" else signal.SIGTERM)
            os.waitpid(child, 0)
        print(word, flush=True)


if __name__ == "__main__":
    main()
