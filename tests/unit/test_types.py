"""A user's program under ``mypy --strict``: right calls pass, wrong ones are found."""

import re
import subprocess
import sys

import pytest

PROGRAM = """
from pathlib import Path
from typing import assert_type

from hermes_actor import AsyncSessionDB, SessionDB


def blocking(db: SessionDB) -> None:
    assert_type(db.create_session("s", "cli", model="m"), str)
    assert_type(db.append_message("s", "user", content=["any", {"json": 1}]), int)
    assert_type(db.set_session_title("s", None), bool)
    assert_type(db.archive_session("s"), list[str])
    assert_type(db.get_session_title("s"), str | None)
    assert_type(db.session_count(), int)
    assert_type(db.is_telegram_topic_mode_enabled(chat_id=1, user_id=2), bool)
    for row in db.search_messages("walrus", role_filter=["user"], limit=5):
        print(row["snippet"])
    db.append_message("s")  # wrong: a role is missing
    db.append_message("s", "user", tool="x")  # wrong: no such argument
    db.create_session("s", "cli", modell="m")  # wrong: no such keyword
    db.create_session("s", 1)  # wrong: the source is a text
    db.append_message("s", "user").upper()  # wrong: the result is a number
    db.end_session("s")  # wrong: a reason is missing
    db.get_session("s")["id"]  # wrong: it may be None
    db.is_telegram_topic_mode_enabled(1, 2)  # wrong: keywords only
    db.no_such_method()  # wrong


async def awaitable(db: AsyncSessionDB) -> None:
    assert_type(await db.create_session("s", "cli", user_id="u"), str)
    assert_type(await db.append_message("s", "user", "hello"), int)
    assert_type(await db.message_count(), int)
    assert_type(await db.sanitize_title(" t "), str | None)
    assert_type(await db.delete_session("s", Path("sessions")), bool)
    await db.append_message("s")  # wrong: a role is missing
    await db.search_messages("x", limit="5")  # wrong: the limit is a number
    db.message_count() + 1  # wrong: it was not awaited
    (await db.get_messages("s")).upper()  # wrong: the result is a list
    await db.bind_telegram_topic(chat_id=1, thread_id=2)  # wrong: arguments are missing
    await db.no_such_method()  # wrong
    AsyncSessionDB(Path("state.db"), mod="embedded")  # wrong: no such keyword


def queued(db: SessionDB) -> None:
    with db.pipeline() as p:
        assert_type(p.append_message("s", "user", "hello").result(), int)
        assert_type(p.continue_session("s").result(), str)
        assert_type(p.end_session("s", "done").done(), bool)
        p.append_message("s")  # wrong: a role is missing
        p.append_message("s", "user") + 1  # wrong: the answer is still to come
        p.continue_session("s").result() + 1  # wrong: the result is a text
        p.get_session("s")  # wrong: a read is no part of a pipeline


async def queued_awaitable(db: AsyncSessionDB) -> None:
    async with db.pipeline() as p:
        assert_type(await p.append_message("s", "user", "hello"), int)
        assert_type(p.claim_handoff("s").result(), bool)
        p.set_meta("key")  # wrong: a value is missing
        (await p.continue_session("s")) + 1  # wrong: the result is a text
        p.get_session("s")  # wrong: a read is no part of a pipeline
"""


@pytest.fixture(scope="module")
def checked(tmp_path_factory):
    """Lines with errors, each with the messages of mypy."""
    folder = tmp_path_factory.mktemp("typing")
    program = folder / "program.py"
    program.write_text(PROGRAM)
    found = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--strict", "--no-error-summary"),
            *("--config-file", "", "--follow-imports", "silent"),
            *("--cache-dir", folder / "cache", program),
        ],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert found.returncode in (0, 1), found.stdout + found.stderr
    reports = re.findall(r"^\S*program\.py:(\d+): error: (.*)$", found.stdout, re.MULTILINE)
    errors = {}
    for line, message in reports:
        errors.setdefault(int(line), []).append(message)
    return errors


def lines(*, wrong):
    numbered = enumerate(PROGRAM.splitlines(), 1)
    return {number for number, line in numbered if ("# wrong" in line) == wrong}


def test_right_calls_and_results_pass(checked):
    assert {line: checked[line] for line in lines(wrong=False) & set(checked)} == {}


def test_wrong_calls_and_misused_results_are_found(checked):
    source = PROGRAM.splitlines()
    assert [source[line - 1] for line in sorted(lines(wrong=True) - set(checked))] == []
