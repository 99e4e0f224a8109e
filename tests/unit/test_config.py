"""config.yaml of a home: sections, variables, types, and what is said about a broken one."""

import os
import threading
import time

import pytest
from support.actors import end_actors
from support.processes import run_python

from hermes_actor import config as config_module
from hermes_actor.config import Unset, load
from hermes_actor.errors import BadConfig
from hermes_actor.settings import (
    ACTOR_DRAIN_SECONDS,
    ACTOR_IDLE_EXIT,
    ACTOR_RESCUE,
    ACTOR_UPGRADE,
    ALL,
    BACKUP_KEEP,
    RESUME_EXCHANGES,
    SEARCH_MAX_CONCURRENCY,
    STORE_DSN,
    STORE_SYNCHRONOUS_COMMIT,
    unknown_keys,
)
from hermes_actor.write_rules import NO_RULES, WriteRules
from hermes_actor.write_settings import read_rules, rules_or_default


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch):
    for setting in ALL:
        if setting.env is not None:
            monkeypatch.delenv(setting.env, raising=False)


@pytest.fixture
def write(tmp_path):
    def write_(text, *sections):
        path = tmp_path / "config.yaml"
        path.write_text(text)
        os.utime(path, (1e9, 1e9))  # it was not changed just now
        return load(tmp_path, *sections)

    return write_


def test_without_a_file_everything_has_its_default(tmp_path):
    config = load(tmp_path)
    assert config.raw("sessiondb.dsn") is None
    assert {setting.key: config.read(setting) for setting in ALL} == {
        setting.key: setting.default for setting in ALL
    }
    assert config.unset == ()


@pytest.mark.parametrize("text", [None, "model: x\nlist: [1, 2]\n"])
def test_a_file_without_our_sections_is_not_parsed(tmp_path, text):
    if text is not None:
        (tmp_path / "config.yaml").write_text(text)
    loaded = run_python(
        """
        import json, sys
        from pathlib import Path
        from hermes_actor import SessionDB
        from hermes_actor.config import load
        from hermes_actor.settings import ACTOR_IDLE_EXIT
        load(Path(sys.argv[1]), "actor").read(ACTOR_IDLE_EXIT)
        SessionDB().close()
        print(json.dumps("yaml" in sys.modules))
        """,
        tmp_path,
        HERMES_HOME=str(tmp_path),
    )
    end_actors(tmp_path / "state.db")  # it would stay for ten minutes, the default
    assert loaded is False


def test_a_content_is_parsed_once(write, tmp_path, monkeypatch):
    parsed = []
    real = config_module._parse
    monkeypatch.setattr(
        config_module, "_parse", lambda text, path: parsed.append(text) or real(text, path)
    )
    for _ in range(3):
        assert write("actor: {idle_exit: 5}\n", "actor").read(ACTOR_IDLE_EXIT) == 5
    assert len(parsed) == 1
    assert write("actor: {idle_exit: 6}\n", "actor").read(ACTOR_IDLE_EXIT) == 6
    assert len(parsed) == 2


SLIPS = [
    "model: [1, 2\n",
    "model:\n\tx: y\n",
    "model: 'open\n",
    "when: 2026-02-30\n",
    "model: *unknown\n",
    "a: b: c\n",
    "model: !!python/object:os.system {}\n",
]


@pytest.mark.parametrize("slip", SLIPS)
@pytest.mark.parametrize("before", [True, False])
def test_a_slip_in_another_section_takes_nothing_away(write, slip, before):
    ours = "sessiondb:\n  dsn: sqlite:////x/y.db  # ours\n\n  pool_size: 3\n"
    text = slip + ours if before else ours + slip
    with pytest.raises(BadConfig):
        write(text)
    config = write(text, "sessiondb")
    assert config.read(STORE_DSN) == "sqlite:////x/y.db"
    assert config.raw("sessiondb.pool_size") == 3


