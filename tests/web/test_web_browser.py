"""The pages in a real browser: what people and their keyboards meet."""

import os
import re

import pytest
from playwright.sync_api import expect as _expect
from support.actors import actor_pid
from support.browser import AXE, SECONDS, chromium_or_skip, violations, visiting
from support.servers import missing
from support.web import HOSTILE, WebProcess

from hermes_actor import SessionDB
from hermes_actor.web.actions import ACTIONS
from hermes_actor.web.views import VIEWS


def expect(locator):
    """Expectations with a time for a busy machine."""
    _expect.set_options(timeout=1000 * SECONDS)
    return _expect(locator)


pytestmark = pytest.mark.timeout(600)

WIDE, NARROW = {"width": 1280, "height": 900}, {"width": 360, "height": 740}
SCREENS = {
    "wide": {"viewport": WIDE},
    "narrow": {"viewport": NARROW},
    "dark": {"viewport": WIDE, "color_scheme": "dark"},
}
PAGES = (
    "/", "/api", "/s/state.db/sessions", "/s/state.db/session?id=s0005",
    "/s/state.db/session?id=hostile", "/s/state.db/search?q=flaky", "/s/state.db/insights?tools=1",
    "/s/state.db/chats", "/s/state.db/actor", "/s/agents.db/agents", "/s/agents.db/agent?id=main",
    "/s/state.db/sessions?archived=1", "/s/state.db/search?q=zzzzzz",
    "/s/state.db/insights?source=no", "/s/agents.db/actor", "/s/state.db/session?id=none",
    "/s/state.db/none", "/none",
    "/s/state.db/do/prune?older_than_days=3", "/s/state.db/do/delete?id=hostile",
    "/s/state.db/do/rename?id=s0005&title=New", "/s/state.db/do/archive?id=s0005",
    "/s/state.db/do/backup", "/s/state.db/do/handoff", "/s/state.db/do/rebuild-index",
    "/s/agents.db/do/assign?what=mcp&item=search&agent=*",
    "/s/agents.db/do/run-schedule?agent=main&schedule=daily",
)  # fmt: skip


def test_every_view_and_every_action_is_among_the_pages():
    """``message`` and ``export`` are texts, not pages."""
    seen = {path.partition("?")[0].rpartition("/")[2] for path in PAGES}
    assert {*VIEWS, *ACTIONS} - seen == {"message", "export"}


@pytest.fixture(scope="module")
def chromium():
    yield from chromium_or_skip()


@pytest.fixture
def web(home):
    with WebProcess(home) as web:
        yield web


@pytest.mark.slow
@pytest.mark.parametrize("screen", SCREENS)
def test_every_page_on_every_screen(chromium, shared_process, screen):
    with visiting(chromium, shared_process.url, **SCREENS[screen]) as visit:
        for path in PAGES:
            page = visit.go(path)
            expect(page.locator("h1")).to_be_visible()
            assert not visit.is_wider_than_the_screen(), path
        missing = [fault for fault in visit.faults if "404" not in fault]
        assert (missing, visit.elsewhere()) == ([], [])


@pytest.mark.slow
@pytest.mark.parametrize("screen", ["wide", "narrow", "dark"])
def test_axe_finds_nothing_serious(chromium, shared_process, screen):
    if not AXE.exists() and os.environ.get("CI") != "true":
        missing("axe-core")
    with visiting(chromium, shared_process.url, **SCREENS[screen]) as visit:
        found = {path: violations(visit.go(path)) for path in PAGES}
    assert {path: errors for path, errors in found.items() if errors} == {}


def test_hostile_content_runs_nothing(chromium, shared_process):
    with visiting(chromium, shared_process.url, viewport=NARROW) as visit:
        page = visit.go("/s/state.db/session?id=hostile")
        assert "owned" not in page.title()
        shown = page.locator(".message.user .text").inner_text()
        assert HOSTILE.partition("\u202e")[0].strip() in shown
        for closed in page.locator("details").all():
            closed.locator("summary").click()
        page.wait_for_load_state("load")
        assert page.evaluate("document.querySelectorAll('script, img, iframe, object').length") == 0
        assert (visit.faults, visit.elsewhere()) == ([], [])
        assert not visit.is_wider_than_the_screen()


def test_the_token_is_needed_once(chromium, shared_process):
    with visiting(chromium, shared_process.base + "/") as visit:
        page = visit.page
        expect(page.locator("h1")).to_have_text("Token needed")
        page.get_by_label("Token").fill(shared_process.token)
        page.get_by_role("button", name="Enter").click()
        expect(page.locator("h1")).to_have_text("Stores")
        assert shared_process.token not in page.url
        assert visit.go("/s/state.db/sessions").locator("h1").inner_text() == "Sessions"
        cookie = page.context.cookies()[0]
        assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")


