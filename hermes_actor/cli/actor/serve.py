"""``hermes-actor serve``: run the actor of a store in the foreground."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from hermes_actor.cli.options import db_option
from hermes_actor.cli.store import creatable_paths, paths_for
from hermes_actor.config import Config, load
from hermes_actor.errors import BadConfig
from hermes_actor.paths import StorePaths
from hermes_actor.settings import (
    ACTOR_DRAIN_SECONDS,
    ACTOR_IDLE_EXIT,
    ACTOR_PRIVATE_SQL,
    ACTOR_RESCUE,
    Setting,
)
from hermes_protocol.features import KINDS, PLAIN, SESSIONS

if TYPE_CHECKING:
    from hermes_actor.actor.process import Settings
    from hermes_protocol.status import PhaseReport, Status

__all__ = ["serve"]

T = TypeVar("T")

_log = logging.getLogger("hermes_actor.actor")


@click.command()
@db_option
@click.option(
    "--kind", type=click.Choice(KINDS), default=SESSIONS, show_default=True,
    help="What a file holds that does not say so itself.",
)  # fmt: skip
@click.option(
    "--idle-exit", type=click.FloatRange(min=0), metavar="SECONDS",
    help="Exit after this time without connections. 0, the default: never.",
)  # fmt: skip
@click.option(
    "--drain-seconds", type=click.FloatRange(min=0), metavar="SECONDS",
    help="How long a drain waits for clients to read their replies. Default: 5.",
)  # fmt: skip
@click.option("--no-private-sql", is_flag=True, help="Refuse SQL sent through SessionDB._conn.")
@click.option(
    "--plain", is_flag=True, help="Print one line when it is ready instead of the live view."
)
@click.option("--detach", is_flag=True, hidden=True, help="Detach from the starting process.")
@click.option("--ready-fd", type=int, hidden=True, help="Descriptor to report readiness on.")
@click.option(
    "--successor-fd", type=int, hidden=True, help="Socket of the actor to take over from."
)
def serve(
    db: Path | None,
    kind: str,
    idle_exit: float | None,
    drain_seconds: float | None,
    no_private_sql: bool,
    plain: bool,
    detach: bool,
    ready_fd: int | None,
    successor_fd: int | None,
) -> int:
    """Run the actor of a store in the foreground.

    On a terminal it shows a live view of the actor; otherwise it prints one line when it is ready.
    SIGTERM and Ctrl-C drain it.

    Exit codes: 0 drained, 1 the store cannot be opened, 4 another process owns the store, 71 a sync
    of the disk failed, 72 the files were replaced, 73 another owner took over.

    \b
    Examples:
      hermes-actor serve
      hermes-actor serve --db ~/.hermes/state.db --plain
      hermes-actor serve --db ~/.hermes/kanban.db --kind plain
    """
    if detach and os.fork():
        # The starter waits for this half only; init adopts the actor.
        os._exit(0)
    from hermes_actor.actor.process import serve as run_actor
    from hermes_actor.actor.process import succeed

    # A client or an actor that starts this one knows the store, and may have to make its home.
    by_hand = not detach and successor_fd is None
    # By hand, the name of the kind says that the file of another program is meant.
    paths = creatable_paths(db, PLAIN, adopting=kind == PLAIN) if by_hand else paths_for(db)
    # A slip in a file that many programs share must not cost a client its changes. A person who
    # starts a service is there to correct it.
    read = _Reader(paths, forgiving=not by_hand)
    settings = _settings(read, kind, idle_exit, drain_seconds, no_private_sql, on_demand=detach)
    if successor_fd is not None:
        return succeed(paths, settings, successor_fd)
    with contextlib.ExitStack() as stack:
        return run_actor(
            paths,
            settings,
            ready_fd=ready_fd,
            to_log=detach,
            starter=None if detach else _Terminal(paths),
            on_status=None if detach or plain else _live_view(stack),
        )


def _live_view(stack: contextlib.ExitStack) -> Callable[[Status], None] | None:
    if not sys.stdout.isatty():
        return None
    # Late, and before the actor serves: an actor without a terminal does not need rich.
    from hermes_actor.cli.output.live_view import live_panel

    return stack.enter_context(live_panel())


class _Terminal:
    """The person who started the actor."""

    def __init__(self, paths: StorePaths) -> None:
        self._paths = paths

    def report_phase(self, phase: PhaseReport) -> None:
        """Print nothing: the log has the phases."""

    def report_serving(self) -> None:
        print(
            f"serving {self._paths.db} (pid {os.getpid()}); stop with SIGTERM",
            flush=True,
        )

    def report_failed(self, error: BaseException) -> None:
        print(f"Error: {error}", file=sys.stderr, flush=True)


class _Reader:
    """The settings of the actor. A *forgiving* one logs a bad value and takes its default."""

    def __init__(self, paths: StorePaths, *, forgiving: bool) -> None:
        self._forgiving = forgiving
        try:
            self._config = load(paths.db.parent, "actor")
        except BadConfig as error:
            self._config = Config(paths.db.parent / "config.yaml")
            self._report(error)

    def __call__(self, setting: Setting[T]) -> T:
        try:
            return self._config.read(setting)
        except BadConfig as error:
            self._report(error)
            return setting.default

    def _report(self, error: BadConfig) -> None:
        if not self._forgiving:
            raise error
        _log.error("%s; the default is used", error)


def _settings(
    read: _Reader,
    kind: str,
    idle_exit: float | None,
    drain_seconds: float | None,
    no_private_sql: bool,
    *,
    on_demand: bool,
) -> Settings:
    """The options, else the environment, else the file, else the defaults. Zero means never.

    A service never idles out by itself: what the environment and the file say about that is for
    actors that are started *on_demand*.
    """
    from hermes_actor.actor.process import Settings

    if idle_exit is None and on_demand:
        idle_exit = read(ACTOR_IDLE_EXIT)
    if drain_seconds is None:
        drain_seconds = read(ACTOR_DRAIN_SECONDS)
    return Settings(
        idle_exit=idle_exit or None,
        drain_seconds=drain_seconds,
        private_sql=read(ACTOR_PRIVATE_SQL) and not no_private_sql,
        rescue=read(ACTOR_RESCUE),
        kind=kind,
    )