@pytest.mark.parametrize(
    "text",
    [
        "model: [1\nsessiondb:\n  dsn: [1\n",  # our own section is broken
        "{sessiondb: {dsn: x}, model: [1}\n",  # it stands where lines do not show it
        "model: [1\n  sessiondb: {dsn: x}\n",
        "model: [1\nsessiondb: *elsewhere\n",
    ],
)
def test_a_slip_that_may_hide_where_the_store_is_stays_an_error(write, text):
    with pytest.raises(BadConfig):
        write(text, "sessiondb")


def test_a_name_in_a_comment_hides_nothing(write):
    assert write("model: [1\n# sessiondb: see the docs\n", "sessiondb").raw("sessiondb") is None


def test_a_file_that_is_being_rewritten_is_read_when_it_has_come_to_rest(tmp_path):
    """An editor truncates first; the home must not seem to have its sessions in a file."""
    path = tmp_path / "config.yaml"
    whole = "model: x\nsessiondb: {dsn: 'postgresql://h/x'}\n"

    def rewrite():
        with open(path, "w") as file:
            for at in range(0, len(whole), 4):
                time.sleep(0.005)
                file.write(whole[at : at + 4])
                file.flush()

    path.write_text("")
    writer = threading.Thread(target=rewrite)
    writer.start()
    try:
        assert load(tmp_path, "sessiondb").read(STORE_DSN) == "postgresql://h/x"
    finally:
        writer.join()


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "~\n"])
def test_an_empty_file_is_no_file(write, text):
    assert write(text).raw("a.b") is None


def test_dotted_keys(write):
    config = write("sessiondb:\n  dsn: sqlite\n  pool:\n    size: 3\nflat: 1\nnone:\n")
    assert config.raw("sessiondb.dsn") == "sqlite"
    assert config.raw("sessiondb.pool.size") == 3
    assert config.raw("flat.deeper") is None
    assert config.raw("none") is None
    assert config.raw("sessiondb") == {"dsn": "sqlite", "pool": {"size": 3}}


def test_several_variables_in_one_value_and_unset_ones_stay(write, monkeypatch):
    monkeypatch.setenv("DB_USER", "ann")
    monkeypatch.setenv("DB_HOST", "h")
    monkeypatch.delenv("DB_PASSWORD", raising=False)
    config = write(
        "sessiondb:\n  dsn: 'postgresql://${DB_USER}:${DB_PASSWORD}@${DB_HOST}/x'\n"
        "list: ['${DB_HOST}', '$DB_HOST', '${}', '${DB_PASSWORD}']\n"
    )
    assert config.raw("sessiondb.dsn") == "postgresql://ann:${DB_PASSWORD}@h/x"
    assert config.raw("list") == ["h", "$DB_HOST", "${}", "${DB_PASSWORD}"]
    assert config.unset == (Unset("sessiondb.dsn", "DB_PASSWORD"), Unset("list", "DB_PASSWORD"))


def test_a_value_of_a_variable_is_not_expanded_again(write, monkeypatch):
    monkeypatch.setenv("A", "${B}")
    monkeypatch.setenv("B", "b")
    assert write("x: ${A}\n").raw("x") == "${B}"


def test_settings_take_what_people_write(write, monkeypatch):
    monkeypatch.setenv("N", "12")
    config = write(
        "actor: {idle_exit: 2, upgrade: Never, rescue: 'off'}\n"
        "updates: {backup_keep: '${N}'}\n"
        "sessiondb: {synchronous_commit: off, dsn: 1.50}\n"
    )
    assert config.read(ACTOR_IDLE_EXIT) == 2.0
    assert config.read(ACTOR_UPGRADE) == "never"
    assert config.read(ACTOR_RESCUE) is False
    assert config.read(BACKUP_KEEP) == 12
    assert config.read(STORE_SYNCHRONOUS_COMMIT) == "off"
    assert config.read(STORE_DSN) == "1.5"


