"""Notifications for a service manager: the messages of ``sd_notify``, one datagram each.

Without ``NOTIFY_SOCKET`` nothing is sent. The variables stay in the environment: a successor has
the same manager.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time

__all__ = ["ServiceManager"]

_SEND_SECONDS = 1.0
"""A manager that is busy gets this long to make room for a message."""


class ServiceManager:
    """The service manager of this process, if there is one. A message that fails is dropped."""

    def __init__(self, address: str | None = None, tick_seconds: float | None = None) -> None:
        """*tick_seconds*: how often its watchdog must be notified; ``None``: it has none."""
        self.tick_seconds = tick_seconds
        self._address = address
        self._phase = ""

    @classmethod
    def from_environment(cls) -> ServiceManager:
        """Return the manager that the variables name. Removes ``WATCHDOG_PID``: a successor has
        another pid."""
        watched = os.environ.pop("WATCHDOG_PID", None)
        if watched not in (None, str(os.getpid())):
            # Meant for the process that started this one.
            os.environ.pop("WATCHDOG_USEC", None)
        address = os.environ.get("NOTIFY_SOCKET", "")
        if address[:1] not in ("/", "@"):
            return cls()
        usec = os.environ.get("WATCHDOG_USEC", "")
        # Half of the time that the manager waits, so that one late tick is no failure.
        return cls(address, int(usec) / 2e6 if usec.isdecimal() and int(usec) else None)

    @property
    def is_there(self) -> bool:
        """True if a service manager has started this actor."""
        return self._address is not None

    def phase(self, text: str) -> None:
        """Show *text* to people, once, however often it is reported."""
        if text != self._phase:
            self._phase = text
            self._send(f"STATUS={text}")

    def ready(self) -> None:
        """Report that the actor serves. That makes it the main process of the service."""
        self._send(f"MAINPID={os.getpid()}", "READY=1", "STATUS=serving")

    def reloading(self) -> None:
        """Report that a hand-off has closed the file; the next to serve reports ready again."""
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self._phase = ""
        # With the time, which services of Type=notify-reload must send.
        self._send("RELOADING=1", f"MONOTONIC_USEC={now}", "STATUS=handing over")

    def stopping(self, reason: str) -> None:
        """Report that the actor drains, and why."""
        self._send("STOPPING=1", f"STATUS=draining: {reason}")

    def tick(self) -> None:
        """Notify the watchdog. Never waits: the next tick will do."""
        self._send("WATCHDOG=1", timeout=0.0)

    def _send(self, *lines: str, timeout: float = _SEND_SECONDS) -> None:
        if self._address is None:
            return
        address = self._address.replace("@", "\0", 1) if self._address[0] == "@" else self._address
        # One line each: a line break in the text of an error would begin another variable.
        text = "\n".join(" ".join(line.split()) for line in lines)
        # A manager that has exited must not cost the actor anything.
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock,
        ):
            sock.settimeout(timeout)
            sock.sendto(text.encode(errors="replace"), address)
