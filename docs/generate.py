"""Writes a page for every command, and the tables of commands, settings and the agent store.

``python docs/generate.py`` writes what is not current, ``--check`` only names it and fails. The
text is that of ``--help``: what a command says of itself is written once.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from hermes_actor.agents.tables import TABLES, Column, Form
from hermes_actor.cli import main as program
from hermes_actor.settings import ALL, Setting
from hermes_protocol.agents import AGENT_OPERATIONS

__all__ = ["COMMANDS", "generated", "main"]

HERE = Path(__file__).parent
INDEX = HERE / "reference" / "commands.md"
AGENTS = HERE / "reference" / "agent-store.md"
SETTINGS = HERE / "operations.md"
FOLDER = HERE / "reference" / "commands"

_BEGIN = "<!-- commands: generated -->"
_END = "<!-- end -->"
_SETTINGS = "<!-- settings: generated -->"
_TABLES = "<!-- tables: generated -->"
_OPERATIONS = "<!-- operations: generated -->"


def _commands(group: click.Group, words: tuple[str, ...]) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for word in group.list_commands(context):
        command = group.get_command(context, word)
        assert command is not None
        if isinstance(command, click.Group):
            yield from _commands(command, (*words, word))
        else:
            yield " ".join((*words, word)), command


COMMANDS = dict(_commands(program, ()))
"""Everything that can be called, by its words."""


def generated() -> dict[Path, str]:
    """Every file that is written here, with its text."""
    pages = {_file(name): _page(name, command) for name, command in COMMANDS.items()}
    agents = _filled(AGENTS.read_text(), _TABLES, _agent_tables())
    return {
        **pages,
        SETTINGS: _filled(SETTINGS.read_text(), _SETTINGS, _settings()),
        INDEX: _filled(INDEX.read_text(), _BEGIN, _list()),
        AGENTS: _filled(agents, _OPERATIONS, _agent_operations()),
    }


def _settings() -> str:
    rows = [
        "| key of `config.yaml` | variable | allowed | default | meaning |",
        "|---|---|---|---|---|",
    ]
    for setting in ALL:
        variable = f"`{setting.env}`" if setting.env else ""
        cells = (f"`{setting.key}`", variable, setting.allowed, _default(setting), setting.meaning)
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def _default(setting: Setting[object]) -> str:
    value = setting.default
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, frozenset):
        return "" if value else "`false`"
    if isinstance(value, str):
        return f"`{value}`" if value else ""
    return f"{value:g}"


def _filled(page: str, begin: str, text: str) -> str:
    """*page* with *text* in the place that *begin* marks."""
    before, _, rest = page.partition(begin)
    return f"{before}{begin}\n{text}{_END}{rest.partition(_END)[2]}"


def _agent_tables() -> str:
    parts = []
    for table in TABLES.values():
        scope = {"agent": "of one agent", "wildcard": "of one agent, or of all as `*`"}
        key = ", ".join(f"`{name}`" for name in table.key) or "the agent"
        order = ", ".join(f"`{n.lstrip('-')}`{' descending' * (n[0] == '-')}" for n in table.order)
        head = (
            f"### `{table.name}`\n\n{table.about} {scope.get(table.scope, 'Global').capitalize()};"
        )
        rows = "\n".join(_agent_column(one) for one in table.columns if not one.derived)
        parts.append(
            f"{head} key: {key}; lists in the order of {order}.\n\n"
            f"| column | form | default | rules |\n|---|---|---|---|\n{rows}\n"
        )
    return "\n" + "\n".join(parts) + "\n"


def _agent_column(column: Column) -> str:
    form = column.form.value + (f", at most {column.length}" if column.length else "")
    default = "" if column.default is None else f"`{column.default}`"
    if column.form is Form.FLAG and column.default is not None:
        default = "yes" if column.default else "no"
    rules = [
        "may be missing" * column.null,
        "set once" * column.once,
        "ciphertext, never shown" * column.secret,
        ", ".join(f"`{value}`" for value in column.values),
    ]
    return f"| `{column.name}` | {form} | {default} | {'; '.join(filter(None, rules))} |"


def _agent_operations() -> str:
    rows = ["| tag | fields | what it does |", "|---|---|---|"]
    for operation in AGENT_OPERATIONS:
        fields = ", ".join(f"`{name}`" for name in operation.__struct_fields__)
        first = " ".join((operation.__doc__ or "").partition("\n\n")[0].split())
        rows.append(f"| `{operation.__struct_config__.tag}` | {fields} | {first} |")
    return "\n".join(rows).replace("``", "`") + "\n"


def _file(name: str) -> Path:
    return FOLDER / f"{name.replace(' ', '-')}.md"


def _list() -> str:
    rows = ["| command | what it does |", "|---|---|"]
    for name, command in COMMANDS.items():
        link = f"[`hermes-actor {name}`](commands/{_file(name).name})"
        rows.append(f"| {link} | {command.get_short_help_str(200)} |")
    return "\n".join(rows) + "\n"


def _page(name: str, command: click.Command) -> str:
    parts = [f"# `hermes-actor {name}`", "<!-- Written by docs/generate.py from --help. -->"]
    options, arguments = [], []
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            if not parameter.hidden:
                options.append(_option(parameter))
        else:
            arguments.append(_argument(parameter))
    usage = ["hermes-actor", name, *(["[OPTIONS]"] if options else []), *arguments]
    parts.append(f"```text\n{' '.join(usage)}\n```")
    said = inspect.cleandoc(command.help or "")
    texts = [_paragraph(text) for text in re.split(r"\n\s*\n", said)]
    plain = [text for text in texts if not text.startswith("## ")]
    parts += plain
    if options:
        parts.append("## Options\n\n| option | meaning |\n|---|---|\n" + "\n".join(options))
    parts += [text for text in texts if text.startswith("## ")]
    parts.append("All commands: [commands](../commands.md).")
    return "\n\n".join(parts) + "\n"


def _paragraph(text: str) -> str:
    """A paragraph of the help as Markdown; exit codes and examples become sections."""
    if text.startswith("Exit codes:"):
        said = " ".join(text.removeprefix("Exit codes:").split())
        return f"## Exit codes\n\n{said[0].upper()}{said[1:]}"
    if not text.startswith("\b"):
        return " ".join(text.split())
    head, _, body = text.removeprefix("\b").strip("\n").partition("\n")
    lines = "\n".join(line.removeprefix("  ") for line in body.splitlines())
    block = f"```sh\n{lines}\n```"
    title = head.strip().rstrip(":")
    return f"## {title}\n\n{block}" if title.startswith("Example") else f"{title}:\n\n{block}"


def _option(option: click.Option) -> str:
    value = "" if option.is_flag else f" {option.metavar or _kind(option)}"
    names = ", ".join(f"`{name}{value}`" for name in sorted(option.opts, key=len, reverse=True))
    if option.secondary_opts:
        names += f", `{option.secondary_opts[0]}`"
    said = (option.help or "").replace("|", "\\|")
    if option.show_default and not option.is_flag:
        default = option.default
        shown = f"{default:g}" if isinstance(default, float) else default
        said = f"{said} Default: {shown}."
    return f"| {names} | {said} |"


def _kind(option: click.Option) -> str:
    if isinstance(option.type, click.Choice):
        return " or ".join(map(str, option.type.choices))
    return option.type.name.upper()


def _argument(argument: click.Parameter) -> str:
    name = (argument.metavar or argument.name or "").upper()
    many = "..." if argument.nargs == -1 else ""
    return f"{name}{many}" if argument.required else f"[{name}{many}]"


def main(arguments: list[str]) -> int:
    """Write, or with ``--check`` tell, what is not current."""
    wanted = generated()
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    left = sorted(set(FOLDER.glob("*.md")) - set(wanted))
    if "--check" not in arguments:
        FOLDER.mkdir(exist_ok=True)
        for path in stale:
            path.write_text(wanted[path])
        for path in left:
            path.unlink()
        return 0
    for path in [*stale, *left]:
        print(f"not current: {path.relative_to(HERE)}; run: python docs/generate.py")
    return 1 if stale or left else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
