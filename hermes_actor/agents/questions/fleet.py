"""Reads over many agents: effective assignments, fleet numbers, usage, what is dangling."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hermes_actor.agents import verbs
from hermes_actor.agents.documents import dumps
from hermes_actor.agents.records import record
from hermes_actor.agents.rows import Row, Rows
from hermes_actor.agents.tables import TABLES, WILDCARD
from hermes_actor.agents.times import after
from hermes_actor.agents.values import scope_of
from hermes_actor.errors import BadValue

__all__ = ["check", "counts", "enabled", "fleet_stats", "fleet_usage", "usage_detail"]

_DAY = 24 * 3600


def enabled(rows: Rows, items: str, assignments: str, agent_id: str) -> list[Row]:
    """Return the items that are effective for an agent.

    Its own assignment decides; without one the assignment to all agents does.
    """
    if agent_id == WILDCARD:
        raise BadValue("name one agent: '*' is every agent, each with a list of its own")
    table, item = TABLES[items], TABLES[assignments].key[0]
    scope = scope_of(TABLES[assignments], agent_id)
    columns = ", ".join(f'i."{name}"' for name in table.names)
    found = rows.all(
        f"SELECT {columns} FROM @{items} i"
        f" LEFT JOIN @{assignments} own ON own.{item} = i.id AND own.agent_id = :agent_id"
        f" LEFT JOIN @{assignments} every ON every.{item} = i.id AND every.agent_id = '*'"
        " WHERE COALESCE(own.enabled, every.enabled) = true",
        scope,
    )
    made = [record(table, row) for row in found]
    return sorted(made, key=lambda one: (one["name"].casefold(), one["name"], one["id"]))


def counts(rows: Rows) -> dict[str, int]:
    """Return the number of rows of every table."""
    return {name: int(rows.value(f"SELECT COUNT(*) AS n FROM @{name}")) for name in TABLES}


def fleet_stats(rows: Rows, agent_ids: Sequence[str], since: str) -> dict[str, Row]:
    """Return activity, errors and assignments of agents; every one that was asked for is there."""
    made: dict[str, Row] = {
        one: {"sessions_24h": 0, "errors_24h": 0, "skills_count": 0, "mcp_count": 0}
        for one in agent_ids
    }
    if not made:
        return made
    # Each agent is looked up by itself: the cost follows those that were asked for, not the store.
    wanted = dumps(_possible(made))
    for row in rows.all(
        "SELECT wanted.value AS agent_id,"
        " (SELECT MAX(s.last_activity_at) FROM @sessions s WHERE s.agent_id = wanted.value)"
        " AS last,"
        " (SELECT COUNT(*) FROM @sessions s WHERE s.agent_id = wanted.value"
        " AND s.last_activity_at > :since) AS active,"
        " (SELECT COUNT(*) FROM @session_events e WHERE e.agent_id = wanted.value"
        " AND e.event_type = 'error' AND e.ts > :since) AS errors"
        f" FROM {rows.texts('wanted')}",
        {"since": since, "wanted": wanted},
    ):
        fields = made[row["agent_id"]]
        fields["sessions_24h"], fields["errors_24h"] = int(row["active"]), int(row["errors"])
        if row["last"] is not None:
            fields["last_activity"] = row["last"]
    for field, assignments in (
        ("skills_count", "agent_skills"),
        ("mcp_count", "agent_mcp_servers"),
    ):
        _count_effective(rows, made, wanted, field, assignments)
    return made


def _possible(agent_ids: Iterable[str]) -> list[str]:
    """Return the ids that an agent can have; servers cut longer ones to another."""
    column = TABLES["agents"].column("agent_id")
    assert column is not None
    return [one for one in agent_ids if len(one) <= column.length]


def _count_effective(
    rows: Rows, made: dict[str, Row], wanted: str, field: str, assignments: str
) -> None:
    item = TABLES[assignments].key[0]
    columns = f"a.agent_id AS agent_id, a.{item} AS item, a.enabled AS enabled"
    every = {
        row["item"]: bool(row["enabled"])
        for row in rows.all(f"SELECT {columns} FROM @{assignments} a WHERE a.agent_id = '*'")
    }
    of_all = sum(every.values())
    for fields in made.values():
        fields[field] = of_all
    for row in rows.all(
        f"SELECT {columns} FROM {rows.texts('wanted')}"
        f" CROSS JOIN @{assignments} a WHERE a.agent_id = wanted.value AND a.agent_id <> '*'",
        {"wanted": wanted},
    ):
        made[row["agent_id"]][field] += bool(row["enabled"]) - every.get(row["item"], False)


_TOKENS = {
    "input_tokens": ("usage", "input"),
    "output_tokens": ("usage", "output"),
    "cache_read_tokens": ("usage", "cacheRead"),
    "cache_write_tokens": ("usage", "cacheWrite"),
    "cost_usd": ("usage", "cost", "total"),
}


def _sums(rows: Rows, *names: str) -> str:
    return ", ".join(
        f"SUM({rows.number_in('payload', *path)}) AS {name}"
        for name, path in _TOKENS.items()
        if not names or name in names
    )


def _numbers(row: Row, *others: str) -> Row:
    """Return the sums of *row* as plain numbers: tokens whole, cost as it is."""
    made = {}
    for name in row.keys() - set(others):
        value = float(row[name] or 0)
        made[name] = value if name == "cost_usd" else int(value)
    return made


def fleet_usage(rows: Rows, agent_ids: Sequence[str], now: str, all_time: bool) -> dict[str, Row]:
    """Return the tokens of agents over a day and a week, and over all time if asked for."""
    windows: dict[str, str] = {"window_24h": after(now, -_DAY), "window_7d": after(now, -7 * _DAY)}
    if all_time:
        windows["all_time"] = ""
    made: dict[str, Row] = {}
    wanted = dumps(_possible(dict.fromkeys(agent_ids)))
    for name, since in windows.items():
        found = rows.all(
            f"SELECT e.agent_id AS agent_id, {_sums(rows)} FROM {rows.texts('wanted')}"
            " CROSS JOIN @session_events e WHERE e.agent_id = wanted.value"
            " AND e.event_type = 'assistant' AND e.ts > :since"
            f" AND {rows.text_in('payload', 'usage')} IS NOT NULL GROUP BY e.agent_id",
            {"since": since, "wanted": wanted},
        )
        for row in found:
            made.setdefault(row["agent_id"], {})[name] = _numbers(row, "agent_id")
    zero = dict.fromkeys(_TOKENS, 0)
    return {one: {name: parts.get(name, zero) for name in windows} for one, parts in made.items()}


def usage_detail(rows: Rows, agent_id: str, now: str) -> Row:
    """Return the tokens of an agent: in all, by model, and by day of the last thirty."""
    scope = scope_of(TABLES["agents"], agent_id)
    where = (
        "FROM @session_events WHERE agent_id = :agent_id AND event_type = 'assistant'"
        f" AND {rows.text_in('payload', 'usage')} IS NOT NULL"
    )
    model, provider = rows.text_in("payload", "model"), rows.text_in("payload", "provider")
    few = _sums(rows, "input_tokens", "output_tokens", "cost_usd")
    total = rows.one(f"SELECT {_sums(rows)} {where}", scope) or {}
    models = rows.all(
        f"SELECT {model} AS model, {provider} AS provider, COUNT(*) AS calls, {few} {where}"
        f" GROUP BY {model}, {provider}", scope)  # fmt: skip
    days = rows.all(
        f"SELECT substr(ts, 1, 10) AS day, {few} {where} AND ts > :since GROUP BY substr(ts, 1, 10)"
        " ORDER BY day",
        {**scope, "since": after(now, -30 * _DAY)},
    )
    by_model = [
        {"model": row["model"] or "(unknown)",
         **({"provider": row["provider"]} if row["provider"] else {}),
         **_numbers(row, "model", "provider")} for row in models
    ]  # fmt: skip
    by_model.sort(key=lambda one: (-one["cost_usd"], one["model"]))
    daily = [{"day": row["day"], **_numbers(row, "day")} for row in days]
    return {"totals": _numbers(total), "by_model": by_model, "daily": daily}


def check(rows: Rows) -> Row:
    """Return what refers to something that is missing, by table and column."""
    found: dict[str, int] = {}
    for table, column in (("session_events", "user_id"), ("schedules", "created_by")):
        found[f"{table}.{column}"] = int(rows.value(
            f"SELECT COUNT(*) AS n FROM @{table} t WHERE t.{column} IS NOT NULL AND NOT EXISTS"
            f" (SELECT 1 FROM @users u WHERE u.user_id = t.{column})"))  # fmt: skip
    return {"dangling": {name: count for name, count in found.items() if count}}


def all_of(rows: Rows, name: str, where: str = "1 = 1", values: Row | None = None) -> list[Row]:
    """Return rows of every agent, for an administrator, in the order of the table."""
    table = TABLES[name]
    order = ", ".join(
        f'"{one.lstrip("-")}"{" DESC" if one.startswith("-") else ""}'
        for one in dict.fromkeys([*table.order, *table.whole_key])
    )
    columns = ", ".join(f'"{one}"' for one in table.names)
    return rows.all(f"SELECT {columns} FROM @{name} WHERE {where} ORDER BY {order}", values)


def find_row(rows: Rows, name: str, agent_id: str | None, key: Row) -> Row | None:
    """Return one row of the scope, or ``None``."""
    return verbs.find(rows, TABLES[name], agent_id, key)


def list_rows(
    rows: Rows, name: str, agent_id: str | None, key: Row, limit: int | None
) -> list[Row]:
    """Return the rows of the scope that have all values of *key*, in the order of the table."""
    return verbs.select(rows, TABLES[name], agent_id, key, limit=limit)
