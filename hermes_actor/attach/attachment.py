"""Attaching a home, looking at what is attached, and going back."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from hermes_actor._version import __version__
from hermes_actor.attach.boot import SCHEME
from hermes_actor.attach.databases import databases_of, has_own_tables
from hermes_actor.attach.environments import Environment, inspect
from hermes_actor.attach.hook import changing, is_current, put_hook, read_hook, remove_hook
from hermes_actor.attach.programs import Program, programs_of, writers_of
from hermes_actor.attach.proof import prove, prove_plain
from hermes_actor.attach.record import (
    Record,
    read_record,
    remove_record,
    write_record,
)
from hermes_actor.attach.typed import TYPED_FINGERPRINTS
from hermes_actor.config import load
from hermes_actor.errors import AttachFailed, HermesActorError
from hermes_actor.paths import StorePaths
from hermes_actor.recovery.backup import backup_path, create_backup
from hermes_actor.recovery.detachment import connected_clients, detach_file
from hermes_actor.settings import ATTACH_TIER

__all__ = ["Outcome", "State", "attach", "look", "renew", "tier_of", "undo"]

OnStep = Callable[[str], None]


class Outcome(NamedTuple):
    """The result of :func:`attach`."""

    record: Record
    programs: list[Program]
    """They were started before: foreign writers until they are started again."""


class State(NamedTuple):
    """The state of a home, as ``--check`` and ``doctor`` show it."""

    record: Record | None
    is_hooked: bool
    """The hook of this build is in the environment, and names the home."""
    problems: list[str]


def attach(environment: Environment, home: Path, on_step: OnStep = lambda _step: None) -> Outcome:
    """Attach *home* to the programs of *environment*: back up, install, prove, record.

    Raises :class:`AttachFailed`, or a typed error of a store; what was done is undone then.
    """
    _check(environment, home)
    with changing(environment.purelib, on_step):
        return _attach(environment, home, on_step)


def _attach(environment: Environment, home: Path, on_step: OnStep) -> Outcome:
    stores = databases_of(home)
    before = [paths for paths in stores if not has_own_tables(paths)]
    old = read_record(home)
    backups = _back_up(stores, on_step)
    tier = tier_of(environment, home)
    on_step(f"installing the hook in {environment.purelib}")
    with _restored_on_error(environment.purelib, before):
        put_hook(environment.purelib, _settings(environment, _homes(environment, home), tier))
        if tier != "direct":  # switched off: nothing is ours
            on_step("proving it with a fresh interpreter")
            prove(environment, stores)
        record = Record(
            home=str(home), python=str(environment.python), purelib=str(environment.purelib),
            release=environment.release, fingerprint=fingerprint_of(environment), tier=tier,
            version=__version__, time=time.time(),
            databases=sorted({*(str(one.db) for one in before), *(old.databases if old else ())}),
            backups=[*(old.backups if old else ()), *map(str, backups)],
        )  # fmt: skip
        write_record(record)
    running = {one.pid: one for one in (*writers_of(stores), *programs_of(environment, home))}
    return Outcome(record, sorted(running.values()))


def renew(record: Record, on_step: OnStep = lambda _step: None) -> Record:
    """Prove an attachment again after an update of hermes-agent; put back a hook that is gone.

    Raises :class:`AttachFailed`: then the hook is as it was, and the record too.
    """
    home = Path(record.home)
    environment = inspect(Path(record.python))
    _check(environment, home)
    stores = databases_of(home)
    tier = tier_of(environment, home)
    with (
        changing(environment.purelib, on_step),
        _restored_on_error(environment.purelib, []),
    ):
        put_hook(environment.purelib, _settings(environment, _homes(environment, home), tier))
        if tier != "direct":  # switched off: nothing is ours
            on_step("proving it with a fresh interpreter")
            prove(environment, stores)
    renewed = msgspec.structs.replace(
        record, release=environment.release, fingerprint=fingerprint_of(environment), tier=tier,
        version=__version__, time=time.time(), purelib=str(environment.purelib),
    )  # fmt: skip
    write_record(renewed)
    return renewed


def look(home: Path, environment: Environment | None = None) -> State:
    """Return what is attached of *home*; changes nothing.

    *environment* is the one that is in use now, if it is known.
    """
    record = read_record(home)
    if record is None:
        if environment is None or not _names(environment.purelib, home):
            return State(None, is_hooked=False, problems=[])
        problem = f"attaching was interrupted: the hook in {environment.purelib} is there already"
        return State(None, is_hooked=True, problems=[problem])
    purelib, problems = Path(record.purelib), []
    is_hooked = _names(purelib, home)
    if not is_hooked:
        problems.append(f"the hook is gone from {purelib}: the environment was made again")
    elif not is_current(purelib):
        problems.append("the hook was written by another version of hermes-actor")
    if environment is not None:
        if environment.purelib != purelib:
            problems.append(f"hermes now runs in {environment.prefix}, which is not attached")
        elif fingerprint_of(environment) != record.fingerprint:
            problems.append(
                f"hermes-agent has changed since, from {record.release} to {environment.release}"
            )
        if environment.own is None:
            problems.append(
                f"hermes-actor is missing in {environment.prefix}: {environment.install_command}"
            )
    return State(record, is_hooked, problems)


def undo(
    home: Path, environment: Environment | None, on_step: OnStep = lambda _step: None
) -> list[Path]:
    """Detach every database of *home* and remove its part of the hook; return the databases.

    Without an *environment* it is gone, and only the databases are left to detach. Refused while
    programs of the home run that were started with the hook: they would attach their files again.
    Raises :class:`AttachFailed`; the hook is back then.
    """
    record = read_record(home)
    folders = [] if environment is None else [environment.purelib]
    if record is not None and Path(record.purelib) not in folders:
        folders.append(Path(record.purelib))  # it was moved, or another one is in use now
    with contextlib.ExitStack() as locks:
        for purelib in sorted(folders):
            locks.enter_context(changing(purelib, on_step))
        return _undo(home, environment, folders, on_step)


def _undo(
    home: Path, environment: Environment | None, folders: Sequence[Path], on_step: OnStep
) -> list[Path]:
    _refuse_users(environment, home)
    before = {purelib: read_hook(purelib) for purelib in folders}
    for purelib in folders:
        on_step(f"removing the hook from {purelib}")
        _unhook(purelib, home)
    try:
        _refuse_users(environment, home)  # started meanwhile
    except AttachFailed:
        for purelib, settings in before.items():
            if settings is not None:
                put_hook(purelib, settings)
        raise
    stores = databases_of(home)
    detached = []
    for paths in stores:
        if has_own_tables(paths):
            on_step(f"detaching {paths.db}")
            detach_file(paths)
            detached.append(paths.db)
        shutil.rmtree(paths.folder, ignore_errors=True)
    if environment is not None and read_hook(environment.purelib) is None:
        on_step("proving it with a fresh interpreter")
        prove_plain(environment, stores)
    remove_record(home)
    return detached


def _refuse_users(environment: Environment | None, home: Path) -> None:
    users = [one for paths in databases_of(home) for one in connected_clients(paths)]
    known = {text.split()[1] for text in users}
    if environment is not None:
        found = programs_of(environment, home)
        users += [one.text for one in found if str(one.pid) not in known]
    if users:
        raise AttachFailed(
            f"end the programs that still use {home} first: {', '.join(dict.fromkeys(users))}"
        )


def tier_of(environment: Environment, home: Path) -> str:
    """Return how the programs of *environment* are to reach their stores."""
    chosen = load(home, "attach").read(ATTACH_TIER)
    if sys.platform == "win32" or chosen == "direct":
        return "direct"
    return "typed" if chosen == "auto" and _typed(environment) else "sqlite"


def fingerprint_of(environment: Environment) -> str:
    """Return the digest of the module ``hermes_state`` of *environment*; empty without one."""
    try:
        return hashlib.sha256((environment.root / "hermes_state.py").read_bytes()).hexdigest()
    except OSError:
        return ""


def _typed(environment: Environment) -> bool:
    return fingerprint_of(environment) in TYPED_FINGERPRINTS


def _check(environment: Environment, home: Path) -> None:
    if not home.is_dir():
        raise AttachFailed(f"there is no home {home}: name it with --home PATH")
    if environment.own is None:
        raise AttachFailed(
            f"hermes-actor cannot be imported by {environment.python} ({environment.own_error})."
            f" Install it there first: {environment.install_command}"
        )


def _homes(environment: Environment, home: Path) -> list[str]:
    settings = read_hook(environment.purelib)
    return sorted({str(home), *(settings["homes"] if settings is not None else ())})


def _settings(environment: Environment, homes: Sequence[str], tier: str) -> dict[str, Any]:
    return {
        "scheme": SCHEME,
        "version": __version__,
        "names": list(environment.names),
        "folder": environment.folder,
        "editable": environment.is_editable,
        "homes": list(homes),
        "typed": sorted(TYPED_FINGERPRINTS) if tier == "typed" else [],
        "warning": "not attached: attach.tier is direct; see hermes-actor doctor"
        if tier == "direct"
        else None,
        "advice": f"Install it again with: {environment.install_command}",
    }


def _back_up(stores: Sequence[StorePaths], on_step: OnStep) -> list[Path]:
    made = []
    for paths in stores:
        on_step(f"backing up {paths.db}")
        target = backup_path(paths.db)
        create_backup(paths.db, target)
        made.append(target)
    return made


@contextlib.contextmanager
def _restored_on_error(purelib: Path, stores: Sequence[StorePaths]) -> Iterator[None]:
    """Put the hook back as it was if the block fails, and detach *stores*, which had no owner."""
    old = read_hook(purelib)
    try:
        yield
    except BaseException:
        if old is None:
            remove_hook(purelib)
        else:
            put_hook(purelib, old)
        for paths in stores:
            with contextlib.suppress(HermesActorError, OSError):
                if has_own_tables(paths):
                    detach_file(paths)
                shutil.rmtree(paths.folder, ignore_errors=True)
        raise


def _names(purelib: Path, home: Path) -> bool:
    settings = read_hook(purelib)
    return settings is not None and str(home) in settings["homes"]


def _unhook(purelib: Path, home: Path) -> None:
    settings = read_hook(purelib)
    left = [one for one in (settings or {}).get("homes", ()) if one != str(home)]
    if settings is not None and left:
        put_hook(purelib, {**settings, "homes": left})
    else:
        remove_hook(purelib)
