"""Turns of an installed hermes-agent, by each way that it has: command line, API server, cron."""

from __future__ import annotations

import json
import re
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from support.actors import wait_for
from support.hosts import Host

__all__ = ["api_turn", "cron_turn", "gateway", "is_store_fault", "line_turn"]

_KEY = "0123456789abcdef0123456789abcdef"
_JOB = re.compile(r"\b[0-9a-f]{12}\b")
_STORE = re.compile(r"sqlite|database|session db|locked", re.IGNORECASE)


@contextmanager
def gateway(host: Host, log: Path) -> Iterator[str]:
    """Run the gateway with its API server beside the block, which gets the address of that."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    variables = {
        "API_SERVER_ENABLED": "true", "API_SERVER_KEY": _KEY, "API_SERVER_PORT": str(port),
    }  # fmt: skip
    base = f"http://127.0.0.1:{port}/v1"
    with host.running("hermes", "gateway", "run", log=log, **variables):
        wait_for(lambda: _ask(f"{base}/models") is not None, 180)
        yield base


def line_turn(host: Host, text: str) -> str:
    """What a command line of its own answers to *text*."""
    done = host.run("hermes", "chat", "-Q", "-q", text)
    return done.stdout + done.stderr


def api_turn(base: str, text: str) -> str:
    """What the API server at *base* answers to *text*."""
    said = {"model": "any", "messages": [{"role": "user", "content": text}]}
    return str(_ask(f"{base}/chat/completions", said))


def cron_turn(host: Host, text: str) -> str:
    """What a new cron job, which is run at once, writes about *text*."""
    made = host.hermes("cron", "create", "30m", text, "--deliver", "local")
    name = _JOB.findall(made)[0]
    host.hermes("cron", "run", name)
    host.hermes("cron", "tick")
    written = sorted((host.home / "cron" / "output" / name).glob("*.md"))
    return "\n".join(one.read_text() for one in written)


def is_store_fault(line: str) -> bool:
    """Whether a line of its logs is a warning or an error about the store."""
    return (" ERROR " in line or " WARNING " in line) and _STORE.search(line) is not None


def _ask(url: str, document: Mapping[str, object] | None = None) -> object:
    """The JSON that *url* answers; ``None`` while there is no server."""
    request = urllib.request.Request(
        url, data=None if document is None else json.dumps(document).encode(),
        headers={"Authorization": f"Bearer {_KEY}", "Content-Type": "application/json"},
    )  # fmt: skip
    try:
        with urllib.request.urlopen(request, timeout=240) as answer:
            found: object = json.load(answer)
            return found
    except ConnectionError:
        return None
    except urllib.error.HTTPError as error:
        raise RuntimeError(f"{url}: {error}: {error.read(2000)!r}") from error
    except urllib.error.URLError as error:
        if document is None:
            return None
        raise RuntimeError(f"{url}: {error}") from error
