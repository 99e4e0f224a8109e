"""Memories and their search, on every provider. Numbers are rows of the matrix of behaviour."""

import json

import pytest

from hermes_actor.errors import BadValue, NotFound

CORPUS = {
    "note-a": "Deploy the deployment twice: deployment notes",
    "note-b": "A deployment happened",
    "note-c": "Nothing here but deploy.sh script",
    "note-d": "redeployment plan",
    "deployment/key": "only the key matches",
    "cjk": "部署 deployment流程 用户偏好",
}
"""The reference corpus, the oldest first."""

REFERENCE = [
    ("deployment", 10, "note-a note-b cjk deployment/key note-d"),
    ("deployment", 3, "note-a note-b cjk"),
    ("deployment notes", 10, "note-a cjk deployment/key note-d note-b"),
    ("deploys", 10, "note-a note-b"),
    ("用户", 10, "cjk"),
    ("DEPLOYMENT/KEY", 10, "deployment/key cjk note-d note-b note-a"),
    ("the of", 10, "deployment/key note-a"),
    ("   ", 10, ""),
]


DEEP = json.loads("[" * 33 + "]" * 33)


def put(store, texts):
    for key, content in texts.items():
        store.memories.put(content, key=key)


def found(store, query, **options):
    return [one["id"] for one in store.memories.search(query, **options)]


def test_memory_is_stored_and_comes_back(store):
    """4, 132, D18."""
    made = store.memories.put("text", key="test-key")
    assert made == store.memories.get("test-key")
    assert set(made) == {"id", "content", "metadata", "grants", "created_at", "updated_at"}
    again = store.memories.put("other", key="test-key")
    assert (again["created_at"], again["content"]) == (made["created_at"], "other")
    unnamed = store.memories.put("text", key="  ")["id"]
    assert len(unnamed) == 12
    assert unnamed.startswith("mem-")
    assert store.memories.get("missing") is None


def test_recalled_memories_are_whole(store):
    """71, 72."""
    store.memories.put("The scheduler drops late jobs.", key="ops/jobs", metadata={"from": "log"})
    store.memories.put("Deploys happen on Tuesdays.", key="ops/deploys")
    (one,) = store.memories.search("scheduler")
    assert one == store.memories.get("ops/jobs")
    assert (one["content"], one["metadata"]) == ("The scheduler drops late jobs.", {"from": "log"})


@pytest.mark.parametrize(("query", "limit", "keys"), REFERENCE, ids=[one[0] for one in REFERENCE])
def test_reference_corpus(store, query, limit, keys):
    """141."""
    put(store, CORPUS)
    assert found(store, query, limit=limit) == keys.split()


@pytest.mark.parametrize(
    ("content", "queries"),
    [
        ("the API quota incident of last week", ["quota incident"]),  # 5
        ("The backend API needs a complete redesign for v2 soon", ["api redesign", "backend v2"]),
        ("we were running in circles", ["runs"]),  # 8
        ("prefers vim keybindings in all editor settings", ["vim keybindings", "editor settings"]),
    ],
)
def test_words_are_found_apart_and_in_other_forms(store, content, queries):
    """5 to 8, 14."""
    put(store, {"project/several words": content, "other": "nothing of this"})
    for query in queries:
        assert found(store, query) == ["project/several words"]


def test_search_sees_every_change_at_once(store, agents):
    """9 to 13, 15, 16."""
    other = agents.new()
    put(store, {"k": "about databases"})
    put(other, {"k": "databases elsewhere"})
    assert [one["content"] for one in store.memories.search("databases")] == ["about databases"]
    store.memories.update("k", content="about kubernetes")
    assert (found(store, "databases"), found(store, "kubernetes")) == ([], ["k"])
    put(store, {"k": "about postgres"})
    assert (found(store, "kubernetes"), found(store, "postgres")) == ([], ["k"])
    assert store.memories.delete("k")
    assert not store.memories.delete("k")
    assert found(store, "postgres") == []
    put(store, {f"m{n}": "same words" for n in range(5)})
    assert len(found(store, "same words", limit=2)) == 2


