"""Pictures of the pages for the docs: ``make screenshots``."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from support.actors import end_actors
from support.agent_stores import KEY
from support.browser import CHROMIUM, browser, visiting
from support.web import WebProcess, seed

from hermes_actor import SessionDB

FOLDER = Path(__file__).parents[1] / "docs" / "how-to" / "pictures"

PICTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "web-sessions": ("/s/state.db/sessions?source=telegram", {}),
    "web-session": ("/s/state.db/session?id=s0005", {}),
    "web-insights": ("/s/state.db/insights?tools=1", {}),
    "web-actor": ("/s/state.db/actor", {"color_scheme": "dark"}),
    "web-narrow": ("/s/state.db/search?q=flaky", {"viewport": {"width": 360, "height": 640}}),
}
"""Name of the file, page, and the screen where it is not the usual one."""

SCREEN = {"width": 1000, "height": 640}


def main() -> int:
    """Take every picture; return the exit code."""
    if CHROMIUM is None:
        print("chromium is not installed: make browser")
        return 1
    FOLDER.mkdir(exist_ok=True)
    os.environ["HERMES_ACTOR_SECRETS_KEY"] = KEY
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        seed(home, time.time())
        try:
            with SessionDB(home / "state.db") as db, WebProcess(home) as web, browser() as started:
                for name, (path, screen) in PICTURES.items():
                    with visiting(started, web.url, **{"viewport": SCREEN, **screen}) as visit:
                        page = visit.go(path)
                        if name == "web-actor":
                            _write(db)
                            page.locator("#changes li").first.wait_for()
                        page.screenshot(path=FOLDER / f"{name}.png")
                        print(f"{FOLDER.name}/{name}.png")
        finally:
            for name in ("state.db", "agents.db"):
                end_actors(home / name)
    return 0


def _write(db: SessionDB) -> None:
    """Have something happen on the live page."""
    for number in range(40):
        db.append_message("s0000", "user", f"message {number}")
        time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(main())
