"""Actions on a whole store: backup, hand-off, rebuild of the full-text indexes."""

from __future__ import annotations

import sys

from hermes_actor.client.control import request_handoff
from hermes_actor.config import load
from hermes_actor.recovery.backup import backup_path, create_backup, prune_backups
from hermes_actor.recovery.store_owner import run_maintenance
from hermes_actor.settings import BACKUP_KEEP
from hermes_actor.store.rows import Row
from hermes_actor.web.actions.action import Action, Preview
from hermes_actor.web.parameters import Values
from hermes_actor.web.stores import ShownStore

__all__ = ["ACTIONS"]


def _backup_preview(shown: ShownStore, _values: Values) -> Preview:
    folder = backup_path(shown.file().db).parent
    return Preview(f"Copy {shown.address} into {folder}? Writers go on meanwhile.")


def _backup(shown: ShownStore, _values: Values) -> Row:
    db = shown.file().db
    target = backup_path(db)
    create_backup(db, target)
    removed = prune_backups(db, load(shown.home, "updates").read(BACKUP_KEEP))
    return {
        "path": str(target),
        "bytes": target.stat().st_size,
        "removed": [str(copy) for copy in removed],
        "text": f"Copied and verified: {target}",
    }


def _handoff_preview(shown: ShownStore, _values: Values) -> Preview:
    return Preview(
        f"Have the actor of {shown.file().db} hand over to the code of {sys.executable}?"
        " Clients notice nothing."
    )


def _handoff(shown: ShownStore, _values: Values) -> Row:
    done = request_handoff(shown.file(), sys.executable)
    return {**done, "text": f"Handed over: pid {done['pid']} serves, build {done['build']}."}


def _rebuild_preview(shown: ShownStore, _values: Values) -> Preview:
    return Preview(
        f"Rebuild the full-text indexes of {shown.file().db}? They begin empty and fill between"
        " changes; searches wait meanwhile."
    )


def _rebuild(shown: ShownStore, _values: Values) -> Row:
    done = run_maintenance(shown.file(), "rebuild-index")
    return {**done, "text": f"The indexes are rebuilt up to message {done['newest']:,}."}


def _to_actor(_values: Values) -> str:
    return "actor"


ACTIONS = (
    Action(
        "backup", "Back up", "Make a verified backup beside the store; older ones are removed.",
        _backup_preview, _backup, _to_actor, kind=None,
    ),
    Action(
        "handoff", "Hand off", "Switch the actor to the code that is installed now.",
        _handoff_preview, _handoff, _to_actor, kind=None,
    ),
    Action(
        "rebuild-index", "Rebuild indexes", "Rebuild the full-text indexes.",
        _rebuild_preview, _rebuild, _to_actor,
    ),
)  # fmt: skip
