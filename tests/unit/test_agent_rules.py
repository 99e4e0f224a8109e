"""Pure rules of the agent store: words, ranks, cron, times, documents, the vault, the registry."""

import stat

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.agent_stores import KEY, OTHER_KEY, open_agents
from support.files import query

from hermes_actor.agents import cron, documents, times, vault, words
from hermes_actor.agents.schema import SQLITE, create_statements, mysql, postgresql
from hermes_actor.agents.tables import TABLES, Form
from hermes_actor.errors import BadValue, NotConfigured

# --- words ---------------------------------------------------------------------------------------

STEMS = {
    "running": "run", "deleted": "delet", "databases": "databas", "deployment": "deploy",
    "pipeline": "pipelin", "smoothly": "smooth", "anthropic": "anthrop",
    "generously": "generous", "skies": "sky", "dying": "die", "news": "news",
    "camelCase": "camelcas",
}  # fmt: skip

RANKS = [
    ("deployment", "deployment", 0.06079271),
    ("deployment and another deployment", "deployment", 0.075990885),
    ("filler " * 500 + "deployment", "deployment", 0.06079271),
    ("alpha alpha alpha", "alpha", 0.082745634),
    ("vim keybindings", "vim keybindings", 0.09910322),
    ("vim x x x x x keybindings", "vim keybindings", 0.085297264),
    ("alpha beta alpha", "alpha beta", 0.188385),
    ("alpha beta gamma", "alpha beta gamma", 0.26832977),
    ("Deploy the deployment twice: deployment notes", "deployment notes", 0.26121163),
]


def test_reference_stems():
    assert {word: list(words.positions(word)) for word in STEMS} == {
        word: [stem] for word, stem in STEMS.items()
    }


@pytest.mark.parametrize(("content", "query_", "expected"), RANKS, ids=[one[1] for one in RANKS])
def test_reference_ranks(content, query_, expected):
    lexemes = list(words.positions(query_))
    found = words.rank(words.unpacked(words.packed(content), lexemes))
    assert found == pytest.approx(expected, rel=2e-7)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("user/usr-abc/preferences", ["user/usr-abc/preferences"]),
        ("a.b.c foo@bar.com", ["a.b.c", "foo@bar.com"]),
        ("3.14 -5 v2", ["3.14", "-5", "v2"]),
        ("2026-03-01", ["2026", "-03", "-01"]),
        ("deploy.sh", ["deploy.sh"]),
        ("https://example.org/x/y", ["example.org/x/y", "example.org", "/x/y"]),
        ("well-known", ["well-known", "well", "known"]),
        ("snake_case don't", ["snake", "case"]),
        ("部署流程", ["部署流程"]),
        ("the of", []),
    ],
)
def test_tokens(text, tokens):
    assert list(words.positions(text)) == tokens


def test_there_are_as_many_stop_words_as_the_server_has():
    assert len(words.STOP_WORDS) == 127


@given(st.text())
def test_folding_keeps_the_length(text):
    assert len(words.folded(text)) == len(text)


def test_folding_is_by_character():
    assert words.folded("ÉCOLE") == words.folded("école")
    assert words.folded("STRASSE") != words.folded("straße")


@given(st.text(max_size=60))
@settings(deadline=None)
def test_packed_words_come_back(text):
    found = words.positions(text)
    assert words.unpacked(words.packed(text), list(found)) == found


