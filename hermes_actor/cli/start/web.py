"""``hermes-actor web``: see and steer stores in a browser."""

from __future__ import annotations

import os
import sys
import threading
import webbrowser
from pathlib import Path

import click

from hermes_actor.cli.core_files import leave_no_core_file
from hermes_actor.cli.options import json_option
from hermes_actor.cli.output.console import print_result
from hermes_actor.cli.output.errors import fail
from hermes_actor.paths import default_home

__all__ = ["web"]

_PACKAGES = {"starlette", "uvicorn", "jinja2"}


_DISPLAYS = ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY")


def _open(url: str) -> None:
    """Start a browser, and return at once: some programs end only when they have shown the page.

    Without a display a browser in the terminal would take it from the person who reads there.
    """
    if sys.platform == "linux" and not any(map(os.environ.get, _DISPLAYS)):
        click.echo("there is no display for a browser: open the address yourself", err=True)
        return
    threading.Thread(target=webbrowser.open, args=(url,), daemon=True, name="browser").start()


@click.command()
@click.option(
    "--port", type=click.IntRange(0, 65_535), default=8674, show_default=True, metavar="N",
    help="Port to listen on; 0 takes a free one.",
)  # fmt: skip
@click.option("--open", "open_", is_flag=True, help="Open the pages in a browser.")
@click.option(
    "--home", type=click.Path(path_type=Path, exists=True, file_okay=False), metavar="PATH",
    help="Show the stores of this home. Default: HERMES_HOME.",
)  # fmt: skip
@click.option("--store", metavar="STORE", help="Show only this store: a file or a URL.")
@click.option("--read-only", is_flag=True, help="Refuse every change.")
@click.option(
    "--address", default="127.0.0.1", show_default=True, metavar="IP",
    help="Address to listen on. Another machine reaches it only with TLS or --insecure.",
)  # fmt: skip
@click.option(
    "--name",
    "names",
    multiple=True,
    metavar="HOST",
    help="A host name under which browsers reach the pages; may be given again.",
)
@click.option(
    "--tls-certificate", "certificate", metavar="FILE",
    type=click.Path(path_type=Path, exists=True, dir_okay=False), help="Certificate chain, PEM.",
)  # fmt: skip
@click.option(
    "--tls-key", "key", metavar="FILE",
    type=click.Path(path_type=Path, exists=True, dir_okay=False), help="Private key, PEM.",
)  # fmt: skip
@click.option("--insecure", is_flag=True, help="Serve other machines without TLS.")
@json_option
def web(
    port: int,
    open_: bool,
    home: Path | None,
    store: str | None,
    read_only: bool,
    address: str,
    names: tuple[str, ...],
    certificate: Path | None,
    key: Path | None,
    insecure: bool,
    as_json: bool,
) -> None:
    """See and steer stores in a browser.

    Pages for sessions, search, insights, chats, agents and the actor at work, for every store of
    the home, and the same as a JSON API. The address that is printed contains a token, which
    opens everything: keep it to yourself. The pages listen on this machine only. Ctrl-C ends
    them. With --json, one line with "url" is printed when they can be opened.

    Exit codes: 1 the port is in use, no such store, or a package is missing; 130 interrupted.

    \b
    Examples:
      hermes-actor web --open
      hermes-actor web --port 0 --read-only --json
      hermes-actor web --store postgresql://me@db.example/agents
    """
    try:
        from hermes_actor.web.server import Address, serve
        from hermes_actor.web.stores import Stores
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _PACKAGES:
            raise
        fail(
            f"the pages need the Python package {error.name}, which is not installed; install it"
            " with: pip install 'hermes-actor[web]'"
        )
    if (certificate is None) != (key is None):
        raise click.UsageError("--tls-certificate and --tls-key belong together")
    if home is not None:
        # Settings, keys and actors of this process belong to the same home as the pages.
        os.environ["HERMES_HOME"] = str(home.resolve())
    place = Address(address, port, names, certificate, key, insecure)

    def ready(url: str, entry: str) -> None:
        text = f"hermes-actor web: {url}\nCtrl-C ends it."
        print_result({"url": url, "pid": os.getpid()}, text, as_json)
        sys.stdout.flush()
        if open_:
            _open(entry)

    leave_no_core_file()  # the pages of agents show masks, so they decrypt
    stores = Stores(default_home(), store, read_only=read_only)
    if store is not None and not stores.all():
        fail(f"there is no store at {store}")
    serve(stores, place, ready)
