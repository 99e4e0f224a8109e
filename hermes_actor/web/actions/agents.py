"""Actions on agents: assignments of skills and MCP servers, schedules."""

from __future__ import annotations

from urllib.parse import urlencode

from hermes_actor.agent_store.assignments import McpServers, Skills
from hermes_actor.errors import NotFound
from hermes_actor.store.rows import Row
from hermes_actor.web.actions.action import Action, Preview, isolated
from hermes_actor.web.parameters import Parameter, Values
from hermes_actor.web.stores import ShownStore
from hermes_protocol.features import AGENTS

__all__ = ["ACTIONS"]


def _items(shown: ShownStore, values: Values) -> Skills | McpServers:
    store = shown.agents
    return store.skills if values["what"] == "skill" else store.mcp


def _words(values: Values) -> tuple[str, str, str]:
    verb = "on" if values["enabled"] else "off"
    thing = "skill" if values["what"] == "skill" else "MCP server"
    everyone = "all agents, later ones included"
    whom = everyone if values["agent"] == "*" else isolated(values["agent"])
    return verb, thing, whom


def _assign_preview(shown: ShownStore, values: Values) -> Preview:
    if _items(shown, values).get(values["item"]) is None:
        raise NotFound(f"there is no {_words(values)[1]} {values['item']!r}")
    verb, thing, whom = _words(values)
    return Preview(f"Switch the {thing} {isolated(values['item'])} {verb} for {whom}?")


def _assign(shown: ShownStore, values: Values) -> Row:
    items = _items(shown, values)
    change = items.enable if values["enabled"] else items.disable
    concerned = change(values["item"], agent=values["agent"])
    verb, thing, whom = _words(values)
    return {
        "agent": concerned,
        "text": f"The {thing} {isolated(values['item'])} is {verb} for {whom}.",
    }


def _run_preview(shown: ShownStore, values: Values) -> Preview:
    found = shown.agents.of(values["agent"]).schedules.get(values["schedule"])
    if found is None:
        raise NotFound(f"agent {values['agent']!r} has no schedule {values['schedule']!r}")
    return Preview(
        f"Make schedule {isolated(values['schedule'])} of {isolated(values['agent'])} due now? The"
        " next scheduler that looks runs it."
    )


def _run_now(shown: ShownStore, values: Values) -> Row:
    made = shown.agents.of(values["agent"]).schedules.trigger(values["schedule"])
    text = f"Schedule {isolated(values['schedule'])} is due now."
    return {"schedule_id": made["schedule_id"], "next_run_at": made["next_run_at"], "text": text}


def _to_agent(values: Values) -> str:
    if values["agent"] == "*":
        return "agents"
    return f"agent?{urlencode({'id': values['agent']}, errors='replace')}"


ACTIONS = (
    Action(
        "assign", "Switch on or off",
        "Switch a skill or an MCP server on or off for an agent, or with `*` for all.",
        _assign_preview, _assign, _to_agent,
        (
            Parameter("what", "Kind of the item.", needed=True, choices=("skill", "mcp")),
            Parameter("item", "Id of the skill or the server.", needed=True),
            Parameter("agent", "Id of the agent; `*` for all.", needed=True),
            Parameter("enabled", "On or off.", bool, default=True),
        ),
        kind=AGENTS,
    ),
    Action(
        "run-schedule", "Run schedule now", "Make a schedule due now.",
        _run_preview, _run_now, _to_agent,
        (
            Parameter("agent", "Id of the agent.", needed=True),
            Parameter("schedule", "Id of the schedule.", needed=True),
        ),
        kind=AGENTS,
    ),
)  # fmt: skip