# --- cron and times ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "after", "following"),
    [
        ("0 9 * * *", "2026-01-01T08:59:59.999Z", "2026-01-01T09:00:00.000Z"),
        ("0 9 * * *", "2026-01-01T09:00:00.000Z", "2026-01-02T09:00:00.000Z"),
        ("*/15 * * * *", "2026-01-01T10:07:30.000Z", "2026-01-01T10:15:00.000Z"),
        ("30 0 9 * * *", "2026-01-01T00:00:00.000Z", "2026-01-01T09:00:30.000Z"),
        ("0 0 29 2 *", "2026-03-01T00:00:00.000Z", "2028-02-29T00:00:00.000Z"),
        ("0 0 L * *", "2026-02-10T00:00:00.000Z", "2026-02-28T00:00:00.000Z"),
        ("0 12 1 * MON", "2026-06-01T12:00:00.000Z", "2026-06-08T12:00:00.000Z"),
        ("0 12 * * 7", "2026-01-01T00:00:00.000Z", "2026-01-04T12:00:00.000Z"),
        ("0 0 * * 5#L", "2026-01-01T00:00:00.000Z", "2026-01-30T00:00:00.000Z"),
        ("0 0 * * 5#2", "2026-01-01T00:00:00.000Z", "2026-01-09T00:00:00.000Z"),
        ("@Daily", "2026-01-31T12:00:00.000Z", "2026-02-01T00:00:00.000Z"),
        ("0 0 0 1 1 * 2030", "2026-01-01T00:00:00.000Z", "2030-01-01T00:00:00.000Z"),
        ("0 0 0 1 1 * 2020", "2026-01-01T00:00:00.000Z", None),
        ("0 0 30 2 *", "2026-01-01T00:00:00.000Z", None),
    ],
)
def test_next_time_of_an_expression(expression, after, following):
    cron.check(expression)
    assert cron.following(expression, after) == following


@pytest.mark.parametrize(
    "text", ["", "nonsense", "* * * *", "61 * * * *", "* * * * +MON", "@never"]
)
def test_expressions_that_are_not_understood(text):
    """182."""
    with pytest.raises(BadValue, match="invalid cron expression"):
        cron.check(text)


def test_times_are_canonical():
    assert times.canonical("2026-01-31T10:00:00+02:00") == "2026-01-31T08:00:00.000Z"
    assert times.canonical("2026-01-31") == "2026-01-31T00:00:00.000Z"
    assert times.is_canonical(times.now())
    for text in ("2026-01-31T10:00:00Z", "2026-02-31T10:00:00.000Z", "", "2026"):
        assert not times.is_canonical(text)
    for value in ("tomorrow", "", 7, None):
        with pytest.raises(BadValue, match="not a time"):
            times.canonical(value)


def test_paths_of_documents():
    assert documents.get_path({"a": [{"b": 1}]}, "a.0.b") == (True, 1)
    assert documents.get_path({"a": 1}, "a.b") == (False, None)
    assert documents.set_path({"a": 1}, "a.b", 2) == {"a": {"b": 2}}
    with pytest.raises(BadValue):
        documents.set_path({"a": []}, "a.0", 1)


# --- the vault -----------------------------------------------------------------------------------

NONCE = bytes(range(12))
VECTORS = {
    "hunter2": "AAECAwQFBgcICQoL:2Q0dD8GxyvYmr28rkQ6BmQ==:L3e4b6CX8A==",
    "": "AAECAwQFBgcICQoL:9MLbHcOIBaN7khccXQqBzA==:",
    "用户 secret ✓": "AAECAwQFBgcICQoL:6mLskC32eSgnQK+rXGNRxA==:oJZ+/U1S4mjoIuXuxcma8RA=",
}


@pytest.mark.parametrize(("text", "stored"), VECTORS.items())
def test_reference_ciphertexts(text, stored):
    """155."""
    box = vault.Vault(KEY)
    assert box.encrypt(text, NONCE) == stored
    assert box.decrypt(stored) == text
    assert box.encrypt(text) != box.encrypt(text)
    assert vault.Vault(OTHER_KEY).try_decrypt(stored) is None


@pytest.mark.parametrize(
    "stored",
    ["", "a:b", "a:b:c:d", "AAEC:2Q0dD8GxyvYmr28rkQ6BmQ==:L3e4b6CX8A==",
     "AAECAwQFBgcICQoL:2Q0dD8GxyvYmr28rkQ6BmA==:L3e4b6CX8A==",
     "AAECAwQFBgcICQoL:2Q0dD8GxyvYmr28rkQ6BmQ==:M3e4b6CX8A==", "ä:ö:ü"],
)  # fmt: skip
def test_changed_ciphertext_is_refused(stored):
    """157."""
    box = vault.Vault(KEY)
    assert box.try_decrypt(stored) is None
    with pytest.raises(BadValue):
        box.decrypt(stored)


