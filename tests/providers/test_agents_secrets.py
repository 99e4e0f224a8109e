"""Secrets, channels and credentials, on every provider. Numbers are rows of the matrix."""

import json
import logging

import pytest
from support.agent_stores import KEY, OTHER_KEY, open_agents

from hermes_actor.agents.vault import Secret, Vault, new_key
from hermes_actor.errors import BadValue, Conflict, NotConfigured, NotFound


def with_key(store, key):
    """The same store as a process with another key has it."""
    other = store.of(store.agent_id)
    other._vault = Vault(key)
    return other


def row_of(store, table="agent_secrets"):
    return next(row for row in store.rows(table) if row["agent_id"] == store.agent_id)


def test_secrets_are_named_resolved_and_missed(store):
    """57, 58."""
    store.secrets.set("B_KEY", "b")
    store.secrets.set("A_KEY", Secret("a"))
    assert store.secrets.names() == ["A_KEY", "B_KEY"]
    assert store.secrets.resolve(["B_KEY"]) == {"B_KEY": "b"}
    with pytest.raises(NotFound, match="Secret not found: C_KEY"):
        store.secrets.resolve(["A_KEY", "C_KEY"])
    assert store.secrets.get("C_KEY") is None
    assert store.secrets.delete("A_KEY")
    assert not store.secrets.delete("A_KEY")
    with pytest.raises(BadValue, match="letters, digits and _"):
        store.secrets.set("no blanks", "x")


def test_value_is_replaced_and_the_rest_is_kept(store):
    """154."""
    store.secrets.set("K", "one", pass_through=True)
    created = row_of(store)["created_at"]
    store.secrets.set("K", "two")
    assert store.secrets.entries() == {"K": {"value": "two", "pass_through": True}}
    assert row_of(store)["created_at"] == created
    sealed = row_of(store)["value_ciphertext"]
    store.secrets.set_pass_through("K", False)
    assert row_of(store)["value_ciphertext"] == sealed
    assert store.secrets.entries()["K"]["pass_through"] is False
    with pytest.raises(BadValue, match="Secret not found: X"):
        store.secrets.set_pass_through("X", True)


def test_another_key_opens_nothing(store):
    """156, 157."""
    store.secrets.set("K", "value")
    store.credentials.set("whatsapp", "default", "creds", "c")
    channel = store.channels.create_external("shop")
    other = with_key(store, OTHER_KEY)
    assert (other.secrets.get("K"), other.secrets.values()) == (None, {})
    assert other.secrets.names() == ["K"]
    assert other.credentials.get("whatsapp", "default", "creds") is None
    assert other.credentials.list("whatsapp", "default") == {}
    assert channel["id"] not in [one["id"] for one in other.channels.load_active()]
    assert other.agents.check()["undecryptable"]["agent_secrets"] >= 1
    other.secrets.set("K", "again")
    assert other.secrets.get("K") == "again"


def test_replaced_secrets_are_all_or_nothing(store):
    """159, 160."""
    store.secrets.replace_all({"A": "1", "B": "2"})
    with pytest.raises(BadValue):
        store.secrets.replace_all({"C": "3", "D" * 192: "4"})
    assert store.secrets.values() == {"A": "1", "B": "2"}
    store.secrets.replace_all({})
    assert store.secrets.values() == {}


def test_masks(store):
    """161."""
    for name, value in (("E", ""), ("S", "abcd"), ("L", "abcdefghijkl")):
        store.secrets.set(name, value)
    shown = {name: one["masked"] for name, one in store.secrets.masked().items()}
    assert shown == {"E": "", "S": "****", "L": "abcd********ijkl"}


def test_placeholders_are_resolved_once(store):
    """162, 163, 164."""
    store.agents.create("/w")
    store.secrets.set("A", "${{C}}")
    store.secrets.set("C", "deep")
    document = {"list": [{"x": "1 ${{A}} ${{B}}"}], "${{A}}": 7, "blank": "${{ A }}"}
    store.config.set(document)
    assert store.config.resolved() == {
        "list": [{"x": "1 ${{C}} ${{B}}"}], "${{A}}": 7, "blank": "${{ A }}"
    }  # fmt: skip
    assert store.config.get() == document
    channel = store.channels.create_builtin("telegram", config={"token": "${{C}}"})
    assert store.channels.settings(channel["id"]) == {"token": "deep"}


