"""The settings of a home that its writer goes by, read by the host of the writer when it starts."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from hermes_actor.config import Config, load, mentions
from hermes_actor.errors import BadConfig
from hermes_actor.paths import attach_record
from hermes_actor.settings import GATEWAY_MERGE_DOUBLED_ROWS, TURNS_REQUIRED
from hermes_actor.write_rules import WriteRules

__all__ = ["read_rules", "rules_or_default"]

_READ = (TURNS_REQUIRED, GATEWAY_MERGE_DOUBLED_ROWS)

_log = logging.getLogger("hermes_actor")


def read_rules(home: Path) -> WriteRules:
    """Return the rules of *home*. Raises :class:`BadConfig`."""
    # Most homes have a section `gateway`, and parsing the file takes as long as opening a store.
    found = mentions(home, "turns", "merge_doubled_rows")
    config = load(home, *(one.section for one in _READ)) if found else Config(home / "config.yaml")
    merges = config.read(GATEWAY_MERGE_DOUBLED_ROWS)
    if config.raw(GATEWAY_MERGE_DOUBLED_ROWS.key) is None:
        # The gateway and the agent of an attached home both store a message.
        merges = os.path.exists(attach_record(home))
    return WriteRules(config.read(TURNS_REQUIRED), merges)


def rules_or_default(home: Path) -> WriteRules:
    """Return the rules of *home*. A slip is logged, and the defaults hold.

    For the owner of a file, which serves programs that have nothing to do with the slip.
    """
    try:
        return read_rules(home)
    except BadConfig as error:
        _log.error("%s; the default is used", error)
        return WriteRules()