def test_forms_of_a_key():
    """158."""
    plain = vault.parse_key(KEY)
    spaced = f" {KEY[:10]}\n{KEY[10:]} "
    url_safe = OTHER_KEY.replace("+", "-").replace("/", "_").rstrip("=")
    assert vault.parse_key(spaced) == plain
    assert vault.parse_key(url_safe) == vault.parse_key(OTHER_KEY)
    assert len(vault.parse_key(vault.new_key())) == 32
    with pytest.raises(NotConfigured, match="has 31 bytes; it must have 32"):
        vault.parse_key("A" * 42)
    for text in ("", "   ", "not base64!"):
        with pytest.raises(NotConfigured):
            vault.parse_key(text)


def test_key_comes_from_the_environment_or_a_private_file(tmp_path, monkeypatch):
    for name in vault.KEY_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    file = tmp_path / "agents.key"
    assert vault.load_vault(file) is None
    file.write_text(f"{OTHER_KEY}\n")
    file.chmod(0o640)
    with pytest.raises(NotConfigured, match="others can read"):
        vault.load_vault(file)
    file.chmod(stat.S_IRUSR | stat.S_IWUSR)
    assert vault.load_vault(file).try_decrypt(VECTORS["hunter2"]) is None
    monkeypatch.setenv("OPENHERMIT_SECRETS_KEY", KEY)
    assert vault.load_vault(file).decrypt(VECTORS["hunter2"]) == "hunter2"


def test_no_representation_shows_a_secret():
    secret = vault.Secret("hunter2")
    assert "hunter2" not in f"{secret!r} {secret} {[secret]}"
    assert KEY not in repr(vault.Vault(KEY))


# --- the registry --------------------------------------------------------------------------------


def test_registry_is_the_schema_of_a_file(tmp_path):
    """Tables, columns, nulls and keys, as SQLite reports them."""
    path = tmp_path / "agents.db"
    open_agents("embedded", path).close()
    for name, table in TABLES.items():
        columns = query(path, f"PRAGMA table_info({name})")
        assert [column[1] for column in columns] == list(table.names)
        for (_, own, _, not_null, _, _), column in zip(columns, table.columns, strict=True):
            assert not_null == (not column.null and column.form is not Form.SERIAL), (name, own)
        assert table.scoped == ("agent_id" in table.names)
    there = {name for (name,) in query(path, "SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert {name for name in there if not name.startswith(("sqlite_", "hermes_actor_"))} == set(
        TABLES
    )


def test_every_table_is_in_order_and_whole():
    seen = set()
    for table in TABLES.values():
        assert {link.table for link in table.foreign} <= seen
        seen.add(table.name)
        named = {*table.key, *(one.lstrip("-") for one in table.order)}
        named |= {name for index in table.indexes for name in index.columns}
        named |= {name for rule in table.uniques for name in rule.columns}
        assert named <= set(table.names), table.name
        assert table.about.endswith(".")
        for name in table.whole_key:
            column = table.column(name)
            assert column.length or column.form is Form.SERIAL, (table.name, name)


def test_keys_fit_into_an_index_of_every_server():
    """3,072 bytes, four for each character."""
    for table in TABLES.values():
        groups = [table.whole_key, *(index.columns for index in table.indexes)]
        groups += [rule.columns for rule in table.uniques]
        for names in groups:
            lengths = [table.column(name).length or 32 for name in names]
            assert 4 * sum(lengths) <= 3072, (table.name, names)


def test_schema_has_every_table_in_three_dialects():
    for dialect in (SQLITE, postgresql(), mysql("utf8mb4_bin")):
        text = "\n".join(create_statements(dialect))
        for name in TABLES:
            assert f"CREATE TABLE IF NOT EXISTS {dialect.prefix}{name} (" in text
