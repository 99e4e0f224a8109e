"""``hermes-actor completion``: have the shell complete commands, options and files."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from hermes_actor import exit_codes
from hermes_actor.cli.options import force_option
from hermes_actor.cli.output.console import print_error
from hermes_actor.cli.output.files import checked_output

__all__ = ["completion"]

_WHERE = {
    "bash": "~/.local/share/bash-completion/completions/hermes-actor",
    "zsh": "~/.zfunc/_hermes-actor",
    "fish": "~/.config/fish/completions/hermes-actor.fish",
}
_THEN = {
    "bash": "it is used by the next shell (package bash-completion)",
    "zsh": "in ~/.zshrc, before compinit: fpath+=~/.zfunc",
    "fish": "it is used by the next shell",
}
_HEAD = "# Completion of hermes-actor"


@click.command()
@click.argument("shell", type=click.Choice(list(_WHERE)), required=False)
@click.option("--install", is_flag=True, help="Install the script where the shell finds it.")
@force_option
def completion(shell: str | None, install: bool, force: bool) -> int:
    """Print a completion script for bash, zsh or fish.

    Without SHELL, the shell of your login is used. The first lines of the script say how to install
    it by hand; --install does it for you.

    Ids of sessions are completed as well, the newest first, with their titles where the shell shows
    them; the beginning of a title works too. That reads the file alone: it starts no actor, and
    offers nothing for a store on a server. An id with other characters than letters, digits and
    `_.@+=/:-` is not offered.

    Exit codes: 0 printed or written, 1 the shell is not one of the three.

    \b
    Examples:
      hermes-actor completion --install
      hermes-actor completion bash > ~/.local/share/bash-completion/completions/hermes-actor
      source <(hermes-actor completion bash)
    """
    shell = shell or Path(os.environ.get("SHELL", "")).name
    made = get_completion_class(shell)
    if shell not in _WHERE or made is None:
        print_error(f"no completion for {shell or 'an unknown shell'}; choose bash, zsh or fish")
        return exit_codes.REFUSED
    from hermes_actor.cli import main

    where = _WHERE[shell]
    script = made(main, {}, "hermes-actor", "_HERMES_ACTOR_COMPLETE").source()
    if shell == "fish":
        # A comma ends no description.
        script = script.replace('string split "," ', 'string split --max 1 "," ')
    head = f"{_HEAD} for {shell}. Put it into {where};\n# {_THEN[shell]}.\n"
    if shell == "zsh":
        # The function is found by this line, which must be the first.
        first, _, rest = script.lstrip().partition("\n")
        text = f"{first}\n{head}{rest}"
    else:
        text = head + script
    if not install:
        print(text)
        return exit_codes.OK
    target = Path(where).expanduser()
    target.parent.mkdir(parents=True, exist_ok=True)
    with checked_output(target, force=force or _is_ours(target)).writing() as file:
        file.write(f"{text}\n".encode())
    print(f"wrote {target}; {_THEN[shell]}", file=sys.stdout)
    return exit_codes.OK


def _is_ours(script: Path) -> bool:
    """Return True if an earlier ``--install`` wrote *script*."""
    try:
        return _HEAD in script.read_text(errors="replace")
    except OSError:
        return False
