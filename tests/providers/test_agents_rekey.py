"""Re-keying while four writers set secrets: at every moment one key opens all of them (A6)."""

import threading

import pytest
from support.agent_stores import KEY, OTHER_KEY, open_agents

from hermes_actor.agent_store.channels import Credentials
from hermes_actor.agent_store.key_files import rekey
from hermes_actor.agent_store.secret_files import replace_file
from hermes_actor.agents.vault import Vault, new_key
from hermes_actor.errors import Conflict, KeyChanging, KeyReplaced
from hermes_protocol.agents import AgentsCompare, AgentsPut

WRITERS, KEYS = 4, 3
TABLES = {"agent_secrets": "value_ciphertext", "agent_channel_credentials": "value_ciphertext",
          "agent_channels": "token_ciphertext"}  # fmt: skip


def opened_by(store, vaults):
    """For each value of one snapshot: the keys of *vaults* that open it."""

    def read(rows):
        return [
            row[column] for table, column in TABLES.items()
            for row in rows.all(f'SELECT "{column}" FROM @{table}')
        ]  # fmt: skip

    return [
        tuple(n for n, vault in enumerate(vaults) if vault.try_decrypt(value) is not None)
        for value in store.ask(read)
    ]


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home whose key is in a file, as `hermes-actor agents setup` leaves it."""
    monkeypatch.delenv("HERMES_ACTOR_SECRETS_KEY", raising=False)
    monkeypatch.setenv("HERMES_HOME", str(tmp_path))
    replace_file(tmp_path / "agents.key", KEY)
    return tmp_path


def followers(kind, home):
    """A store of the home, and how to open it again with the key of its file."""
    first = open_agents(kind, home / "agents.db", vault=None)
    first.port.home = home
    return first


def write(store, name, stop, last, failures):
    number = 0
    while not stop.wait(0.02):
        number += 1
        try:
            store.secrets.set(f"S_{name}_{number % 5}", f"{name} {number}")
            last[f"S_{name}_{number % 5}"] = f"{name} {number}"
            store.credentials.replace("w", f"p{name}", {"a": f"{number}", "b": f"{number}"})
            if number % 7 == 0:
                made = store.channels.create_external(f"ns-{name}-{number}")
                store.channels.delete(made["id"])
            if number % 5 == 0:
                store.secrets.delete(f"S_{name}_{number % 5}")
                last.pop(f"S_{name}_{number % 5}", None)
        except Conflict as error:
            failures.append(error)  # a race that a server has decided
        except Exception as error:
            failures.append(error)
            raise


@pytest.mark.slow
def test_one_key_opens_everything_at_every_moment(kind, home):
    keys = [KEY, *(new_key() for _ in range(KEYS))]
    vaults = [Vault(key) for key in keys]
    stop, last, failures, mixed = threading.Event(), {}, [], []
    with followers(kind, home) as store:
        agent = store.of("a")
        agent.secrets.set("FIRST", "x")
        writers = [store.of("a") for _ in range(WRITERS)]
        threads = [
            threading.Thread(target=write, args=(one, n, stop, last, failures))
            for n, one in enumerate(writers)
        ]

        def watch():
            while not stop.is_set():
                opened = opened_by(store, vaults)
                if len(set(opened)) != 1 or len(opened[0]) != 1:
                    mixed.append(opened)

        threads.append(threading.Thread(target=watch))
        for thread in threads:
            thread.start()
        try:
            for number in range(1, KEYS + 1):
                new_file = home / f"{number}.key"
                replace_file(new_file, keys[number])
                rekey(store.of(None), new_file)
        finally:
            stop.set()
            for thread in threads:
                thread.join(120)
        assert mixed == []
        assert not [one for one in failures if isinstance(one, KeyReplaced)]
        assert all(isinstance(one, Conflict) for one in failures)
        assert set(opened_by(store, vaults)) == {(KEYS,)}
        found = store.of("a").secrets.values()
        assert {name: found[name] for name in last} == last
        assert found["FIRST"] == "x"


def test_replaced_key_is_refused_and_nothing_is_stored(kind, tmp_path):
    """A process whose key came from a variable: it cannot know the new one."""
    with open_agents(kind, tmp_path / "agents.db") as store:
        late, agent = store.of("a"), store.of("a")
        agent.secrets.set("K", "old")
        assert store.secrets.rekey(Vault(OTHER_KEY)) == 1
        before = {name: store.rows(name) for name in TABLES}
        calls = (
            lambda: late.secrets.set("K", "new"),
            lambda: late.secrets.replace_all({"K": "new"}),
            lambda: late.credentials.set("w", "p", "k", "v"),
            lambda: late.credentials.replace("w", "p", {"k": "v"}),
            lambda: late.channels.create_builtin("telegram"),
            lambda: late.channels.create_external("shop"),
            lambda: late.of("new").agents.provision("/w", channels=[{"channel_type": "x"}]),
        )
        for call in calls:
            with pytest.raises(KeyReplaced, match="use the new key"):
                call()
        assert {name: store.rows(name) for name in TABLES} == before
        assert late.of("new").agents.get() is None
        # A key that was never replaced is taken, as a setting of another process's own; and one
        # that comes back is taken again.
        assert store.secrets.rekey(Vault(KEY)) == 1
        late.secrets.set("K", "new")
        assert late.secrets.get("K") == "new"


def test_processes_follow_the_key_file(kind, home):
    with followers(kind, home) as store:
        long_lived = store.of("a")
        long_lived.secrets.set("K", "one")
        replace_file(home / "new.key", OTHER_KEY)
        rekey(store.of(None), home / "new.key")
        assert long_lived.secrets.get("K") == "one"
        long_lived.secrets.set("L", "two")
        assert store.of("a").secrets.values() == {"K": "one", "L": "two"}
        # Without its file a process keeps the key in hand; nothing goes to a plain file.
        (home / "agents.key").unlink()
        long_lived.secrets.set("M", "three")
        assert long_lived.secrets.names() == ["K", "L", "M"]
        assert not (home / "agents").exists()


def test_rekey_that_ended_before_the_key_file_is_completed(kind, home, monkeypatch):
    """Between the store and the file: the same command again does the rest."""
    with followers(kind, home) as store:
        store.of("a").secrets.set("K", "one")
        Credentials(store.of("a")).set("w", "p", "k", "v")
        replace_file(home / "new.key", OTHER_KEY)
        store.of(None).secrets.rekey(Vault(OTHER_KEY))  # and no more: it was killed here
        assert (home / "agents.key").read_text() == KEY
        again = rekey(store.of(None), home / "new.key")
        assert again.values == 2
        assert (home / "agents.key").read_text().strip() == OTHER_KEY
        assert (home / "agents.key.previous").read_text().strip() == KEY
        assert store.of("a").secrets.values() == {"K": "one"}


def test_change_of_keys_that_was_killed_keeps_no_writer_waiting(kind, tmp_path, monkeypatch):
    """It had asked the others to wait, and left them so."""
    monkeypatch.setattr("hermes_actor.agent_store.store._KEY_CHANGE_SECONDS", 0.3)
    with open_agents(kind, tmp_path / "agents.db") as store:
        agent = store.of("a")
        agent.secrets.set("K", "old")
        pause = AgentsCompare(items=[], old_key_id=store.needed_vault().key_id)
        store.submit(pause)
        with pytest.raises(KeyChanging):
            store.submit(AgentsPut(table="agent_secrets", rows=[], agent_id="a",
                                   key_id=store.needed_vault().key_id))  # fmt: skip
        agent.secrets.set("K", "new")
        assert agent.secrets.get("K") == "new"
        # A key of another process is not concerned.
        store.submit(pause)
        other = store.of("b")
        other._vault = Vault(OTHER_KEY)
        other.secrets.set("K", "b")
        assert agent.secrets.set("K", "newer") is None
