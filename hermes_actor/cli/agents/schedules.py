"""``hermes-actor schedules``: jobs of agents, by cron or once, and their runs."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from hermes_actor import exit_codes
from hermes_actor.cli.agents._commands import Listing, add_delete, add_list, add_show, help_text
from hermes_actor.cli.agents._store import agent_option, opened, rows_text, store_option, text_of
from hermes_actor.cli.options import json_option
from hermes_actor.cli.output.console import print_result
from hermes_actor.cli.output.errors import fail

if TYPE_CHECKING:
    from hermes_actor.agent_store.schedules import Schedules

__all__ = ["schedules"]

_RUNS = ("id", "status", "started_at", "duration_ms", "error")


@click.group()
def schedules() -> None:
    """Plan jobs of agents, and run them. All times are in UTC.

    \b
    Examples:
      hermes-actor schedules add "Write the report" --cron "0 9 * * MON-FRI" --agent main
      hermes-actor schedules run -- my-agent --stdin
    """


_LISTING = Listing(
    "schedules", "schedule",
    ("schedule_id", "type", "status", "cron_expression", "next_run_at", "run_count", "prompt"),
    lambda store: store.schedules.list(), lambda store, name: store.schedules.get(name),
)  # fmt: skip
add_list(schedules, _LISTING)
add_show(schedules, _LISTING)
add_delete(
    schedules, _LISTING, lambda store, name: store.schedules.delete(name), example="report",
    more=" and the history of its runs",
)  # fmt: skip


def _add_change(
    verb: str, done: str, state: str, words: str, change: Callable[[Schedules, str], dict[str, Any]]
) -> None:
    """Give the group a command that changes one schedule."""

    @click.argument("schedule_id", metavar="ID")
    @agent_option
    @json_option
    @store_option
    def command(schedule_id: str, agent: str, as_json: bool, store: str | None) -> None:
        with opened(store, agent) as found:
            made = change(found.schedules, schedule_id)
        print_result(made, f"{done} {made['schedule_id']}.", as_json)

    text = help_text(_LISTING, f"{verb} report", words, f"0 {state}; 1 not found.")
    schedules.add_command(click.command(verb, help=text)(command))


_add_change("pause", "Paused", "paused", "Pause a schedule.",
            lambda jobs, name: jobs.update(name, status="paused"))  # fmt: skip
_add_change("resume", "Resumed", "active", "Resume a schedule; one that is overdue runs once.",
            lambda jobs, name: jobs.update(name, status="active"))  # fmt: skip
_add_change("trigger", "Triggered", "due", "Make a schedule due now.",
            lambda jobs, name: jobs.trigger(name))  # fmt: skip


@schedules.command()
@click.argument("prompt")
@click.option("--cron", metavar="EXPRESSION", help="Cron expression, in UTC.")
@click.option("--at", metavar="TIME", help="Time of the only run, such as 2026-01-31T09:00:00Z.")
@click.option("--id", "schedule_id", metavar="ID", help="Id. Default: a random one.")
@click.option("--ephemeral", is_flag=True, help="Each run in a session of its own.")
@agent_option
@json_option
@store_option
def add(
    prompt: str, cron: str | None, at: str | None, schedule_id: str | None, ephemeral: bool,
    agent: str, as_json: bool, store: str | None,
) -> None:  # fmt: skip
    """Add a schedule; PROMPT is "-" for standard input.

    Exit codes: 0 added; 1 refused; 2 neither --cron nor --at, or both.

    \b
    Examples:
      hermes-actor schedules add "Write the report" --cron "0 9 * * MON-FRI" --agent main
      hermes-actor schedules add "Say hello" --at 2026-01-31T09:00:00Z --agent main
    """
    if (cron is None) == (at is None):
        fail("say --cron EXPRESSION or --at TIME", code=exit_codes.USAGE)
    with opened(store, agent) as found:
        made = found.schedules.create(
            "once" if cron is None else "cron", text_of(prompt), schedule_id=schedule_id,
            cron_expression=cron, run_at=at, session_mode="ephemeral" if ephemeral else "dedicated",
        )  # fmt: skip
        found.schedules.plan()
        made = found.schedules.get(made["schedule_id"]) or made
    text = f"Added {made['schedule_id']}, next run {made.get('next_run_at')}."
    print_result(made, text, as_json)


@schedules.command()
@click.argument("schedule_id", metavar="ID")
@click.option(
    "--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="Most runs."
)
@agent_option
@json_option
@store_option
def runs(schedule_id: str, limit: int, agent: str, as_json: bool, store: str | None) -> None:
    """List the runs of a schedule, the newest first.

    Exit codes: 0, even if there is none; 1 no such schedule.

    \b
    Examples:
      hermes-actor schedules runs report --agent main
      hermes-actor schedules runs report --agent main --limit 5 --json
    """
    with opened(store, agent) as found:
        if found.schedules.get(schedule_id) is None:
            _LISTING.missing(schedule_id, agent)
        records = found.schedules.runs(schedule_id, limit)
    print_result(records, rows_text(records, _RUNS, "no runs yet"), as_json)


@schedules.command(context_settings={"ignore_unknown_options": True})
@click.option("--agent", metavar="AGENT", help="Schedules of this agent only.")
@click.option("--once", is_flag=True, help="Run what is due now, then end.")
@click.option(
    "--lease", type=click.FloatRange(min=1), default=600, show_default=True, metavar="SECONDS",
    help="Another worker takes over after this time without a sign of life.",
)  # fmt: skip
@store_option
@click.argument("command", nargs=-1, required=True)
def run(
    agent: str | None, once: bool, lease: float, store: str | None, command: tuple[str, ...]
) -> None:
    """Run due schedules with COMMAND, until Ctrl-C.

    The command gets the prompt on its standard input, and HERMES_AGENT_ID, HERMES_SCHEDULE_ID,
    HERMES_SESSION_ID and HERMES_RUN_ID in its environment. An exit code other than 0 is a failure;
    the last line of its standard error is kept as the reason. Several of these share the work.

    Exit codes: 0 ended; 1 no such store.

    \b
    Examples:
      hermes-actor schedules run -- my-agent --stdin
      hermes-actor schedules run --once --agent main -- tee out.txt
    """
    from hermes_actor.agent_store.scheduler import CommandRun, Scheduler

    # It holds no secret; the commands that it starts would inherit the limit.
    with opened(store, agent, decrypts=False) as found:
        scheduler = Scheduler(found, CommandRun(command, report=click.echo), lease_seconds=lease)
        if once:
            scheduler.tick()
            return
        with contextlib.suppress(ValueError):  # only the main thread can set handlers
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, lambda *_: scheduler.stop())
        scheduler.loop()
