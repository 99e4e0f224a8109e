"""Users, identities, roles; instructions; skills and MCP servers; on every provider."""

import threading

import pytest
from support.agent_stores import session, unique

from hermes_actor.errors import BadValue, Conflict, HermesActorError, NotFound


@pytest.fixture
def user(store):
    """Creates users."""

    def make(name=None, **fields):
        user_id = unique("u")
        store.users.upsert({"user_id": user_id, **({"name": name} if name else {}), **fields})
        return user_id

    return make


def linked(store, user_id, channel="telegram"):
    handle = unique("h")
    store.users.link_identity(user_id, channel, handle)
    return handle


def test_user_is_stored_named_and_listed(store, user):
    """17, 18, 19."""
    first, second, merged = user(), user("Eva"), user(merged_into="someone")
    assert store.users.get(second)["name"] == "Eva"
    store.users.upsert({"user_id": first, "name": "Max"})
    assert store.users.get(first)["name"] == "Max"
    assert store.users.get(merged) is None
    listed = [one["user_id"] for one in store.users.list()]
    assert {first, second} <= set(listed)
    assert merged not in listed
    assert listed.index(first) < listed.index(second)


def test_identities_resolve_to_their_user(store, user):
    """20, 21, 25, 26."""
    one = user()
    handle = linked(store, one)
    assert store.users.resolve("telegram", handle) == one
    assert store.users.resolve("telegram", unique("x")) is None
    assert store.users.unlink_identity("telegram", handle)
    assert not store.users.unlink_identity("telegram", handle)
    assert store.users.resolve("telegram", handle) is None
    handle, other = linked(store, one), user()
    store.users.upsert({"user_id": one, "merged_into": other})
    assert store.users.resolve("telegram", handle) == other
    store.users.delete(one)
    assert store.users.get(one) is None
    assert store.users.resolve("telegram", handle) is None
    with pytest.raises(NotFound, match="User not found"):
        store.users.link_identity(one, "telegram", handle)


def test_merge_moves_identities(store, user):
    """22, 23, 24."""
    into, source = user(), user("Name")
    handles = {channel: linked(store, source, channel) for channel in ("telegram", "slack")}
    moved = store.users.merge(source, into)
    assert moved["identities"] == 2
    assert store.users.resolve("slack", handles["slack"]) == into
    assert {one["channel"] for one in store.users.identities(into)} == {"telegram", "slack"}
    assert store.users.identities(source) == []
    assert store.users.get(into)["name"] == "Name"
    with pytest.raises(BadValue):
        store.users.merge(into, into)
    with pytest.raises(NotFound):
        store.users.merge(source, into)


def test_merge_moves_roles_schedules_and_participants(store, user):
    """190."""
    into, source = user(), user()
    store.users.assign_role(into, "guest")
    store.users.assign_role(source, "owner")
    store.schedules.create(
        "cron", "p", cron_expression="@daily", created_by=source, schedule_id="s"
    )
    session(store, user_ids=[source, into, "other"])
    store.events.append("s1", {"role": "user", "content": "x", "userId": source})
    moved = store.users.merge(source, into)
    assert moved == {"identities": 0, "roles": 1, "events": 1, "schedules": 1, "sessions": 1}
    assert store.users.role(into) == "owner"
    assert [one["user_id"] for one in store.users.members()] == [into]
    assert store.schedules.get("s")["created_by"] == into
    assert store.sessions.get("s1")["user_ids"] == [into, "other"]


def test_identity_that_moves_absorbs_an_emptied_user(store, user):
    """27, 191."""
    one, other = user(), user()
    store.users.assign_role(other, "owner")
    handle, second = linked(store, other), linked(store, other, "slack")
    done = store.users.link_identity(one, "telegram", handle)
    assert done == {"moved_from": other, "absorbed": False}
    assert store.users.resolve("telegram", handle) == one
    assert store.users.link_identity(one, "slack", second)["absorbed"]
    assert store.users.get(other) is None
    assert store.users.role(one) == "owner"


