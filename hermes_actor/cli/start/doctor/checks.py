"""Checks of ``hermes-actor doctor``: each yields findings, with advice."""

from __future__ import annotations

import difflib
import os
import shutil
import stat
import sys
import time
from pathlib import Path

from hermes_actor._version import __version__
from hermes_actor.cli.output.console import size_text
from hermes_actor.cli.output.formatting import count
from hermes_actor.cli.start.doctor.chats import chats
from hermes_actor.cli.start.doctor.content import content, write_lock
from hermes_actor.cli.start.doctor.findings import Check, Finding, Findings
from hermes_actor.cli.start.doctor.programs import hermes_agent, processes
from hermes_actor.client.control import ask_status
from hermes_actor.config import Config, load
from hermes_actor.errors import (
    BadConfig,
    DeadlineExceeded,
    HermesActorError,
    PermissionDenied,
    Unsupported,
)
from hermes_actor.paths import StorePaths, check_not_hijacked, check_ownership
from hermes_actor.recovery.backup import list_backups
from hermes_actor.recovery.orphan_wal import is_whole_store, list_orphans, removed_store
from hermes_actor.recovery.rescue import list_rescued
from hermes_actor.settings import ALL, OWN_SECTIONS, unknown_keys
from hermes_actor.sqlite import sqlite3, wal_reset_safe
from hermes_actor.system.filesystems import file_system_of
from hermes_actor.system.lock_inspection import (
    lock_holder,
    processes_with_write_fd,
)
from hermes_protocol.status import Status

__all__ = ["CHECKS"]

_LOW_BYTES = 256 * 1024 * 1024
_OLD_SECONDS = 7 * 24 * 3600.0


def environment(paths: StorePaths) -> Findings:
    """Versions, the home, and limits that this process has inherited."""
    python = sys.version.split()[0]
    yield Finding("ok", "versions", f"hermes-actor {__version__}, Python {python}")
    home = os.environ.get("HERMES_HOME", "").strip()
    said = f"HERMES_HOME is {home}" if home else "HERMES_HOME is not set, so it is ~/.hermes"
    yield Finding("ok", "home", f"{said}; the store is {paths.db}")
    if (gone := removed_store(paths)) is not None:
        yield Finding("broken", "home", gone.text, gone.advice)
    elif not paths.db.exists():
        yield Finding("note", "home", "there is no store yet", "nothing: the first write makes it")


def settings(paths: StorePaths) -> Findings:
    """Settings: read every one as its user does, and name keys that mean nothing."""
    wrong: list[Finding] = []
    try:
        config = load(paths.db.parent)
    except BadConfig as error:
        advice = "fix the file; until then, defaults replace what cannot be read"
        wrong.append(Finding("warning", "settings", str(error), advice))
        try:
            config = load(paths.db.parent, *{setting.section for setting in ALL})
        except BadConfig:
            config = Config(paths.db.parent / "config.yaml")
    wrong.extend(_wrong_settings(config))
    yield from wrong
    if not wrong:
        there = "" if config.path.exists() else " does not exist; the defaults apply"
        yield Finding("ok", "settings", f"{config.path}{there}")
    from hermes_actor.providers.resolve import choose_by_settings

    try:
        chosen = choose_by_settings(paths.db.parent)
    except HermesActorError as error:
        if not any(key.startswith("sessiondb.") for key, _ in config.unset):  # named already
            yield Finding("warning", "settings", str(error), "fix the file")
        return
    if chosen is not None and chosen.file != paths.db:
        text = f"the sessions of this home are in {chosen.address}, not in {paths.db}"
        yield Finding("note", "settings", text, "nothing: hermes-actor status shows its state")


def _wrong_settings(config: Config) -> Findings:
    for setting in ALL:
        try:
            config.read(setting)
        except BadConfig as error:
            yield Finding("warning", "settings", str(error), "fix it or remove it")
    for key in unknown_keys(config.values):
        names = [setting.key for setting in ALL] + list(OWN_SECTIONS)
        near = difflib.get_close_matches(key, names, 1)
        advice = f"did you mean {near[0]}?" if near else "remove it: nothing reads it"
        yield Finding("warning", "settings", f"{config.path}: unknown key {key}", advice)
    for key, variable in config.unset:
        text = f"{key} uses ${{{variable}}}, which is not set"
        yield Finding("warning", "settings", text, f"set {variable}, or write the value itself")


