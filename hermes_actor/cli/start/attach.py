"""``hermes-actor attach``: have an installed hermes-agent store through the actor."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hermes_actor import exit_codes
from hermes_actor.cli.options import json_option
from hermes_actor.cli.output.console import print_result, waiting
from hermes_actor.cli.output.formatting import count
from hermes_actor.paths import default_home

if TYPE_CHECKING:
    from hermes_actor.attach.attachment import Outcome, State
    from hermes_actor.attach.environments import Environment

__all__ = ["attach"]

_TIERS = {
    "typed": "our SessionDB in the place of its own; other databases on connect()",
    "sqlite": "its own code on connect()",
    "direct": "switched off by attach.tier",
}


@click.command()
@click.option(
    "--python", type=click.Path(path_type=Path), metavar="PATH",
    help="Interpreter that hermes-agent is installed for. Default: it is searched for.",
)  # fmt: skip
@click.option(
    "--hermes", type=click.Path(path_type=Path), metavar="PATH",
    help="The program hermes, whose interpreter is used.",
)  # fmt: skip
@click.option(
    "--home", type=click.Path(path_type=Path, file_okay=False), metavar="PATH",
    help="Home whose databases are attached. Default: HERMES_HOME, or ~/.hermes.",
)  # fmt: skip
@click.option("--check", is_flag=True, help="Show what is attached; change nothing.")
@click.option("--undo", is_flag=True, help="Detach all databases and remove the hook.")
@json_option
def attach(
    python: Path | None,
    hermes: Path | None,
    home: Path | None,
    check: bool,
    undo: bool,
    as_json: bool,
) -> int:
    """Have an installed hermes-agent store through the actor.

    Finds the environment that hermes runs in, backs up every database of the home, puts an import
    hook among the packages of that environment, and proves with a fresh interpreter that its stores
    are opened through us. No file of hermes-agent is changed. Whatever fails is undone.

    Programs that are running already go on as before until they are started again; they are named.
    --undo removes the hook and everything that was added to the databases; backups stay.

    Exit codes: 0 attached (or detached), 1 not attached, refused, or something needs attention.

    \b
    Examples:
      hermes-actor attach
      hermes-actor attach --hermes ~/.local/bin/hermes --home ~/.hermes
      hermes-actor attach --check
      hermes-actor attach --undo
    """
    if check and undo:
        raise click.UsageError("--check cannot be combined with --undo")
    if python is not None and hermes is not None:
        raise click.UsageError("--python cannot be combined with --hermes")
    from hermes_actor.attach import attachment
    from hermes_actor.attach.environments import find_environment

    where = (home or default_home()).resolve()
    step = "looking for hermes-agent"

    def note(text: str) -> None:
        nonlocal step
        step = text

    with waiting(lambda: step):
        if undo:
            detached = attachment.undo(where, _present_environment(python, hermes, where), note)
            return _show_detached(where, detached, as_json)
        environment = find_environment(python, hermes)
        if check:
            return _show_state(environment, attachment.look(where, environment), where, as_json)
        outcome = attachment.attach(environment, where, note)
    _show_outcome(environment, outcome, as_json)
    return exit_codes.OK


def _present_environment(
    python: Path | None, hermes: Path | None, home: Path
) -> Environment | None:
    """Return the environment; ``None`` if that of an attached *home* is gone, and none is named."""
    from hermes_actor.attach.environments import find_environment
    from hermes_actor.attach.record import read_record
    from hermes_actor.errors import AttachFailed

    try:
        return find_environment(python, hermes)
    except AttachFailed:
        if python is not None or hermes is not None or read_record(home) is None:
            raise
        return None


def _show_detached(home: Path, detached: Sequence[Path], as_json: bool) -> int:
    files = [str(path) for path in detached]
    text = (
        f"detached: {home} has {count(len(files), 'database')} without anything of ours\n"
        "hermes opens them by itself from now on; attach again with: hermes-actor attach"
    )
    print_result({"home": str(home), "detached": files}, text, as_json)
    return exit_codes.OK


def _show_outcome(environment: Environment, outcome: Outcome, as_json: bool) -> None:
    from hermes_actor.attach.programs import restart_advice

    record, running = outcome
    lines = [
        f"attached: hermes-agent {record.release} in {environment.prefix} stores {record.home}"
        f" through the actor ({_TIERS[record.tier]})",
        "to go back: hermes-actor attach --undo",
    ]
    if running:
        lines.append(
            f"started before, so they still write by themselves: {restart_advice(running)}"
        )
    document = {
        "attached": True,
        **record.document(),
        "running": [one._asdict() for one in running],
    }
    print_result(document, "\n".join(lines), as_json)


def _show_state(environment: Environment, state: State, home: Path, as_json: bool) -> int:
    record = state.record
    document: dict[str, Any] = {
        "attached": state.is_hooked,
        "home": str(home),
        "python": str(environment.python),
        "release": environment.release,
        "problems": state.problems,
        "record": record and record.document(),
    }
    if record is None and not state.is_hooked:
        lines = [
            f"not attached: hermes-agent {environment.release} in {environment.prefix} opens the"
            f" databases of {home} by itself",
            "to attach it: hermes-actor attach"
            if environment.own is not None
            else f"to attach it, install hermes-actor there first: {environment.install_command}",
        ]
    else:
        lines = [
            f"{'attached' if not state.problems else 'attached, with problems'}: hermes-agent"
            f" {environment.release} in {environment.prefix}, {home}"
            f"{f' ({_TIERS[record.tier]})' if record is not None else ''}"
        ]
        lines += [f"  {text}" for text in state.problems]
        lines += ["to put it right: hermes-actor attach"] if state.problems else []
    print_result(document, "\n".join(lines), as_json)
    if record is None or state.problems:
        return exit_codes.REFUSED
    return exit_codes.OK
