"""The service of a store under systemd: a unit for the actor, and one for its socket."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

from hermes_actor import limits
from hermes_actor.cli.actor.service._manager import Command, output_of, unavailable, unit_name
from hermes_actor.client.spawn_environment import interpreter_variables
from hermes_actor.paths import StorePaths

__all__ = ["Systemd"]


_UNIT = """\
# Written by `hermes-actor service install`, and overwritten by it.
# For changes of your own: systemctl --user edit {name}.service
[Unit]
Description=hermes-actor, the one writer of {text}
Wants={name}.socket
After={name}.socket
PartOf={name}.socket
StartLimitIntervalSec=60
StartLimitBurst=30

[Service]
Type=notify
# A successor announces itself as the main process, and so does an old actor that takes back.
# Neither is the main process at that moment: `main` would ignore them.
NotifyAccess=all
{environment}ExecStart={python} -P -m hermes_actor serve --plain --db {db}
# A hand-off: the code that is on the disk now takes over, and clients notice nothing.
ExecReload={python} -P -m hermes_actor handoff --db {db}
# SIGTERM, and wait. A successor becomes a child of the manager when the old actor is gone; of a
# main process that was no child when it was announced the manager does not wait for the end:
# it would send SIGKILL right after SIGTERM, in the middle of the drain.
ExecStop=/bin/sh -c 'test -z "$MAINPID" || kill "$MAINPID"; \\
    while kill -0 "$MAINPID" 2>/dev/null; do sleep 0.05; done'
# SIGTERM is for the actor alone: it ends an unfinished successor in order. What is left after it
# gets SIGKILL.
KillMode=mixed
TimeoutStopSec=45
# A migration takes as long as it takes; `systemctl --user status` shows how far it is.
TimeoutStartSec=infinity
# Fed as long as the event loop runs and the writer is not stuck.
WatchdogSec=60
Restart=on-failure
# 1: the file cannot be opened. The next client triggers another try, and gets the reason.
RestartPreventExitStatus=1
UMask=0077
# What needs a mount or user namespace (ProtectSystem=, PrivateTmp= and so on) is left out: it would
# hide from the actor which programs use the file beside it, and root, who may connect.
NoNewPrivileges=yes
LockPersonality=yes
RestrictAddressFamilies=AF_UNIX
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native

[Install]
WantedBy=default.target
"""


_SOCKET_UNIT = """\
# Written by `hermes-actor service install`, and overwritten by it.
[Unit]
Description=hermes-actor, the socket of {text}

[Socket]
# Outside of the home. Clients read beside the file where it is, once the service has run.
ListenStream=%t/hermes-actor/{name}
SocketMode=0600
DirectoryMode=0700
Backlog={backlog}

[Install]
WantedBy=sockets.target
"""


class Systemd:
    """The service manager, set up for one store; ``files`` are its units and their text."""

    def __init__(self, paths: StorePaths) -> None:
        self.name = name = unit_name(paths)
        config = os.environ.get("XDG_CONFIG_HOME", "").strip()
        folder = (Path(config) if config else Path.home() / ".config") / "systemd" / "user"
        text, db = _escape(str(paths.db)), _word(str(paths.db))
        self.files = {
            folder / f"{name}.service": _UNIT.format(
                name=name,
                text=text,
                db=db,
                python=_word(sys.executable),
                environment="".join(
                    f"Environment={_word(f'{key}={value}')}\n"
                    for key, value in interpreter_variables().items()
                ),
            )
        }
        self.files[folder / f"{name}.socket"] = _SOCKET_UNIT.format(
            text=text, name=name, backlog=limits.LISTEN_BACKLOG
        )
        self._units = sorted(path.name for path in self.files)

    def unavailable_reason(self) -> str | None:
        """Return why the manager cannot be used; ``None`` if it can."""
        return unavailable(["systemctl", "--user", "show", "--property=Version"])

    def start(self, *, changed: bool) -> list[Command]:
        """Return the commands that start the service now and at every login."""
        # --no-block: the actor may have to wait for the present owner of the store.
        return [
            ["systemctl", "--user", "daemon-reload"],
            ["systemctl", "--user", "--no-block", "enable", "--now", *self._units],
        ]

    def stop(self) -> list[Command]:
        """Return the commands that stop the service for good, before its files are removed."""
        return [["systemctl", "--user", "disable", "--now", *self._units]]

    def restart(self) -> list[Command]:
        """Return the commands that restart the running service."""
        return [["systemctl", "--user", "restart", f"{self.name}.service"]]

    def reload_after_removal(self, *, stopped: bool) -> list[Command]:
        """Return the commands that make the manager notice the removed files."""
        stop = [] if stopped else [["systemctl", "--user", "stop", *self._units]]
        return [*stop, ["systemctl", "--user", "daemon-reload"]]

    def report(self) -> dict[str, Any]:
        """Return ``state``, ``active``, ``pid`` and ``status`` of the service."""
        properties = "ActiveState,SubState,UnitFileState,MainPID,StatusText"
        text = output_of(["systemctl", "--user", "show", f"--property={properties}",
                        f"{self.name}.service"])  # fmt: skip
        found = dict(line.partition("=")[::2] for line in text.splitlines())
        active = found.get("ActiveState", "unknown")
        enabled = found.get("UnitFileState") or "not known to systemd"
        return {
            "state": f"{active} ({found.get('SubState', 'unknown')}), {enabled}",
            "active": active in ("active", "reloading"),
            "pid": int(found.get("MainPID") or 0) or None,
            "status": found.get("StatusText") or None,
        }


def _escape(text: str) -> str:
    """Escape the specifiers in a value that systemd takes literally."""
    return text.replace("%", "%%")


def _word(text: str) -> str:
    """Quote one word of a command line, or an assignment, for systemd."""
    if re.fullmatch(r"[\w@+=:,./-]+", text, re.ASCII):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("$", "$$")
    return f'"{_escape(escaped)}"'