def test_a_page_of_another_site_reaches_nothing(chromium, shared_process):
    port = shared_process.base.rpartition(":")[2]
    with visiting(chromium, shared_process.url) as visit:
        answer = visit.page.goto(f"http://evil.example:{port}/s/state.db/sessions")
        assert answer.status == 421
        assert "s0001" not in visit.page.content()
        fetched = visit.page.evaluate(
            """async (url) => {
                try { return (await fetch(url, {credentials: "include"})).status }
                catch (error) { return "refused" }
            }""",
            f"{shared_process.base}/api/stores",
        )
        assert fetched == "refused"


def test_pages_work_without_javascript(chromium, shared_process):
    with visiting(chromium, shared_process.url, java_script_enabled=False) as visit:
        page = visit.go("/s/state.db/search")
        page.get_by_label("Words").fill("flaky")
        page.get_by_role("button", name="Search").click()
        expect(page.locator("mark").first).to_have_text("flaky")
        page.locator(".hits a").first.click()
        expect(page.locator("#conversation")).to_be_visible()
        page = visit.go("/s/state.db/actor")
        expect(page.locator(".phase").first).to_be_visible()


def test_an_action_and_its_effect(chromium, web, home):
    with visiting(chromium, web.url) as visit:
        page = visit.go("/s/state.db/session?id=s0001")
        page.get_by_label("Title").fill("Chosen in a browser")
        page.get_by_role("button", name="Rename").click()
        expect(page.locator(".question")).to_contain_text("Chosen in a browser")
        page.get_by_role("button", name="Rename session").click()
        expect(page.locator(".note")).to_contain_text("Renamed")
        expect(page.locator("h1")).to_have_text("Chosen in a browser")
        with SessionDB(home / "state.db") as db:
            assert db.get_session_title("s0001") == "Chosen in a browser"
        page.get_by_role("button", name="Delete").click()
        page.get_by_role("button", name="Delete session").click()
        expect(page.locator(".note")).to_contain_text("Deleted")
        assert visit.faults == []


def test_an_assignment_for_all(chromium, web):
    with visiting(chromium, web.url) as visit:
        page = visit.go("/s/agents.db/agents")
        page.locator("tr", has_text="Search").get_by_role("button", name="On for all").click()
        page.get_by_role("button", name="Switch on or off").click()
        expect(page.locator("tr", has_text="Search").locator("td").first).to_have_text("on")
        page = visit.go("/s/agents.db/agent?id=main")
        page.get_by_role("button", name="Run now").click()
        page.get_by_role("button", name="Run schedule now").click()
        expect(page.locator(".note")).to_contain_text("due now")


def test_the_live_view_while_a_handoff_happens(chromium, web, home):
    path = home / "state.db"
    with SessionDB(path) as db, visiting(chromium, web.url) as visit:
        db.set_meta("a", "1")
        first = actor_pid(path)
        page = visit.go("/s/state.db/actor")
        expect(page.locator("#live-state")).to_have_text("Live: connected.")
        expect(page.locator("#figures .phase")).to_contain_text(f"pid {first}")
        db.create_session("before", "cli")
        expect(page.locator("#changes")).to_contain_text("before")
        with page.context.expect_page() as opened:
            page.evaluate("window.open('/s/state.db/do/handoff')")
        other = opened.value
        other.get_by_role("button", name="Hand off").click()
        expect(other.locator(".note")).to_contain_text("Handed over")
        second = re.search(r"pid (\d+)", other.locator(".note").inner_text())[1]
        assert second != str(first)
        expect(page.locator("#figures .phase")).to_contain_text(f"pid {second}")
        db.create_session("after", "cli")
        expect(page.locator("#changes")).to_contain_text("after")
        assert visit.faults == []


def test_with_the_keyboard_alone(chromium, web):
    with visiting(chromium, web.url) as visit:
        page = visit.go("/s/state.db/sessions")
        page.keyboard.press("Tab")
        focused = page.locator(":focus")
        expect(focused).to_have_text("Skip to content")
        expect(focused).to_be_in_viewport()
        outline = "getComputedStyle(document.activeElement).outlineStyle"
        assert page.evaluate(outline) == "solid"
        tab_to(page, "Search")
        page.keyboard.press("Enter")
        page.wait_for_url("**/search")
        expect(page.get_by_label("Words")).to_be_focused()
        page.keyboard.type("flaky")
        page.keyboard.press("Enter")
        expect(page.locator("mark").first).to_be_visible()
        visit.go("/s/state.db/session?id=s0001")
        tab_to(page, "Archive")
        page.keyboard.press("Enter")
        expect(page.locator(".question")).to_contain_text("Archive session")
        tab_to(page, "Archive session")
        page.keyboard.press("Enter")
        expect(page.locator(".note")).to_contain_text("Archived")


def tab_to(page, name):
    """Press the tabulator until what has the focus is named *name*, and its focus is seen."""
    for _ in range(80):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.innerText") == name:
            assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
            return
    raise AssertionError(f"{name} is not reached by the keyboard")