def test_update_merges_and_put_replaces_metadata(store):
    """133, 134, 135."""
    store.memories.put("x", key="k", metadata={"a": 1, "b": 1}, grants=[{"type": "any"}])
    merged = store.memories.update("k", metadata={"b": 2, "c": 3})
    assert merged["metadata"] == {"a": 1, "b": 2, "c": 3}
    assert (merged["content"], merged["grants"]) == ("x", [{"type": "any"}])
    assert store.memories.update("k")["updated_at"] > merged["updated_at"]
    replaced = store.memories.put("x", key="k")
    assert (replaced["metadata"], replaced["grants"]) == ({}, [])
    with pytest.raises(NotFound, match="Memory entry not found: nope"):
        store.memories.update("nope", content="x")


def test_lists_take_a_prefix_literally(store):
    """136, 137."""
    put(store, {"project/a": "1", "project/b": "2", "user/x": "3", "a_b": "4", "axb": "5"})
    assert [one["id"] for one in store.memories.list("project/")] == ["project/b", "project/a"]
    assert [one["id"] for one in store.memories.list("a_")] == ["a_b"]
    assert store.memories.list("Project/") == []


@pytest.mark.parametrize("sign", ["%", "_", "\\"])
def test_signs_of_patterns_are_text(store, sign):
    """138."""
    put(store, {"with": f"100{sign} sure", "without": "sure"})
    assert found(store, sign) == ["with"]


def test_limits_are_between_one_and_fifty(store):
    """139."""
    put(store, {f"m{n:02}": "same words" for n in range(55)})
    for limit, count in ((0, 1), (-3, 1), (500, 50), (2.9, 2)):
        assert len(found(store, "same", limit=limit)) == count
        assert len(store.memories.list(limit=limit)) == count


def test_context_block_holds_the_newest(store):
    """140."""
    assert store.memories.context_block() is None
    put(store, {f"m{n}": f"text {n}" for n in range(12)})
    block = store.memories.context_block()
    assert block.startswith("## m11\ntext 11\n\n## m10\ntext 10")
    assert block.count("## ") == 10


def test_grants_are_looked_at_before_the_cut(store):
    hidden = [{"type": "user", "value": "u2"}]
    for n in range(5):
        store.memories.put("same words", key=f"hidden{n}", grants=hidden)
    store.memories.put("same words", key="role", grants=[{"type": "role", "value": "user"}])
    store.memories.put("same words", key="open")
    for _ in range(5):
        store.memories.put("same words", key="hidden0", grants=hidden)
    for principal, keys in (
        (("u1", "user"), {"open", "role"}),
        (("u1", "guest"), {"open"}),
        ((None, None), {"open"}),
    ):
        assert set(found(store, "words", limit=2, principal=principal)) == keys
        assert {one["id"] for one in store.memories.list(limit=2, principal=principal)} == keys
    assert len(found(store, "words", limit=50, principal=("u9", "owner"))) == 7
    assert len(found(store, "words", limit=50, principal=("u2", "guest"))) == 6


def test_index_is_rebuilt_with_the_same_answers(store):
    put(store, CORPUS)
    before = {query: found(store, query) for query, _, _ in REFERENCE}
    assert store.memories.reindex() >= len(CORPUS)
    assert {query: found(store, query) for query, _, _ in REFERENCE} == before


@pytest.mark.parametrize(
    "values",
    [
        {"content": "nul \0"},
        {"content": 7},
        {"content": "x", "key": "k" * 513},
        {"content": "x", "metadata": ["no object"]},
        {"content": "x", "metadata": {"deep": DEEP}},
        {"content": "x", "metadata": {"n": object()}},
        {"content": "half \udfff"},
    ],
    ids=lambda values: "-".join(values),
)  # fmt: skip
def test_bad_memories_are_refused(store, values):
    with pytest.raises(BadValue):
        store.memories.put(**values)
    assert store.memories.list() == []
