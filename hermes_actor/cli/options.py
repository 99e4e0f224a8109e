"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path

import click

from hermes_actor import limits
from hermes_actor.cli.session_completion import complete_session
from hermes_actor.settings import BACKUP_KEEP

__all__ = [
    "db_option", "dry_run_option", "force_option", "json_option", "keep_option",
    "session_id_argument", "session_ids_argument", "timeout_option", "yes_option",
]  # fmt: skip

db_option = click.option(
    "--db", type=click.Path(path_type=Path),
    help="Database file. Default: HERMES_HOME/state.db.",
)  # fmt: skip

session_id_argument = click.argument("session_id", metavar="ID", shell_complete=complete_session)

session_ids_argument = click.argument(
    "ids", nargs=-1, metavar="[ID]...", shell_complete=complete_session
)

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for scripts.")

yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")

force_option = click.option("--force", is_flag=True, help="Overwrite an existing file.")

dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Show what would be done; change nothing."
)

keep_option = click.option(
    "--keep", type=click.IntRange(min=1), metavar="N",
    help="Number of backups to keep. Default: updates.backup_keep of config.yaml,"
    f" else {BACKUP_KEEP.default}.",
)  # fmt: skip

timeout_option = click.option(
    "--timeout", type=click.FloatRange(min=0), metavar="SECONDS",
    default=limits.DEFAULT_TIMEOUT_SECONDS, show_default=True,
    help="How long to wait for the process to exit.",
)  # fmt: skip