# --- without a key -------------------------------------------------------------------------------


@pytest.fixture
def keyless(store, tmp_path, monkeypatch):
    """The store in a home without a key."""
    other = store.of(store.agent_id)
    other._vault = None
    monkeypatch.setattr(store.port, "home", tmp_path)
    return other


def secrets_file(store):
    return store.port.home / "agents" / store.agent_id / "secrets.json"


def test_plain_file_stands_in_with_a_warning(keyless, caplog):
    """55, 165, 166 and the file of section 6.6."""
    file = secrets_file(keyless)
    with caplog.at_level(logging.WARNING):
        assert keyless.secrets.values() == {}
    assert "plain text" in caplog.text
    file.parent.mkdir(parents=True)
    file.write_text('{"OLD": "o", "NEW": {"value": "n", "passThrough": true}, "ODD": 7}')
    assert keyless.secrets.entries() == {
        "NEW": {"value": "n", "pass_through": True}, "OLD": {"value": "o", "pass_through": False}
    }  # fmt: skip
    keyless.secrets.set("ADD", "a")
    assert file.stat().st_mode & 0o777 == 0o600
    assert list(json.loads(file.read_text())) == ["ADD", "NEW", "OLD"]
    assert file.read_text().endswith("}\n")
    keyless.secrets.set_pass_through("ADD", True)
    assert keyless.secrets.entries()["ADD"]["pass_through"]
    before = file.stat().st_mtime_ns
    assert not keyless.secrets.delete("MISSING")
    assert file.stat().st_mtime_ns == before
    keyless.secrets.replace_all({"ONLY": "x"})
    assert keyless.secrets.names() == ["ONLY"]
    file.write_text("[1]")
    assert keyless.secrets.values() == {}
    file.write_text("{broken")
    with pytest.raises(BadValue, match="is not JSON"):
        keyless.secrets.values()


def test_channels_need_a_key(keyless):
    with pytest.raises(NotConfigured, match="hermes-actor agents setup"):
        keyless.channels.create_external("shop")
    with pytest.raises(NotConfigured):
        keyless.credentials.list("whatsapp", "default")


def test_plain_file_is_imported_once(keyless, store):
    """167."""
    keyless.secrets.set("K", "v", pass_through=True)
    keyed = with_key(keyless, KEY)
    assert keyed.secrets.import_file() == 1
    assert keyed.secrets.entries() == {"K": {"value": "v", "pass_through": True}}
    assert not secrets_file(keyless).exists()
    assert secrets_file(keyless).with_name("secrets.json.imported").exists()
    assert keyed.secrets.import_file() == 0


def test_no_file_is_made_from_an_id_that_is_a_path(agents, tmp_path, monkeypatch):
    other = agents.all.of("../escape")
    other._vault = None
    monkeypatch.setattr(agents.all.port, "home", tmp_path / "home")
    with pytest.raises(BadValue, match="cannot have a file"):
        other.secrets.set("K", "v")
    assert list(tmp_path.rglob("*")) == []


# --- channels and credentials --------------------------------------------------------------------


def test_token_is_shown_once(store, agents):
    """168, 169."""
    made = store.channels.create_external("shop", label="Shop", enabled=True)
    token = made.pop("token")
    assert (token[:6], len(token), made["token_prefix"]) == ("oh_ch_", 54, token[:12])
    assert store.channels.get(made["id"]) == made
    assert not any(token in str(row) for row in store.rows("agent_channels"))
    with pytest.raises(Conflict, match="has a channel shop already"):
        store.channels.create_external("shop")
    active = {one["id"]: one for one in agents.all.channels.load_active()}
    assert active[made["id"]]["token"] == token
    store.channels.revoke(made["id"])
    assert store.channels.list() == []
    assert made["id"] not in [one["id"] for one in agents.all.channels.load_active()]
    assert store.channels.get(made["id"])["enabled"] is False
    assert store.channels.create_external("shop")["id"] != made["id"]
    assert agents.new().channels.get(made["id"]) is None


