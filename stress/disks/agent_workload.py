"""The workload of an agent store: changes of many rows, each of them whole or not there at all."""

from __future__ import annotations

import random
from typing import Any

from support.agent_stores import KEY, OTHER_KEY, START, new_row

from disks.bench import Bench
from hermes_actor.agents.tables import TABLES
from hermes_actor.agents.times import after
from hermes_actor.agents.vault import Vault
from hermes_protocol import agents as ops

__all__ = ["agent_store"]


def _row(table: str, **fields: Any) -> dict[str, Any]:
    return {**new_row(TABLES[table], "x"), **fields}


def _provision(name: str, chance: random.Random) -> ops.AgentsProvision:
    """An agent, and rows in five tables."""
    texts = ["rule " * chance.randrange(1, 300) for _ in range(3)]
    return ops.AgentsProvision(
        agent_id=name,
        now=START,
        agent=_row("agents"),
        sessions=[_row("sessions", session_id=f"s{n}", user_ids='["old"]') for n in range(2)],
        sandboxes=[_row("sandboxes", id=f"box-{name}", type="docker")],
        channels=[_row("agent_channels", id=f"chr-{name}", namespace=name)],
        instructions=[_row("instructions", key=f"k{n}", content=text)
                      for n, text in enumerate(texts)],
        owner="old",
    )  # fmt: skip


def _appended(name: str, number: int, chance: random.Random) -> ops.AgentsAppend:
    text = "walrus " * chance.randrange(1, 200)
    return ops.AgentsAppend(
        agent_id=name, session_id=f"s{number % 2}", message_id=f"m{number // 2}", count=1,
        preview=text[:20], user_id=f"u{number}",
        entries=[f'{{"role":"user","content":"{text}","ts":"{START}","userId":"old"}}'],
    )  # fmt: skip


def _secrets(name: str, vault: Vault) -> ops.AgentsReplace:
    rows = [
        _row("agent_secrets", name=f"N{n}", value_ciphertext=vault.encrypt(f"{n}"))
        for n in range(6)
    ]
    return ops.AgentsReplace(table="agent_secrets", key={}, rows=rows, agent_id=name)


Sealed = dict[tuple[str, str, str, str], str]
"""The ciphertexts of the store: table, column, agent and name of each."""


def _sealed(name: str, channel: str, secrets: ops.AgentsReplace) -> Sealed:
    """The ciphertexts that an agent has at first."""
    found = {("agent_channels", "token_ciphertext", name, f"chr-{name}"): channel}
    for row in secrets.rows:
        place = ("agent_secrets", "value_ciphertext", name, str(row["name"]))
        found[place] = str(row["value_ciphertext"])
    return found


def _rekey(sealed: Sealed, old: Vault, new: Vault) -> tuple[ops.AgentsCompare, Sealed]:
    """A change of the key for all ciphertexts at once, and what they are then."""
    after = {place: new.encrypt(place[3]) for place in sealed}
    items = [
        ops.Comparison(table=table, agent_id=agent, column=column, old=value,
                       key={TABLES[table].key[0]: name}, new=after[table, column, agent, name])
        for (table, column, agent, name), value in sealed.items()
    ]  # fmt: skip
    whole = ops.AgentsCompare(
        items=items, complete=True, old_key_id=old.key_id, new_key_id=new.key_id
    )
    return whole, after


def _schedules(name: str) -> ops.AgentsPut:
    rows = [
        _row("schedules", schedule_id=f"j{n}", type="cron", cron_expression="* * * * *",
             status="active", claimed_by=None, claim_expires_at=None, created_by="old")
        for n in range(4)
    ]  # fmt: skip
    return ops.AgentsPut(table="schedules", rows=rows, agent_id=name)


def _claim(name: str, worker: str, minutes: int) -> ops.AgentsClaim:
    now = after(START, 60 * minutes)
    return ops.AgentsClaim(
        agent_id=name, now=now, worker=worker, expires_at=after(now, 30), limit=3
    )


def _complete(name: str, run_id: int, worker: str) -> ops.AgentsComplete:
    return ops.AgentsComplete(agent_id=name, run_id=run_id, worker=worker, status="failed",
                              now=after(START, 90), error="boom")  # fmt: skip


def agent_store(bench: Bench) -> None:
    """Agents come and go; runs are claimed twice and ended once; all secrets change their key."""
    bench.open()
    chance, old, new = random.Random(bench.seed + 17), Vault(KEY), Vault(OTHER_KEY)
    sealed: Sealed = {}
    for turn in range(2):
        name = f"a{turn}"
        provision = _provision(name, chance)
        bench.do(("ann", provision))
        bench.do(*(("bob", _appended(name, n, chance)) for n in range(8)))
        secrets = _secrets(name, old)
        bench.do(("cyd", secrets), ("ann", _schedules(name)))
        # Those with the old key wait; then all is replaced, together with what is known of keys.
        before = sealed | _sealed(name, str(provision.channels[0]["token_ciphertext"]), secrets)
        bench.do(("cyd", ops.AgentsCompare(items=[], old_key_id=old.key_id)))
        change, sealed = _rekey(before, old, new)
        bench.do(("cyd", change), ("bob", _appended(name, 8, chance)))
        # Refused as a whole, the pause as well: the values are not the old ones any more.
        bench.do(("cyd", _rekey(before, new, old)[0]))
        bench.do(("cyd", ops.AgentsCompare(items=[], new_key_id=new.key_id)))
        old, new = new, old
        bench.do(("bob", _claim(name, "w1", 0)), ("cyd", _claim(name, "w2", 1)))
        bench.do(*(("ann", _complete(name, 6 * turn + run, "w2")) for run in (1, 4, 5)))
        bench.checkpoint()
        person = _row("users", user_id="new", merged_into=None)
        bench.do(("ann", ops.AgentsPut(table="users", rows=[person], mode="upsert")))
        bench.do(("bob", ops.AgentsMerge(from_user_id="old", into_user_id="new")))
        bench.do(("cyd", ops.AgentsFanout(mode="append", key="k0", content="more", now=START)))
    bench.do(("ann", ops.AgentsRemove(agent_id="a0")), ("bob", _appended("a1", 99, chance)))
    bench.idle(5.0)
    bench.close()