@pytest.mark.parametrize(
    ("setting", "value", "allowed"),
    [
        (ACTOR_RESCUE, "perhaps", "true or false"),
        (SEARCH_MAX_CONCURRENCY, "1.5", "a whole number"),
        (SEARCH_MAX_CONCURRENCY, "true", "a whole number"),
        (RESUME_EXCHANGES, "0", "a whole number, 1 or more"),
        (ACTOR_IDLE_EXIT, "soon", "a number, 0 or more"),
        (ACTOR_IDLE_EXIT, ".nan", "a number, 0 or more"),
        (ACTOR_DRAIN_SECONDS, "-1", "a number, 0 or more"),
        (ACTOR_UPGRADE, "maybe", "auto or ask or never"),
        (STORE_DSN, "[1]", "a text"),
    ],
)
def test_a_wrong_value_is_named_with_its_key_and_what_is_allowed(
    write, tmp_path, setting, value, allowed
):
    *parents, last = setting.key.split(".")
    text = "".join(f"{'  ' * depth}{name}:\n" for depth, name in enumerate(parents))
    config = write(f"{text}{'  ' * len(parents)}{last}: {value}\n")
    with pytest.raises(BadConfig) as caught:
        config.read(setting)
    text = str(caught.value)
    assert text.startswith(f"{tmp_path}/config.yaml: {setting.key} must be {allowed}, not ")
    assert isinstance(caught.value, ValueError)


def test_unknown_keys_of_our_sections_are_found(write):
    config = write(
        "actor: {idle_exit: 1, idle_exitt: 2}\nactr: {}\nmodel: {idle_exitt: 1}\nsessiondb: x\n"
    )
    assert unknown_keys(config.values) == ["actr", "actor.idle_exitt"]


def test_the_environment_wins_over_the_file_and_a_blank_one_does_not(write, monkeypatch):
    config = write("actor: {idle_exit: 5}\n")
    monkeypatch.setenv("HERMES_ACTOR_IDLE_EXIT", "7")
    assert config.read(ACTOR_IDLE_EXIT) == 7
    monkeypatch.setenv("HERMES_ACTOR_IDLE_EXIT", " ")
    assert config.read(ACTOR_IDLE_EXIT) == 5
    monkeypatch.setenv("HERMES_ACTOR_IDLE_EXIT", "x")
    with pytest.raises(
        BadConfig, match=r"^HERMES_ACTOR_IDLE_EXIT must be a number, 0 or more, not"
    ):
        config.read(ACTOR_IDLE_EXIT)


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
    assert write("\n".join(lines)).raw("a0") == ["x", "x"]


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        ("turns: {required: true}\n", WriteRules(frozenset({"*"}))),
        ('"turns" :\n  required: [telegram, discord]\n',
         WriteRules(frozenset({"telegram", "discord"}))),
        ("gateway:\n  merge_doubled_rows: yes\n", WriteRules(merges_doubles=True)),
        ("gateway: {'merge_doubled_rows': off}\nturns: {required: cli}\n",
         WriteRules(frozenset({"cli"}))),
        ("turns:\n", NO_RULES),
    ],
)  # fmt: skip
def test_rules_of_a_writer(tmp_path, text, rules):
    assert read_rules(tmp_path) == NO_RULES
    (tmp_path / "config.yaml").write_text(text)
    assert read_rules(tmp_path) == rules


@pytest.mark.parametrize(
    "text", ["turns: {required: 5}", "turns: {required: [1]}", "turns: [", "turns: {required: {}}"]
)
def test_wrong_rules_of_a_writer_are_logged_and_the_default_holds(tmp_path, caplog, text):
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(BadConfig):
        read_rules(tmp_path)
    assert rules_or_default(tmp_path) == NO_RULES
    assert "the default is used" in caplog.text


def test_rules_cost_no_parse_in_a_home_that_sets_none(tmp_path, monkeypatch):
    (tmp_path / "config.yaml").write_text("agent: {max_turns: 90}\ngateway: {streaming: true}\n")
    monkeypatch.setattr(config_module, "_parse", None)
    assert read_rules(tmp_path) == NO_RULES