def test_health_of_a_channel(store):
    """170."""
    id_ = store.channels.create_builtin("telegram")["id"]
    for _ in range(2):
        store.channels.record_error(id_, "no network")
    found = store.channels.get(id_)
    assert (found["consecutive_failure_count"], found["total_failure_count"]) == (2, 2)
    store.channels.record_success(id_)
    found = store.channels.get(id_)
    assert (found["consecutive_failure_count"], found["total_failure_count"]) == (0, 2)
    assert "last_error" not in found
    assert found["last_success_at"]
    store.channels.record_error(id_, "again")
    store.channels.clear_error(id_)
    assert "last_error" not in store.channels.get(id_)
    assert store.channels.find_builtin("telegram")["id"] == id_
    changed = store.channels.update(id_, enabled=True, label="L", config={"a": 1})
    assert (changed["enabled"], changed["label"], changed["config"]) == (True, "L", {"a": 1})
    assert store.channels.update("chr-none", enabled=True) is None
    assert store.channels.delete(id_)


def test_credentials_are_kept_apart(store, agents):
    """64 to 70."""
    store.credentials.set("whatsapp", "default", "creds", "one")
    store.credentials.set("whatsapp", "default", "key:a:1", json.dumps({"b": [1]}))
    assert store.credentials.list("whatsapp", "default")["creds"] == "one"
    assert json.loads(store.credentials.get("whatsapp", "default", "key:a:1")) == {"b": [1]}
    assert store.credentials.get("whatsapp", "default", "key:a:2") is None
    assert store.credentials.delete("whatsapp", "default", "key:a:1")
    store.credentials.set("telegram", "default", "creds", "two")
    store.credentials.set("whatsapp", "setup:1", "creds", "three")
    other = agents.new()
    other.credentials.set("whatsapp", "default", "creds", "four")
    assert store.credentials.list("telegram", "default") == {"creds": "two"}
    assert other.credentials.list("whatsapp", "default") == {"creds": "four"}
    scoped = store.credentials.of("whatsapp")
    scoped.replace("setup:1", {"new": "n"})
    assert scoped.list("setup:1") == {"new": "n"}
    scoped.clear("default")
    assert scoped.list("default") == {}
    assert store.credentials.list("telegram", "default") == {"creds": "two"}


# --- another key for all -------------------------------------------------------------------------


def test_rekey_is_all_or_nothing(kind, tmp_path):
    with open_agents(kind, tmp_path / "agents.db") as all_:
        a, b = all_.of("a"), all_.of("b")
        a.secrets.set("K", "a")
        b.secrets.set("K", "b")
        b.credentials.set("whatsapp", "default", "creds", "c")
        token = b.channels.create_external("shop")["token"]
        assert all_.secrets.rekey(Vault(OTHER_KEY)) == 4
        new = with_key(b, OTHER_KEY)
        assert (new.secrets.get("K"), new.credentials.list("whatsapp", "default")) == (
            "b",
            {"creds": "c"},
        )
        assert [one["token"] for one in new.channels.load_active()] == [token]
        assert with_key(a, KEY).secrets.get("K") is None
        before = all_.rows("agent_secrets")
        with pytest.raises(BadValue, match="cannot open agent_secrets K of a"):
            with_key(a, KEY).secrets.rekey(Vault(new_key()))
        assert all_.rows("agent_secrets") == before


@pytest.mark.parametrize("change", ["changed", "added", "deleted"])
def test_rekey_gives_way_to_what_others_do_meanwhile(kind, tmp_path, change, monkeypatch):
    """Between its reading and its writing: nothing may stay behind with the old key."""
    with open_agents(kind, tmp_path / "agents.db") as all_:
        a = all_.of("a")
        a.secrets.replace_all({"A": "1", "B": "2"})
        submit, others = all_.submit, all_.of("a")
        act = {"changed": lambda: others.secrets.set("A", "new"),
               "added": lambda: others.secrets.set("C", "3"),
               "deleted": lambda: others.secrets.delete("B")}[change]  # fmt: skip

        def late(operation):
            if not operation.complete:
                return submit(operation)
            monkeypatch.undo()
            act()
            return submit(operation)

        monkeypatch.setattr(all_, "submit", late)
        with pytest.raises(Conflict):
            all_.secrets.rekey(Vault(OTHER_KEY))
        kept = {"changed": {"A": "new", "B": "2"}, "added": {"A": "1", "B": "2", "C": "3"},
                "deleted": {"A": "1"}}[change]  # fmt: skip
        assert with_key(a, KEY).secrets.values() == kept
        assert with_key(a, OTHER_KEY).secrets.values() == {}
        assert all_.secrets.rekey(Vault(OTHER_KEY)) == len(kept)
        assert with_key(a, OTHER_KEY).secrets.values() == kept
