"""``hermes-actor status``: is anybody serving, and how is it?"""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

import click

import hermes_protocol.messages as wire
from hermes_actor._version import __version__
from hermes_actor.client.core import ClientCore
from hermes_actor.paths import Place, address_of, default_db_path, place_of

__all__ = ["ask_status", "status"]

SERVING, NOT_RUNNING, NOT_SERVING, BROKEN = 0, 3, 5, 6

_PATIENCE_SECONDS = 5.0


def ask_status(place: Place) -> dict[str, Any] | None:
    """The status document of the actor; ``None`` if there is none. Never starts one."""
    core = ClientCore(name="status")
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(_PATIENCE_SECONDS)
            with address_of(place) as address:
                sock.connect(address)
            sock.sendall(core.hello())
            reply, question = core.ask(lambda ask: wire.StatusRequest(ask=ask))
            sock.sendall(question)
            while not reply.done:
                data = sock.recv(65536)
                if not data:
                    return None
                core.receive(data)
    except (FileNotFoundError, ConnectionRefusedError, ConnectionResetError):
        return None
    document: dict[str, Any] = json.loads(reply.result or b"{}")
    return document


@click.command()
@click.option(
    "--db", type=click.Path(path_type=Path), help="The file; default HERMES_HOME/state.db."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object for scripts.")
def status(db: Path | None, as_json: bool) -> int:
    """Tell whether an actor serves the store, and how it is.

    Exit codes: 0 serving, 3 not running, 5 running but not serving yet or any more (recovering,
    draining), 6 broken.

    \b
    Examples:
      hermes-actor status
      hermes-actor status --json | jq .total_latency
    """
    place = place_of(db or default_db_path())
    found = ask_status(place)
    if found is None:
        if as_json:
            print(json.dumps({"phase": "not running", "database": str(place.db)}))
        else:
            print(f"not running: no actor serves {place.db}; the next client starts one")
        return NOT_RUNNING
    if as_json:
        print(json.dumps(found))
    else:
        _print(found)
    if found["phase"] == "broken" or found.get("broken"):
        return BROKEN
    return SERVING if found["phase"] == "serving" else NOT_SERVING


def _print(found: dict[str, Any]) -> None:
    commit, total = found["commit_latency"], found["total_latency"]
    print(f"{found['phase']}: {found['database']}")
    up = f"up {found['uptime_s']:.0f} s, epoch {found['epoch']}"
    print(f"  actor     pid {found['pid']}, version {found['version']}, {up}")
    print(f"  writes    {found['writes']} in {found['batches']} batches,"
          f" {found['refused']} refused, {found['receipts_replayed']} answered again")  # fmt: skip
    print(f"  latency   {total['p50_ms']} ms median, {total['p99_ms']} ms at 99 %,"
          f" commit {commit['p50_ms']} ms")  # fmt: skip
    print(f"  queue     {found['queue']['count']} waiting, {found['queue']['bytes']} bytes")
    print(f"  wal       {found['wal_frames']} frames; checkpoints {found['checkpoints'] or 'none'}")
    print(
        f"  sqlite    {found['sqlite']['version']}, WAL-reset race: {found['sqlite']['wal_reset']}"
    )
    if found["foreign_commits"]:
        print(f"  degraded: foreign writer, {found['foreign_commits']} commits seen")
    others = [c for c in found["connections"] if c["pid"] != os.getpid()]
    print(f"  clients   {len(others)}")
    for connection in others:
        print(
            f"    pid {connection['pid']}  {connection['name']}  {connection['requests']} requests"
        )
    if found["version"] != __version__:
        print(f"  note: this command is version {__version__}")
