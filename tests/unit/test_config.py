"""config.yaml of a home: keys, types, variables, and what is said about a broken one."""

import pytest
from support.processes import run_python

from hermes_actor.config import Unset, load
from hermes_actor.errors import BadConfig


@pytest.fixture
def write(tmp_path):
    def write_(text):
        (tmp_path / "config.yaml").write_text(text)
        return load(tmp_path)

    return write_


def test_without_a_file_everything_has_its_default(tmp_path):
    config = load(tmp_path)
    assert config.get("sessiondb.dsn") is None
    assert config.get("sessiondb.dsn", "x") == "x"
    assert config.boolean("actor.rescue", True) is True
    assert config.unset == ()


def test_without_a_file_yaml_is_not_imported(tmp_path):
    loaded = run_python(
        """
        import json, sys
        from pathlib import Path
        from hermes_actor.config import load
        load(Path(sys.argv[1])).number("actor.idle_exit", 1)
        print(json.dumps("yaml" in sys.modules))
        """,
        tmp_path,
    )
    assert loaded is False


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "~\n"])
def test_an_empty_file_is_no_file(write, text):
    assert write(text).get("a.b", 5) == 5


def test_dotted_keys(write):
    config = write("sessiondb:\n  dsn: sqlite\n  pool:\n    size: 3\nflat: 1\nnone:\n")
    assert config.get("sessiondb.dsn") == "sqlite"
    assert config.get("sessiondb.pool.size") == 3
    assert config.get("flat.deeper", "d") == "d"
    assert config.get("none", "d") == "d"
    assert config.get("sessiondb") == {"dsn": "sqlite", "pool": {"size": 3}}


def test_several_variables_in_one_value_and_unset_ones_stay(write, monkeypatch):
    monkeypatch.setenv("DB_USER", "ann")
    monkeypatch.setenv("DB_HOST", "h")
    monkeypatch.delenv("DB_PASSWORD", raising=False)
    config = write(
        "sessiondb:\n  dsn: 'postgresql://${DB_USER}:${DB_PASSWORD}@${DB_HOST}/x'\n"
        "list: ['${DB_HOST}', '$DB_HOST', '${}', '${DB_PASSWORD}']\n"
    )
    assert config.get("sessiondb.dsn") == "postgresql://ann:${DB_PASSWORD}@h/x"
    assert config.get("list") == ["h", "$DB_HOST", "${}", "${DB_PASSWORD}"]
    assert config.unset == (Unset("sessiondb.dsn", "DB_PASSWORD"), Unset("list", "DB_PASSWORD"))


def test_a_value_of_a_variable_is_not_expanded_again(write, monkeypatch):
    monkeypatch.setenv("A", "${B}")
    monkeypatch.setenv("B", "b")
    assert write("x: ${A}\n").get("x") == "${B}"


def test_typed_readers_take_what_people_write(write, monkeypatch):
    monkeypatch.setenv("N", "12")
    config = write("a: {on: yes, word: 'off', n: '${N}', f: 2, mode: Auto, flag: off, t: 1.50}\n")
    assert config.boolean("a.word", True) is False
    assert config.integer("a.n", 0) == 12
    assert config.number("a.f", 0.0) == 2.0
    assert config.choice("a.mode", ("auto", "never"), "never") == "auto"
    assert config.choice("a.flag", ("on", "off"), "on") == "off"
    assert config.text("a.t") == "1.5"
    assert config.text("a.flag") == "false"


@pytest.mark.parametrize(
    ("read", "value", "allowed"),
    [
        (lambda c: c.boolean("a.k", True), "perhaps", "true or false"),
        (lambda c: c.integer("a.k", 1), "1.5", "a whole number"),
        (lambda c: c.integer("a.k", 1), "true", "a whole number"),
        (lambda c: c.integer("a.k", 1, minimum=1), "0", "a whole number, 1 or more"),
        (lambda c: c.number("a.k", 1.0), "soon", "a number"),
        (lambda c: c.number("a.k", 1.0), ".nan", "a number"),
        (lambda c: c.number("a.k", 1.0, minimum=0), "-1", "a number, 0 or more"),
        (lambda c: c.choice("a.k", ("auto", "never"), "auto"), "maybe", "auto or never"),
        (lambda c: c.text("a.k"), "[1]", "a text"),
    ],
)
def test_a_wrong_value_is_named_with_its_key_and_what_is_allowed(
    write, tmp_path, read, value, allowed
):
    config = write(f"a:\n  k: {value}\n")
    with pytest.raises(BadConfig) as caught:
        read(config)
    text = str(caught.value)
    assert text.startswith(f"{tmp_path}/config.yaml: a.k must be {allowed}, not ")
    assert isinstance(caught.value, ValueError)


def test_the_environment_wins_over_the_file_and_a_blank_one_does_not(write, monkeypatch):
    config = write("actor: {idle_exit: 5}\n")
    monkeypatch.setenv("HERMES_ACTOR_IDLE_EXIT", "7")
    assert config.number("actor.idle_exit", 1, env="HERMES_ACTOR_IDLE_EXIT") == 7
    monkeypatch.setenv("HERMES_ACTOR_IDLE_EXIT", " ")
    assert config.number("actor.idle_exit", 1, env="HERMES_ACTOR_IDLE_EXIT") == 5
    monkeypatch.setenv("HERMES_ACTOR_IDLE_EXIT", "x")
    with pytest.raises(BadConfig, match=r"^HERMES_ACTOR_IDLE_EXIT must be a number, not 'x'"):
        config.number("actor.idle_exit", 1, env="HERMES_ACTOR_IDLE_EXIT")


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("a: 1\nb: [1, 2\nc: 3\n", "config.yaml, line 3: "),
        ("a: 1\n\tb: 2\n", "config.yaml, line 2: "),
        ("- 1\n- 2\n", "config.yaml, line 1: expected keys"),
        ("just words\n", "config.yaml, line 1: expected keys"),
        ("d: 2026-02-30\n", "config.yaml: "),
        ("a: &x [*x]\n", "config.yaml"),
        ("a: !!python/object:os.system {}\n", "config.yaml, line 1: "),
        ("a: " + "[" * 5000, "config.yaml"),
    ],
)
def test_a_broken_file_is_one_typed_error_with_its_place(write, text, where):
    with pytest.raises(BadConfig) as caught:
        write(text)
    assert where in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bytes_that_are_no_text(tmp_path):
    (tmp_path / "config.yaml").write_bytes(b"a: \xff\n")
    with pytest.raises(BadConfig, match="cannot be read"):
        load(tmp_path)


def test_aliases_do_not_multiply(write):
    lines = ["a0: &a0 [x, x]"]
    lines += [f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 40)]
    assert write("\n".join(lines)).get("a0") == ["x", "x"]
