"""Debian's Chromium, driven over its own protocol, and the rules of axe-core."""

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from support.servers import missing

__all__ = [
    "AXE", "CHROMIUM", "SECONDS", "Visit", "browser", "chromium_or_skip", "violations", "visiting",
]  # fmt: skip

ROOT = Path(__file__).parents[2]
AXE = ROOT / ".venv" / "axe" / "node_modules" / "axe-core" / "axe.min.js"
CHROMIUM = shutil.which("chromium")

_OPTIONS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage",
    # A name that a page of another site has pointed at this machine.
    "--host-resolver-rules=MAP evil.example 127.0.0.1",
)  # fmt: skip

SECONDS = 90
"""Longest wait for something in the browser."""


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """Give a browser with an empty profile, which ends with the block."""
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=CHROMIUM, headless=True, args=list(_OPTIONS), timeout=1000 * SECONDS
        )
        try:
            yield started
        finally:
            started.close()


def chromium_or_skip() -> Iterator[Browser]:
    """Give a browser for tests. Without one they are skipped; not in continuous integration."""
    if CHROMIUM is None and os.environ.get("CI") != "true":
        missing("chromium")
    with browser() as started:
        yield started


class Visit:
    """A page of the browser, and what went wrong on it."""

    def __init__(self, context: BrowserContext, base: str) -> None:
        self.page: Page = context.new_page()
        self.base = base
        self.faults: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", self._said)
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("dialog", lambda dialog: self.faults.append(f"dialog {dialog.message}"))
        self.page.on("request", lambda request: self.requests.append(request.url))

    def _said(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.faults.append(message.text)

    def go(self, path: str) -> Page:
        """Open a page of the server."""
        self.page.goto(self.base + path, wait_until="load")
        return self.page

    def elsewhere(self) -> list[str]:
        """Return the requests that left the server."""
        return [url for url in self.requests if not url.startswith(self.base + "/")]

    def is_wider_than_the_screen(self) -> bool:
        """Return True if the page must be moved sideways."""
        width = "document.scrollingElement.scrollWidth > document.scrollingElement.clientWidth"
        return bool(self.page.evaluate(width))


@contextlib.contextmanager
def visiting(browser: Browser, url: str, **options: Any) -> Iterator[Visit]:
    """Give a visitor who has opened *url*, which has the token."""
    options = {"viewport": {"width": 1280, "height": 900}, "timezone_id": "UTC", **options}
    context = browser.new_context(**options)
    context.set_default_timeout(1000 * SECONDS)
    try:
        visit = Visit(context, url.partition("/?")[0].rstrip("/"))
        visit.page.goto(url)
        yield visit
    finally:
        context.close()


def violations(page: Page) -> list[str]:
    """Return what axe-core finds to be serious or worse."""
    page.evaluate(AXE.read_text("utf-8"))
    found = page.evaluate("axe.run({resultTypes: ['violations']})")["violations"]
    return [
        f"{one['id']}: {one['help']}: "
        + json.dumps([node["html"][:160] for node in one["nodes"][:3]])
        for one in found
        if one["impact"] in ("serious", "critical")
    ]
