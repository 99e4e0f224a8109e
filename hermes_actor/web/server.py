"""The process that serves the pages: its socket, its token, its addresses, its end."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import secrets
import socket
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import uvicorn

from hermes_actor.errors import NotAllowed
from hermes_actor.web.app import create_app
from hermes_actor.web.connections import MOST_CONNECTIONS, TimedProtocol
from hermes_actor.web.security import Access, EntryCode
from hermes_actor.web.site import Site
from hermes_actor.web.stores import Stores

__all__ = ["Address", "serve"]

_END_SECONDS = 3
"""Time for answers that are on their way when the server is ended."""

_STANDARD_PORTS = {False: 80, True: 443}


class Address(NamedTuple):
    """The place of the pages in the network."""

    host: str = "127.0.0.1"
    port: int = 0
    names: tuple[str, ...] = ()
    """Further names under which browsers reach it."""
    certificate: Path | None = None
    key: Path | None = None
    insecure: bool = False
    """Serve other machines without TLS: the token and all content can be read on the way."""

    @property
    def is_loopback(self) -> bool:
        """True if only this machine reaches it."""
        with contextlib.suppress(ValueError):
            return ipaddress.ip_address(self.host).is_loopback
        return self.host == "localhost"

    def check(self) -> None:
        """Raise :class:`NotAllowed` for an address that other machines reach without TLS."""
        if not self.is_loopback and self.certificate is None and not self.insecure:
            raise NotAllowed(
                f"{self.host} can be reached from other machines: give --tls-certificate and"
                " --tls-key, or --insecure if the network may read all of it"
            )

    def bind(self) -> socket.socket:
        """Return a bound socket. Raises ``OSError`` that names the address."""
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        # With its protocol: asyncio switches Nagle's delay off only for sockets that name TCP.
        sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((self.host, self.port))
        except OSError as error:
            sock.close()
            error.filename = f"{self.host}:{self.port}"
            raise
        return sock


class _Server(uvicorn.Server):
    """The server; its end is that of live pages, which have none of their own."""

    def __init__(self, config: uvicorn.Config, site: Site) -> None:
        super().__init__(config)
        self._site = site
        self._ending: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None

    async def main_loop(self) -> None:
        """Wait for a signal. The loop of the base class wakes ten times a second, to set a date
        that these pages do not send."""
        loop, event = asyncio.get_running_loop(), asyncio.Event()
        self._ending = loop, event
        if not self.should_exit:
            await event.wait()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to end, by a signal."""
        super().handle_exit(sig, frame)
        if self._ending is not None:
            loop, event = self._ending
            # From a signal handler: the loop sleeps in the kernel, and this wakes it.
            loop.call_soon_threadsafe(event.set)
        self._site.end_live()


def hosts_of(names: Iterable[str], port: int, secure: bool) -> frozenset[str]:
    """Return every ``Host`` under which the pages are reached by *names*."""
    shown = [f"[{name}]" if ":" in name else name.lower() for name in names]
    hosts = {f"{name}:{port}" for name in shown}
    return frozenset(hosts | set(shown) if port == _STANDARD_PORTS[secure] else hosts)


def serve(stores: Stores, address: Address, ready: Callable[[str, str], None]) -> None:
    """Serve *stores* until the process is interrupted.

    Once the socket listens *ready* is called with two addresses: one with the token, and one for
    the command line of a browser, which is good once.
    Raises :class:`NotAllowed` for an address that is not safe.
    """
    address.check()
    secure = address.certificate is not None
    sock = address.bind()
    port = sock.getsockname()[1]
    names = {address.host, *address.names}
    if address.is_loopback:
        names |= {"127.0.0.1", "localhost", "::1"}
    token = secrets.token_urlsafe(32)
    entry = EntryCode()
    access = Access(token, hosts_of(names, port, secure), secure, entry)
    host = address.names[0] if address.names else address.host
    shown = f"[{host}]" if ":" in host else host
    site = Site(stores, access)
    config = uvicorn.Config(
        create_app(site), log_level="warning", access_log=False, server_header=False,
        date_header=False, limit_concurrency=2 * MOST_CONNECTIONS, lifespan="on", ws="none",
        timeout_graceful_shutdown=_END_SECONDS, proxy_headers=False, http=TimedProtocol,
        ssl_certfile=address.certificate, ssl_keyfile=address.key,
    )  # fmt: skip
    with contextlib.closing(sock):
        sock.listen(128)
        # Connections wait in the socket until the server takes them.
        base = f"{'https' if secure else 'http'}://{shown}:{port}/"
        ready(f"{base}?token={token}", f"{base}?entry={entry.text}")
        _Server(config, site).run(sockets=[sock])
