"""The command line: one module for each command, imported when the command is called."""

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

__all__ = ["COMMANDS", "run"]

COMMANDS = {
    "Start here": {
        "attach": "Have an installed hermes-agent store through the actor.",
        "demo": "Watch writers while their actor is updated and killed.",
        "doctor": "Check the store and its environment, and say what to fix.",
        "help": "Show the help of a command.",
        "version": "Show the versions of this program and of what it runs on.",
        "web": "See and steer stores in a browser.",
    },
    "Sessions": {
        "insights": "Show usage figures and charts of the last days.",
        "resume": "Find the session to continue, and show where it stopped.",
        "search": "Search the text of all messages.",
        "sessions": "List, show, export, import and delete sessions.",
        "title": "Show, set or clear the title of a session.",
    },
    "Gateway": {
        "gateway": "Look after the sessions of chats.",
        "turns": "List the turns of conversations, and end one.",
    },
    "Agents": {
        "agents": "Set up an agent store, and look after its agents.",
        "channels": "Look at the channels of an agent; tokens are never shown.",
        "instructions": "Read and change sections of the prompt.",
        "mcp": "Register MCP servers, and switch them on for agents.",
        "memories": "Search, read and change the memories of an agent.",
        "sandboxes": "Look at the sandboxes of an agent.",
        "schedules": "Plan jobs of agents, and run them.",
        "secrets": "Keep secrets of agents, which no command prints.",
        "skills": "Register skills, and switch them on for agents.",
        "users": "Look after users, their identities and their roles.",
    },
    "Actor": {
        "logs": "Show the log of the actor.",
        "metrics": "Print the figures of the actor in the format of Prometheus.",
        "ps": "List all actors of this user.",
        "restart": "Stop the actor and start it again.",
        "serve": "Run the actor of a store in the foreground.",
        "service": "Run the actor under systemd, or launchd on macOS.",
        "status": "Show whether an actor is running, and its state.",
        "stop": "Stop the actor and wait until its process has exited.",
        "top": "Watch the actor live.",
    },
    "Safety": {
        "backup": "Make a verified backup of a store, even while it is in use.",
        "detach": "Remove everything that hermes-actor added to the file.",
        "repair": "Find damage in the store and repair it.",
        "restore": "Restore a backup, even while the store is in use.",
        "vacuum": "Shrink the file by rewriting it without its unused pages.",
    },
    "Update and move": {
        "handoff": "Switch the actor to new code without interrupting writers.",
        "migrate": "Copy all sessions to another provider, and verify the copy.",
        "update": "Run an update without interrupting writers.",
    },
    "For programs": {
        "completion": "Print a completion script for bash, zsh or fish.",
        "export-schema": "Print the SQL of every table, index and trigger.",
        "sql": "Run SQL on a database file, beside the programs that use it.",
        "tool": "Tools for agents, with JSON in and out.",
    },
}
"""Every command in its group of the help, with the first sentence of its own help."""

PACKAGES = {
    "Start here": "start",
    "Sessions": "sessions",
    "Gateway": "gateway",
    "Agents": "agents",
    "Actor": "actor",
    "Safety": "safety",
    "Update and move": "move",
    "For programs": "programs",
}
"""The package that holds the commands of a heading."""

_ALIASES = {"drain": "stop", "sessiondb migrate": "migrate"}
"""Names that other programs and older scripts use."""


class _Program(LazyGroup):
    """The whole command line."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            result = super().invoke(ctx)
            if sys.stdout is not None:
                sys.stdout.flush()
        except BrokenPipeError:
            # The reader of our output has closed the pipe. Caught here, because click would report
            # a failure; without a stream the interpreter does not complain at exit either.
            sys.stdout = None
            return 0
        return result


@click.group(
    cls=_Program, package=__name__, groups=COMMANDS, packages=PACKAGES, aliases=_ALIASES,
    context_settings={"help_option_names": ["-h", "--help"]},
)  # fmt: skip
@click.version_option(__version__, "-V", "--version", prog_name="hermes-actor")
def main() -> None:
    """One writer for every process of an agent.

    The store is HERMES_HOME/state.db (default ~/.hermes/state.db). A first look:
    hermes-actor demo. The help of one command: hermes-actor help COMMAND.
    """


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end a command as Ctrl-C does, after its clean-up.

    The process then dies by the same signal, so that its parent sees the cause.
    """
    received: list[int] = []

    def interrupt(number: int, _frame: object) -> None:
        received.append(number)
        raise KeyboardInterrupt

    ours = []
    with contextlib.suppress(ValueError):  # only the main thread can set handlers
        for number in (signal.SIGTERM, signal.SIGHUP):
            # Under nohup one of them is ignored, and stays so.
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, interrupt)
                ours.append(number)
    try:
        yield
    finally:
        for number in ours:
            if signal.getsignal(number) is interrupt:  # an actor has set its own by now
                signal.signal(number, signal.SIG_DFL)
        if received:
            os.kill(os.getpid(), received[0])


def run(arguments: Sequence[str]) -> int:
    """Run one command. Returns the exit code: 0 done, 1 refused, 2 wrong usage, 130 interrupted."""
    with _interruptible():
        return _run(arguments)


def _run(arguments: Sequence[str]) -> int:
    from hermes_actor.cli.output.errors import CommandError, show_error
    from hermes_actor.errors import HermesActorError

    _prepare_streams()
    as_json = "--json" in arguments[: [*arguments, "--"].index("--")]

    def failed(text: str, code: int) -> int:
        show_error(text, code, as_json=as_json)
        return code

    try:
        result: Any = main.main(list(arguments), prog_name="hermes-actor", standalone_mode=False)
    except click.exceptions.Abort:
        return exit_codes.INTERRUPTED
    except CommandError as error:
        return failed(error.message, error.code)
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message())  # the help: nothing went wrong
        return exit_codes.OK
    except click.ClickException as error:
        context = error.ctx if isinstance(error, click.UsageError) else None
        if context is not None and not as_json:
            advice = f"Try '{context.command_path} --help' for help."
            print(f"{context.get_usage()}\n{advice}\n", file=sys.stderr)
        return failed(f"Error: {error.format_message()}", error.exit_code)
    except HermesActorError as error:
        return failed(f"Error: {error}", exit_codes.REFUSED)
    except OverflowError as error:
        # Of an option: numbers that come from elsewhere were checked where they came in.
        return failed(f"Error: a number is too large: {error}", exit_codes.USAGE)
    except OSError as error:
        # A full disk or a missing permission: a traceback would not explain it.
        where = f"{error.filename}: " if error.filename else ""
        failed(f"Error: {where}{error.strerror or error}", exit_codes.REFUSED)
        sys.stdout = None  # what is left in it could not be written either
        return exit_codes.REFUSED
    return result if isinstance(result, int) else 0


def _prepare_streams() -> None:
    """Make every text printable, whatever the streams can encode."""
    if sys.stdout is None:  # closed by our parent
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - for the rest of the process
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - likewise
    codecs.register_error("hermes-actor", _replaced)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="hermes-actor")


def _replaced(error: UnicodeError) -> tuple[bytes, int]:
    """Encode undecodable bytes of a path as they are, and any other character as ``?``."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    foreign = error.object[error.start : error.end]
    raw = (bytes([ord(c) & 0xFF]) if "\udc80" <= c <= "\udcff" else b"?" for c in foreign)
    return b"".join(raw), error.end