def permissions(paths: StorePaths) -> Findings:
    """Permissions of the store and its side files."""
    try:
        check_not_hijacked(paths)
        check_ownership(paths)
    except PermissionDenied as error:
        yield Finding("warning", "permissions", str(error), "run as the user who owns the store")
        return
    wrong = [
        finding
        for path in (paths.db.parent, paths.db, paths.wal, paths.shm, paths.folder)
        if path.exists()
        for finding in _wrong_rights(path, is_home=path == paths.db.parent)
    ]
    yield from _together(wrong) or [
        Finding("ok", "permissions", "the store and its side files are private")
    ]
    if paths.db.is_file() and (names := paths.db.stat().st_nlink) > 1:
        text = f"{paths.db} has {names} hard links; under another name it gets another WAL"
        advice = "delete the other links: two owners would corrupt the file"
        yield Finding("warning", "permissions", text, advice)


def _together(found: list[Finding]) -> list[Finding]:
    """Return one finding for all files that others can access: they are private by one command."""
    others = [one for one in found if one.advice.startswith("chmod 600 ")]
    if len(others) < 2:
        return found
    names = [one.advice.removeprefix("chmod 600 ") for one in others]
    text = f"other users can access {', '.join(names)}"
    joined = Finding("warning", "permissions", text, f"chmod 600 {' '.join(names)}")
    return [one for one in found if one not in others] + [joined]


def _wrong_rights(path: Path, *, is_home: bool) -> Findings:
    mode = path.stat().st_mode
    private = "700" if path.is_dir() else "600"
    shown = f"{path} (mode {stat.S_IMODE(mode):o})"
    # The bit counts for root, too: a WAL inherits the mode of the database, and the next
    # owner may be an ordinary user.
    if not mode & stat.S_IWUSR or not os.access(path, os.W_OK):
        advice = f"chmod u+w {path}, or chown {os.getuid()} {path}"
        text = f"this user cannot write {shown}, so every change fails"
        yield Finding("warning", "permissions", text, advice)
    if not is_home and _open_to_others(path):
        text = f"other users can access {shown}"
        yield Finding("warning", "permissions", text, f"chmod {private} {path}")


def _open_to_others(path: Path) -> bool:
    """Return True if the modes of *path* and of every folder above it admit other users."""
    folders = [parent.stat().st_mode for parent in path.parents]
    mode = path.stat().st_mode
    others = mode & stat.S_IRWXO and all(found & stat.S_IXOTH for found in folders)
    either = stat.S_IXGRP | stat.S_IXOTH
    group = mode & stat.S_IRWXG and all(found & either for found in folders)
    return bool(others or group)


