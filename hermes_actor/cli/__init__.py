"""The command line: one module per command group, imported when its command is named."""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import click

from hermes_actor import exit_codes
from hermes_actor._version import __version__
from hermes_actor.cli.lazy import LazyGroup

__all__ = ["run"]

_GROUPS = {
    "backup": "hermes_actor.cli.backup:backup",
    "completion": "hermes_actor.cli.completion:completion",
    "demo": "hermes_actor.cli.demo:demo",
    "detach": "hermes_actor.cli.vacuum:detach",
    "doctor": "hermes_actor.cli.doctor:doctor",
    "drain": "hermes_actor.cli.stop:drain",
    "export-schema": "hermes_actor.cli.export_schema:export_schema",
    "handoff": "hermes_actor.cli.handoff:handoff",
    "insights": "hermes_actor.cli.insights:insights",
    "logs": "hermes_actor.cli.logs:logs",
    "migrate": "hermes_actor.cli.migrate:migrate",
    "ps": "hermes_actor.cli.ps:ps",
    "repair": "hermes_actor.cli.repair:repair",
    "restart": "hermes_actor.cli.stop:restart",
    "restore": "hermes_actor.cli.backup:restore",
    "resume": "hermes_actor.cli.resume:resume",
    "search": "hermes_actor.cli.search:search",
    "serve": "hermes_actor.cli.serve:serve",
    "service": "hermes_actor.cli.service:service",
    "sessiondb": "hermes_actor.cli.migrate:sessiondb",
    "sessions": "hermes_actor.cli.sessions:sessions",
    "status": "hermes_actor.cli.status:status",
    "stop": "hermes_actor.cli.stop:stop",
    "title": "hermes_actor.cli.title:title",
    "tool": "hermes_actor.cli.tool:tool",
    "top": "hermes_actor.cli.top:top",
    "update": "hermes_actor.cli.update:update",
    "vacuum": "hermes_actor.cli.vacuum:vacuum",
}
"""Command name → ``module:attribute``."""

_LINES = {
    "backup": "Make a verified copy of a store in use.",
    "completion": "Print the script that completes commands in a shell.",
    "demo": "Watch writers at work while their actor is updated and killed.",
    "detach": "Leave the file as another program would have left it.",
    "doctor": "Look at everything, and say what to do about what is wrong.",
    "drain": "Have the actor finish what it was given, and end.",
    "export-schema": "Print the SQL of every table, index and trigger.",
    "handoff": "Give the store to new code while everybody writes.",
    "insights": "Figures and charts of the last days.",
    "logs": "Show the log of the actor.",
    "migrate": "Move all sessions to another provider.",
    "ps": "List every actor of this user.",
    "repair": "Find damage and mend it, as far as it can be mended.",
    "restart": "End the actor, start another one, and wait until it serves.",
    "restore": "Bring the content of a copy back, also while in use.",
    "resume": "Find the session to go on with, and show where it stood.",
    "search": "Search the text of all messages.",
    "serve": "Run the actor of a store in the foreground.",
    "service": "Run the actor under systemd or launchd.",
    "sessiondb": "Where sessions are kept: move them.",
    "sessions": "See, find, move and remove the sessions of a store.",
    "status": "Tell whether an actor serves the store, and how it is.",
    "stop": "End the actor and wait until its process is gone.",
    "title": "Set, show or keep the title of a session.",
    "tool": "What an agent can call, with JSON in and out.",
    "top": "Watch the actor live.",
    "update": "Update the code while everybody writes.",
    "vacuum": "Tell how much of the file is unused, and give it back.",
}
"""Command name → its line in ``--help``, which must not import all of them."""


class _Program(LazyGroup):
    """The whole command line."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            result = super().invoke(ctx)
            if sys.stdout is not None:
                sys.stdout.flush()
        except BrokenPipeError:
            # Whoever read our output has had enough. Caught here, because click would call it a
            # failure; without a stream the interpreter does not complain at its end either.
            sys.stdout = None
            return 0
        return result


@click.group(
    cls=_Program,
    places=_GROUPS,
    lines=_LINES,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="hermes-actor")
def main() -> None:
    """One writer that serves every process of an agent.

    The store is HERMES_HOME/state.db (default ~/.hermes/state.db).
    """


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """SIGTERM and SIGHUP end a command as Ctrl-C does: what it has begun is cleared away first.

    Its end is by the same signal, so that its parent can tell.
    """
    received: list[int] = []

    def interrupt(number: int, _frame: object) -> None:
        received.append(number)
        raise KeyboardInterrupt

    ours = []
    with contextlib.suppress(ValueError):  # only the main thread hears of signals
        for number in (signal.SIGTERM, signal.SIGHUP):
            # Under nohup one of them is ignored, and stays so.
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, interrupt)
                ours.append(number)
    try:
        yield
    finally:
        for number in ours:
            if signal.getsignal(number) is interrupt:  # an actor has others by now, and keeps them
                signal.signal(number, signal.SIG_DFL)
        if received:
            os.kill(os.getpid(), received[0])


def run(arguments: Sequence[str]) -> int:
    """Run one command. Returns the exit code: 0 done, 1 refused, 2 wrong usage, 130 interrupted."""
    with _interruptible():
        return _run(arguments)


def _run(arguments: Sequence[str]) -> int:
    from hermes_actor.cli.errors import CommandError, show_error
    from hermes_actor.errors import HermesActorError

    _prepare_streams()
    as_json = "--json" in arguments[: [*arguments, "--"].index("--")]

    def failed(text: str, code: int) -> int:
        show_error(text, code, as_json=as_json)
        return code

    try:
        result: Any = main.main(list(arguments), prog_name="hermes-actor", standalone_mode=False)
    except click.exceptions.Abort:
        return 130
    except CommandError as error:
        return failed(error.message, error.code)
    except click.ClickException as error:
        if as_json:
            return failed(error.format_message(), error.exit_code)
        error.show()
        return error.exit_code
    except HermesActorError as error:
        return failed(f"Error: {error}", exit_codes.REFUSED)
    except OSError as error:
        # A full disk, a folder that may not be written: nothing that a traceback would explain.
        where = f"{error.filename}: " if error.filename else ""
        failed(f"Error: {where}{error.strerror or error}", exit_codes.REFUSED)
        sys.stdout = None  # what is left in it could not be written either
        return exit_codes.REFUSED
    return result if isinstance(result, int) else 0


def _prepare_streams() -> None:
    """Have every text printed, whatever the streams can encode."""
    if sys.stdout is None:  # closed by our parent
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - for the rest of the process
    codecs.register_error("hermes-actor", _replaced)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="hermes-actor")


def _replaced(error: UnicodeError) -> tuple[bytes, int]:
    """Bytes of a path that is not UTF-8 as they are, for scripts; ``?`` for all that is foreign."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    foreign = error.object[error.start : error.end]
    raw = (bytes([ord(c) & 0xFF]) if "\udc80" <= c <= "\udcff" else b"?" for c in foreign)
    return b"".join(raw), error.end
