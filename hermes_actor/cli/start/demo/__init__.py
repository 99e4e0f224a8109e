"""``hermes-actor demo``: many processes write while their actor is updated, killed and ended."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from hermes_actor import exit_codes
from hermes_actor.cli.options import json_option
from hermes_actor.cli.output.formatting import print_json
from hermes_actor.cli.start.demo._verdict import judge, judge_plain, print_comparison, print_verdict
from hermes_actor.cli.start.demo._views import view

if TYPE_CHECKING:
    from hermes_actor.testing.load import Load
    from hermes_actor.testing.writer_pool import History

__all__ = ["demo"]

_READERS = 2
_LOOK_SECONDS = 0.1


@click.command()
@click.option(
    "--compare", is_flag=True,
    help="Put the same load on the file without an actor first; then both verdicts.",
)  # fmt: skip
@click.option(
    "--seconds", type=click.FloatRange(min=5, max=600), default=15.0, show_default=True,
    metavar="N", help="Duration in seconds; with --compare, of each half.",
)  # fmt: skip
@click.option(
    "--writers", type=click.IntRange(min=1, max=64), default=8, show_default=True,
    metavar="N", help="Number of writer processes.",
)  # fmt: skip
@click.option(
    "--seed", type=int, default=0, show_default=True, metavar="N",
    help="Seed of the order of events.",
)  # fmt: skip
@json_option
def demo(compare: bool, seconds: float, writers: int, seed: int, as_json: bool) -> int:
    """Watch writers while their actor is updated and killed.

    In a temporary home, writers and two readers work while the actor is handed off every second,
    killed twice with kill -9, stopped once with SIGTERM, and updated once to a build that cannot
    start. Then every acknowledgement is compared with the file.

    With --compare the same writers open the file by themselves first, without an actor and without
    kills: by the class of the hermes-agent that is installed beside this command, else by plain
    sqlite3. In both halves one more writer appends large texts, and one writer is suspended for six
    seconds, in the middle of its transaction if it has one. Both verdicts stand side by side.

    Exit codes: 0 nothing was lost, duplicated or reordered and every write succeeded, 1 otherwise;
    then the home is kept and its path printed. The half without an actor does not count.

    \b
    Examples:
      hermes-actor demo
      hermes-actor demo --compare
      hermes-actor demo --seconds 60 --writers 16
    """
    # Late: only this command needs them.
    from hermes_actor.testing.plain import plain_load
    from hermes_actor.testing.scenario import Scenario

    plain: dict[str, Any] | None = None
    if compare:
        with plain_load()(seconds, writers, _READERS, seed, rough=True) as load:
            plain = judge_plain(load, _run(load, as_json))
    with Scenario(seconds, writers, _READERS, seed, rough=compare) as show:
        document = judge(show, _run(show, as_json))
        show.keep = not document["good"]
        if as_json:
            print_json(document if plain is None else {**document, "plain": plain})
        elif plain is None:
            print_verdict(document)
        else:
            print_comparison(plain, document)
    return exit_codes.OK if document["good"] else exit_codes.REFUSED


def _run(load: Load, as_json: bool) -> History:
    try:
        with view(as_json) as draw:
            draw(load, 0)
            load.start()
            while load.running:
                time.sleep(_LOOK_SECONDS)
                draw(load, load.poll())
    except TimeoutError as error:
        raise click.ClickException(str(error)) from error
    return load.finish()
