"""Values of wrong types in every argument of every method: a typed error or an answer, no crash."""

import inspect

import pytest
from support.agent_isolation import READS
from support.agent_stores import START, everywhere, open_agents

from hermes_actor.errors import HermesActorError

WRONG = [
    *(7, 1.5, float("nan"), 2**70, True, None, object(), b"bytes"),
    *("", "nul \0", "half \ud800", "x" * 600),
    *([], ["x", 7], [[]], (), {1, 2}, {}, {"a": 1}, {7: 7}, {"a": {1, 2}}),
]

SUBJECTS = (*READS, "meta", "tokens")
LEFT_OUT = {"wait_for_idle", "rekey", "of"}
"""Waiting, and what takes an object of ours."""

RIGHT = {
    "session_id": "shared", "key": "shared", "key_": "shared", "limit": 5, "content": "text",
    "entry": {"role": "user", "content": "x"}, "entries": [{"role": "user", "content": "x"}],
    "now": START, "user_id": "shared", "role": "user", "name": "NAME", "value": "text",
    "type": "cron", "type_": "cron", "prompt": "p", "schedule_id": "shared", "worker": "w",
    "agent_id": "a", "run_id": 1, "status": "completed", "alias": "shared", "id_": "shared",
    "mode": "set", "path": "a.b", "query": "only", "after_id": 0, "message_id": "m",
    "channel_type": "shared", "profile": "shared", "item_id": "shared", "agent_ids": ["a"],
    "resource_type": "tool", "resource_key": "x", "source": {"kind": "cli", "interactive": True},
    "record": {"session_id": "n", "source": {"kind": "cli", "interactive": True}},
}  # fmt: skip
"""A value that fits, by the name of an argument; others are a text."""


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    with open_agents("embedded", tmp_path_factory.mktemp("types") / "agents.db") as store:
        everywhere(store, "a")
        yield store.of("a")


def methods(store):
    for subject in SUBJECTS:
        for name, method in inspect.getmembers(getattr(store, subject), inspect.ismethod):
            if not name.startswith("_") and name not in LEFT_OUT:
                yield f"{subject}.{name}", method


def calls(method):
    """The arguments of each call: one wrong, the others right."""
    parameters = [
        one for one in inspect.signature(method).parameters.values()
        if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)
    ]  # fmt: skip
    needed = {
        one.name: RIGHT.get(one.name, "text") for one in parameters if one.default is one.empty
    }
    for one in parameters:
        for value in WRONG:
            yield {**needed, one.name: value}


def test_every_argument_of_every_method(store):
    crashed = []
    for name, method in methods(store):
        for arguments in calls(method):
            try:
                method(**arguments)
            except HermesActorError:
                pass
            except Exception as error:
                crashed.append(f"{name}({str(arguments)[:120]}): {type(error).__name__}: {error}")
    assert crashed == []
