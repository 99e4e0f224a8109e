"""The contract of a store of sessions, which is at the same time its implementation.

A provider keeps the sessions of an agent somewhere: in an SQLite file behind the actor, on a
PostgreSQL or MySQL server, or where a third party puts them. Every public method is written once,
in a module of this package by subject, and builds an operation or names a query. A provider
supplies what carries them out: a :class:`~hermes_actor.client.interfaces.WriterPort` and a
:class:`~hermes_actor.client.interfaces.ReaderPort`. What may differ is declared in
:class:`Capabilities`, and listed with its reason in ``docs/reference/providers.md``.

A third party subclasses :class:`SessionDBProvider` and names its class in the entry point group
``hermes_actor.sessiondb_providers``; the name of the entry point is the value of
``sessiondb.provider`` and the scheme of its URLs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self

from hermes_actor.api.archive import ArchiveMethods
from hermes_actor.api.gateway import GatewayMethods
from hermes_actor.api.messages import MessageMethods
from hermes_actor.api.queries import QueryMethods
from hermes_actor.api.sessions import SessionMethods

if TYPE_CHECKING:
    from hermes_actor.client.subscription import Subscription
    from hermes_actor.pipeline import Pipeline

__all__ = ["Capabilities", "SessionDBProvider", "StoreMethods"]


class Capabilities(NamedTuple):
    """Promises of a provider beyond the methods themselves."""

    durability: Literal["synced", "relaxed"]
    """``synced``: acknowledged means on disk. ``relaxed``: a crash of the server may take back the
    last acknowledged changes, though never a part of one."""
    changes: Literal["pushed", "polled", "none"]
    """The way in which followers of :meth:`SessionDBProvider.subscribe` learn of a change."""
    search: frozenset[str]
    """Kinds of search: ``words``, ``phrases``, ``prefixes``, ``stems``, ``cjk``, ``substrings``,
    ``similarity``."""
    many_hosts: bool
    """Processes on several hosts may use one store."""
    private_sql: bool
    """``_conn`` and ``_execute_write`` take SQL of the caller."""


class StoreMethods(
    SessionMethods,
    MessageMethods,
    QueryMethods,
    ArchiveMethods,
    GatewayMethods,
):
    """Every method of a store, by subject, over a writer port and a reader port."""


class SessionDBProvider(StoreMethods, ABC):
    """A store of sessions. Every method is safe to call from any thread.

    A subclass opens its store in ``__init__`` or :meth:`from_url` and then sets ``_port``,
    ``_queries`` and ``_timeout``; all other methods stand on these.
    """

    provider: ClassVar[str]
    """The name under which it is chosen."""

    @classmethod
    @abstractmethod
    def from_url(
        cls, url: str, *, settings: Mapping[str, Any] | None = None, timeout: float = 30.0
    ) -> Self:
        """Open the store that *url* names.

        Args:
            url: Its scheme is the name of the provider.
            settings: The other keys of ``sessiondb`` in ``config.yaml``.
            timeout: Seconds that a call waits for the writer before it gives up.

        Raises:
            OpenError: the store cannot be reached or opened. No message repeats a password.
        """

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """The promises of this store, as it was opened."""

    @abstractmethod
    def close(self) -> None:
        """Stop using the store. Calling it again is harmless; other objects are not disturbed.

        Later calls raise :class:`Closed`.
        """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        """Close the store."""
        self.close()

    def pipeline(self) -> Pipeline:
        """Send several changes in one round trip; see :mod:`hermes_actor.pipeline`."""
        from hermes_actor.pipeline import Pipeline

        return Pipeline(self)

    def subscribe(self, after: int | None = None) -> Subscription:
        """Follow the changes of the store, made by any process.

        Args:
            after: The ``commit_no`` of the last change that is known; default: all that are made
                from now on.

        Returns:
            An iterator of :class:`Changed`, and of :class:`Gap` where changes were missed. Close
            it, or use it in a ``with`` block.

        Raises:
            Closed: the store was closed.
            OpenError: no writer can be reached.
        """
        from hermes_actor.client.subscription import Subscription

        return Subscription(self._opened_port().subscribe(after, self._timeout))