def disk(paths: StorePaths) -> Findings:
    """The file system: its kind, and the room on it."""
    found = file_system_of(paths.db)
    where = f"{found.kind}, mounted at {found.mounted_at}"
    if found.is_network:
        yield Finding(
            "warning", "disk", f"the store is on a network file system ({where})",
            "move the home to a local disk: WAL mode needs shared memory and locks that work, and"
            " two machines would corrupt the file",
        )  # fmt: skip
    elif found.is_ephemeral:
        yield Finding(
            "warning", "disk", f"this file system is temporary; a restart empties it ({where})",
            "move the home to a disk, or mount a volume",
        )  # fmt: skip
    elif found.read_only:
        yield Finding("warning", "disk", f"the file system is read-only ({where})", "remount it")
    else:
        yield Finding("ok", "disk", where)
    if paths.db.parent.exists():
        free = shutil.disk_usage(paths.db.parent).free
        size = paths.db.stat().st_size if paths.db.exists() else 0
        if free < max(_LOW_BYTES, size // 10):
            yield Finding("warning", "disk", f"only {size_text(free)} free", "free some space")


def linked_sqlite(paths: StorePaths) -> Findings:
    """The SQLite that Python links, and its race in resetting a WAL."""
    version = sqlite3.sqlite_version
    if wal_reset_safe():
        yield Finding("ok", "sqlite", f"SQLite {version}, without the WAL-reset bug")
        return
    others = processes_with_write_fd(paths.db)
    others.pop(lock_holder(paths) or 0, None)
    yield Finding(
        "warning" if others else "note", "sqlite",
        f"SQLite {version} has the WAL-reset bug (fixed in 3.51.3). It can only bite if another"
        f" program writes this file too; {'one does now' if others else 'none does now'}",
        "stop the other writers (see below), or use a Python with SQLite 3.51.3 or newer" if others
        else "nothing, as long as no other program writes the file",
    )  # fmt: skip


def actor(paths: StorePaths) -> Findings:
    """The actor of the store, and what it says of itself."""
    owner = lock_holder(paths)
    if owner is None:
        yield Finding("ok", "actor", "not running; the next client starts one")
        return
    try:
        status = ask_status(paths)
    except DeadlineExceeded:
        text = f"pid {owner} owns the store and does not answer"
        yield Finding("broken", "actor", text, "hermes-actor stop --force")
        return
    except Unsupported as error:
        yield Finding("warning", "actor", f"pid {owner}: {error}", "hermes-actor handoff")
        return
    if status is None:
        text = f"pid {owner} uses the store in embedded mode"
        yield Finding("note", "actor", text, "nothing: other programs can write once it exits")
        return
    yield from _as_it_says(status)


def _as_it_says(status: Status) -> Findings:
    pid = status.pid
    if status.broken:
        yield Finding("broken", "actor", f"pid {pid}: {status.broken}", "hermes-actor repair")
    elif not status.is_serving:
        yield Finding("warning", "actor", f"pid {pid}: {status.phase_text}", "hermes-actor status")
    else:
        yield Finding("ok", "actor", f"pid {pid} is serving, version {status.version}")
    for text in status.degraded:
        yield Finding("warning", "actor", text, "hermes-actor logs shows since when")
    if status.version != __version__:
        text = f"the actor runs version {status.version}, this command is {__version__}"
        yield Finding("note", "actor", text, "hermes-actor handoff")
    if status.index.lag:
        text = f"{status.index.lag} messages are not indexed yet"
        yield Finding("note", "index", text, "nothing: they are indexed in idle time")


def leftovers(paths: StorePaths) -> Findings:
    """Files that an accident has left behind."""
    for copy in list_rescued():
        text = f"{copy} was saved when the home of its store was deleted"
        yield Finding("note", "leftovers", text, f"hermes-actor restore {copy}, or rm {copy}")
    for orphan in list_orphans(paths) if paths.db.exists() else ():
        what = "the whole store" if is_whole_store(orphan) else "acknowledged changes"
        text = f"{orphan} holds {what} from before the files were removed or replaced"
        yield Finding("warning", "leftovers", text, "hermes-actor repair --orphans")
    for kept in sorted(paths.db.parent.glob(f"{paths.db.name}.damaged-*")):
        text = f"{kept} is damaged and was moved aside"
        yield Finding("note", "leftovers", text, f"when you no longer need it: rm {kept}")
    if paths.fsync_failed.exists():
        text = "an fsync failed; the next actor rewrites the WAL before it serves"
        yield Finding("warning", "disk", text, "check the system log: the disk may be failing")


def backups(paths: StorePaths) -> Findings:
    """Age of the newest backup."""
    copies = list_backups(paths.db)
    if not paths.db.exists():
        return
    if not copies:
        yield Finding("note", "backup", "there is no backup yet", "hermes-actor backup")
    elif time.time() - copies[-1].stat().st_mtime > _OLD_SECONDS:
        text = f"the newest backup is more than a week old: {copies[-1]}"
        yield Finding("note", "backup", text, "hermes-actor backup")
    else:
        yield Finding("ok", "backup", f"{count(len(copies), 'backup')}, newest {copies[-1].name}")


CHECKS: tuple[Check, ...] = (
    environment, settings, permissions, disk, content, linked_sqlite, hermes_agent, actor,
    processes, write_lock, chats, leftovers, backups,
)  # fmt: skip
"""In the order in which they are reported. All of them are quick."""
