"""``--all``: one command for every store of the home."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from hermes_actor import exit_codes
from hermes_actor.cli.output.console import collected_results
from hermes_actor.cli.output.errors import CommandError, print_error
from hermes_actor.cli.output.formatting import print_json
from hermes_actor.errors import HermesActorError
from hermes_actor.paths import StorePaths, default_home, stores_below

if TYPE_CHECKING:
    from concurrent.futures import Future

__all__ = ["all_option", "ask_at_once", "for_every_store"]

T = TypeVar("T")
R = TypeVar("R")

all_option = click.option(
    "--all", "every", is_flag=True, help="Work on every store below HERMES_HOME."
)

Command = Callable[..., int | None]


_ASKED_AT_ONCE = 64
"""More actors are asked in turn: each question takes a thread and a socket while it waits."""


def ask_at_once(ask: Callable[[T], R], each: Sequence[T]) -> dict[T, Future[R]]:
    """Ask all actors at once: several that are silent take no longer than one.

    Returns when the last one has answered, or has been given up.
    """
    if not each:
        return {}
    from concurrent.futures import ThreadPoolExecutor  # late: most commands ask no actor, or one

    with ThreadPoolExecutor(min(len(each), _ASKED_AT_ONCE)) as pool:
        return {one: pool.submit(ask, one) for one in each}


def for_every_store(
    *alone: str, ask: Callable[[StorePaths], Any] | None = None
) -> Callable[[Command], Command]:
    """Add ``--all`` to a command that has ``--db`` and ``--json``; not together with *alone*.

    The command runs for one store after the other; what one of them fails with ends only its own
    run. With *ask* all stores are asked before, at once, and the command gets the answers as an
    argument ``ask``, a function like that.

    With ``--json`` there is one list, with ``database``, ``code``, ``result`` and ``error`` of
    each. The exit code is the highest; that there is no actor counts only if no store has one.
    """

    def decorate(command: Command) -> Command:
        @all_option
        @functools.wraps(command)
        def run(
            *context: Any, db: Path | None, as_json: bool, every: bool, **options: Any
        ) -> int | None:
            if not every:
                return command(*context, db=db, as_json=as_json, **options)
            given = ["db"] if db is not None else [name for name in alone if options.get(name)]
            if given:
                raise click.UsageError(f"--all cannot be combined with --{given[0]}")

            stores = [*stores_below(default_home())]
            if ask is not None:
                answers = ask_at_once(ask, stores)
                options["ask"] = lambda paths: answers[paths].result()

            def run_one(file: Path) -> int | None:
                return command(*context, db=file, as_json=as_json, **options)

            return _run_for_all(run_one, stores, as_json)

        return run

    return decorate


def _run_for_all(
    run_one: Callable[[Path], int | None], stores: Sequence[StorePaths], as_json: bool
) -> int:
    documents, codes = [], list[int]()
    for paths in stores:
        with collected_results() as results:
            if not as_json:
                print(f"== {paths.db}", flush=True)
            error, code = None, exit_codes.REFUSED
            try:
                code = run_one(paths.db) or exit_codes.OK
            except CommandError as failure:
                error, code = failure.message.removeprefix("Error: "), failure.code
            except (HermesActorError, OSError) as failure:
                error = str(failure)
        if error is not None and not as_json:
            print_error(error, code)
        result = results[-1] if results else None
        documents.append(
            {"database": str(paths.db), "code": code, "result": result, "error": error}
        )
        codes.append(code)
    if as_json:
        print_json(documents)
    elif not codes:
        print(f"there is no store below {default_home()}")
    counted = [code for code in codes if code != exit_codes.NOT_RUNNING] or codes
    return max(counted, default=exit_codes.OK)