def test_unknown_sender_gets_a_user_once(store):
    handle, made = unique("h"), []

    def ensure():
        for _ in range(20):
            try:
                made.append(store.users.ensure_for_identity("telegram", handle, name="Eva"))
                return
            except (Conflict, HermesActorError) as error:  # a race that the other side has won
                assert isinstance(error, Conflict)

    threads = [threading.Thread(target=ensure) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({one["user_id"] for one in made}) == 1
    assert sum(one["created"] for one in made) == 1
    assert len(store.users.identities(made[0]["user_id"])) == 1


def test_agent_has_one_owner(store, user):
    """192, roles."""
    first, second = user(), user()
    store.users.promote_owner(first)
    store.users.promote_owner(first)
    with pytest.raises(Conflict, match=f"{first} is the owner"):
        store.users.promote_owner(second)
    with pytest.raises(BadValue, match=r"user_agents\.role is one of owner, user, guest"):
        store.users.assign_role(second, "king")
    with pytest.raises(NotFound, match="User not found"):
        store.users.assign_role(unique("missing"), "user")
    assert [one["role"] for one in store.users.roles_of(first)] == ["owner"]
    store.users.remove_role(first)
    assert store.users.role(first) is None
    assert store.users.roles_of_many([first, second]) == {}
    assert store.users.identities_many([]) == {}


# --- instructions --------------------------------------------------------------------------------


def test_instructions_are_listed_by_key(store):
    """74, 142, seeding."""
    for key in ("b", "a"):
        store.instructions.set(key, f"text {key}")
    assert [one["key"] for one in store.instructions.list()] == ["a", "b"]
    assert store.instructions.seed({"a": "other", "c": "new"}) == ["c"]
    assert store.instructions.get("a")["content"] == "text a"
    assert store.instructions.seed({}) == []
    assert store.instructions.delete("a")
    assert store.instructions.get("a") is None


def test_fan_out_reaches_every_registered_agent(agents):
    """143, 144, 145."""
    x, y = agents.new("x"), agents.new("y")
    for one in (x, y):
        one.agents.create("/w")
    key = unique("rules")
    x.instructions.set(key, "first  \n")
    touched = agents.all.instructions.fan_out("append", key, "second")
    assert {x.agent_id, y.agent_id} <= set(touched)
    assert x.instructions.get(key)["content"] == "first\nsecond"
    assert y.instructions.get(key)["content"] == "second"
    agents.all.instructions.fan_out("set", f" {key} ", "third")
    assert x.instructions.get(key)["content"] == y.instructions.get(key)["content"] == "third"
    touched = agents.all.instructions.fan_out("remove", key)
    assert {x.agent_id, y.agent_id} <= set(touched)
    assert x.instructions.get(key) is None
    for mode, name, text in (("append", key, ""), ("shout", key, "x"), ("set", " ", "x")):
        with pytest.raises(BadValue):
            agents.all.instructions.fan_out(mode, name, text)


# --- skills and MCP servers ----------------------------------------------------------------------


@pytest.fixture(params=["skills", "mcp"])
def items(request, agents):
    """The subject of either table, of a store; and an item in it."""
    name, item = request.param, unique("item")
    rest = {"path": "/p"} if name == "skills" else {"url": "https://example.org"}
    getattr(agents.all, name).upsert({"id": item, "name": item, **rest})
    return lambda store: getattr(store, name), item


def effective(subject, item):
    return [one["id"] for one in subject.list_enabled() if one["id"] == item]


def test_own_assignment_beats_that_of_all_agents(agents, items):
    """146 to 150."""
    of, item = items
    every, a, b = of(agents.all), of(agents.new("a")), of(agents.new("b"))
    assert every.enable(item, agent="*") == "*"
    assert effective(of(agents.new("later")), item) == [item]
    a.enable(item)
    assert effective(a, item) == [item]
    a.disable(item)
    assert (effective(a, item), effective(b, item)) == ([], [item])
    a.enable(item)
    every.disable(item, agent="*")
    assert (effective(a, item), effective(b, item)) == ([item], [])
    with pytest.raises(NotFound):
        a.enable(unique("missing"))


def test_assignment_keeps_its_creation_and_goes_with_the_item(agents, items):
    """151, 152."""
    of, item = items
    every, a = of(agents.all), of(agents.new())
    a.enable(item)
    (first,) = every.list_assignments(item)
    a.disable(item)
    a.enable(item)
    assert every.list_assignments(item) == [first]
    assert every.delete(item)
    assert every.list_assignments(item) == []
    assert not every.delete(item)


def test_skill_names_are_unique_in_their_scope(agents):
    slug, owner = unique("slug"), unique("agent")
    skill = {"name": "S", "path": "/p", "slug": slug}
    agents.all.skills.upsert({"id": unique("a"), **skill})
    with pytest.raises(Conflict, match=f"has the name {slug} already"):
        agents.all.skills.upsert({"id": unique("b"), **skill})
    agents.all.skills.upsert(
        {"id": unique("c"), **skill, "source": "user", "owner_agent_id": owner}
    )
    with pytest.raises(BadValue, match="owner_agent_id"):
        agents.all.skills.upsert({"id": unique("d"), **skill, "source": "user"})


def test_headers_are_shown_by_name_only(agents, store):
    item = unique("mcp")
    server = {"id": item, "name": "M", "url": "u", "headers": {"Authorization": "${{TOKEN}}"}}
    agents.all.mcp.upsert(server)
    store.mcp.enable(item)
    (shown,) = store.mcp.list_enabled()
    assert shown["headers"] == ["Authorization"]
    store.secrets.set("TOKEN", "Bearer x")
    assert store.mcp.headers(item) == {"Authorization": "Bearer x"}
