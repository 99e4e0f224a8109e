"""``hermes-actor service``: the command, and one module for each service manager."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

from hermes_actor.cli.service.launchd import Launchd
from hermes_actor.cli.service.systemd import Systemd
from hermes_actor.errors import BadValue

if TYPE_CHECKING:
    from hermes_actor.cli.service._manager import Manager
    from hermes_actor.paths import StorePaths

__all__ = ["manager_of"]


def manager_of(paths: StorePaths) -> Manager:
    """Return the service manager of this system, set up for the store at *paths*.

    Raises :class:`BadValue` for a path that a unit file cannot hold.
    """
    if not str(paths.db).isprintable():
        raise BadValue(f"a service file cannot contain the path {str(paths.db)!r}")
    return Launchd(paths) if platform.system() == "Darwin" else Systemd(paths)
