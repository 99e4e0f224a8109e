"""``hermes-actor serve``: run the actor of a store in the foreground."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import click

from hermes_actor import limits
from hermes_actor.paths import Place, default_db_path, place_of

__all__ = ["serve"]


@click.command()
@click.option(
    "--db", type=click.Path(path_type=Path), help="The file; default HERMES_HOME/state.db."
)
@click.option("--detach", is_flag=True, hidden=True, help="Leave the starting process.")
@click.option("--ready-fd", type=int, hidden=True, help="Where to say that it serves.")
def serve(db: Path | None, detach: bool, ready_fd: int | None) -> int:
    """Own the store and serve every process, until SIGTERM.

    Exit codes: 0 after a drain, 4 if another actor owns the store, 1 if it cannot be opened.

    \b
    Example:
      hermes-actor serve --db ~/.hermes/state.db
    """
    if detach and os.fork():
        # The starter waits for this half only; the actor is nobody's child.
        os._exit(0)
    from hermes_actor.actor.main import serve as run_actor

    place = place_of(db or default_db_path())
    return run_actor(
        place,
        ready_fd=ready_fd,
        idle_exit=_idle_exit() if detach else None,
        to_log=detach,
        announce=None if detach else _announce(place),
    )


def _announce(place: Place) -> Callable[[BaseException | None], None]:
    def say(error: BaseException | None) -> None:
        if error is None:
            print(f"serving {place.db} (pid {os.getpid()}); end with SIGTERM", flush=True)
        else:
            print(f"Error: {error}", flush=True)

    return say


def _idle_exit() -> float | None:
    seconds = float(os.environ.get("HERMES_ACTOR_IDLE_EXIT") or limits.IDLE_EXIT_SECONDS)
    return seconds or None
