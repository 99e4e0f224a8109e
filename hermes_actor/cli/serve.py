"""``hermes-actor serve``: run the actor of a store in the foreground."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hermes_actor import limits
from hermes_actor.cli.files import place_for
from hermes_actor.config import Config, load
from hermes_actor.errors import BadConfig
from hermes_actor.paths import Place

if TYPE_CHECKING:
    from hermes_actor.actor.main import Settings

__all__ = ["serve"]


@click.command()
@click.option(
    "--db", type=click.Path(path_type=Path), help="The file; default HERMES_HOME/state.db."
)
@click.option(
    "--idle-exit",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="End after this time without connections; 0, the default here: never.",
)
@click.option(
    "--drain-seconds",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="How long the end waits for clients to take their answers; default 5.",
)
@click.option("--no-private-sql", is_flag=True, help="Refuse the SQL of SessionDB._conn.")
@click.option(
    "--plain", is_flag=True, help="One line when it serves instead of the live view of a terminal."
)
@click.option("--detach", is_flag=True, hidden=True, help="Leave the starting process.")
@click.option("--ready-fd", type=int, hidden=True, help="Where to say that it serves.")
@click.option("--successor-fd", type=int, hidden=True, help="From whom to take over.")
def serve(
    db: Path | None,
    idle_exit: float | None,
    drain_seconds: float | None,
    no_private_sql: bool,
    plain: bool,
    detach: bool,
    ready_fd: int | None,
    successor_fd: int | None,
) -> int:
    """Own the store and serve every process, until SIGTERM or Ctrl-C.

    On a terminal it shows how the actor is, live; otherwise it prints one line when it serves.

    Exit codes: 0 after a drain, 4 if another actor owns the store, 1 if it cannot be opened, 71
    after a failed sync, 72 if the files were replaced, 73 if another owner took over.

    \b
    Examples:
      hermes-actor serve
      hermes-actor serve --db ~/.hermes/state.db --plain
    """
    if detach and os.fork():
        # The starter waits for this half only; the actor is nobody's child.
        os._exit(0)
    from hermes_actor.actor.main import serve as run_actor
    from hermes_actor.actor.main import succeed

    place = place_for(db)
    try:
        config = load(place.db.parent)
        settings = _settings(config, idle_exit, drain_seconds, no_private_sql, on_demand=detach)
    except BadConfig as error:
        if not detach and successor_fd is None:
            raise
        # Nobody's changes may be lost for a slip in a file that many programs share.
        logging.getLogger("hermes_actor.actor").error("default settings are used: %s", error)
        settings = _settings(
            Config(place.db), idle_exit, drain_seconds, no_private_sql, on_demand=detach
        )
    if successor_fd is not None:
        return succeed(place, settings, successor_fd)
    with contextlib.ExitStack() as stack:
        return run_actor(
            place,
            settings,
            ready_fd=ready_fd,
            to_log=detach,
            announce=None if detach else _announce(place),
            on_status=None if detach or plain else _live_view(stack),
        )


def _live_view(stack: contextlib.ExitStack) -> Callable[[dict[str, Any]], None] | None:
    if not sys.stdout.isatty():
        return None
    # Late, and before the actor serves: rich is not needed by one that nobody watches.
    from hermes_actor.cli.panel import LivePanel

    return stack.enter_context(LivePanel()).show


def _announce(place: Place) -> Callable[[BaseException | None], None]:
    def say(error: BaseException | None) -> None:
        if error is None:
            print(f"serving {place.db} (pid {os.getpid()}); end with SIGTERM", flush=True)
        else:
            print(f"Error: {error}", file=sys.stderr, flush=True)

    return say


def _settings(
    config: Config,
    idle_exit: float | None,
    drain_seconds: float | None,
    no_private_sql: bool,
    *,
    on_demand: bool,
) -> Settings:
    """The options, else the environment, else *config*, else the defaults. Zero means never.

    A service never idles out by itself: what the environment and the file say about that is for
    actors that are started *on_demand*.
    """
    from hermes_actor.actor.main import Settings

    if idle_exit is None and on_demand:
        default = limits.IDLE_EXIT_SECONDS
        idle_exit = config.number(
            "actor.idle_exit", default, minimum=0, env="HERMES_ACTOR_IDLE_EXIT"
        )
    if drain_seconds is None:
        default = limits.DRAIN_SECONDS
        drain_seconds = config.number(
            "actor.drain_seconds", default, minimum=0, env="HERMES_ACTOR_DRAIN_SECONDS"
        )
    private_sql = config.boolean("actor.private_sql", True, env="HERMES_ACTOR_PRIVATE_SQL")
    return Settings(
        idle_exit=idle_exit or None,
        drain_seconds=drain_seconds,
        private_sql=private_sql and not no_private_sql,
        rescue=config.boolean("actor.rescue", True, env="HERMES_ACTOR_RESCUE"),
    )
