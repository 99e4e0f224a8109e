"""How a provider is chosen, and what all of them have in common."""

import asyncio
import inspect
import json
import logging
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from hermes_actor import AsyncSessionDB, SessionDB
from hermes_actor.agent_store.store import AgentStore
from hermes_actor.api.provider import SessionDBProvider
from hermes_actor.errors import (
    BadConfig,
    CannotOpen,
    Closed,
    MissingDriver,
    OpenError,
    UnknownProvider,
)
from hermes_actor.providers import resolve
from hermes_actor.providers.mysql import MySQLSessionDBProvider
from hermes_actor.providers.postgresql import PostgreSQLSessionDBProvider
from hermes_actor.providers.sqlite import SQLiteSessionDBProvider

PROVIDERS = (SQLiteSessionDBProvider, PostgreSQLSessionDBProvider, MySQLSessionDBProvider)
SECRET = "hunter2"


def public(cls):
    return {
        name: getattr(cls, name)
        for name in dir(cls)
        if not name.startswith("_") and inspect.isroutine(getattr(cls, name))
    }


@pytest.mark.parametrize("provider", PROVIDERS)
def test_methods_and_signatures_are_those_of_the_contract(provider):
    contract = public(SessionDBProvider)
    assert set(contract) <= set(public(provider))
    for name in set(contract) - {"from_url"}:
        wanted = inspect.signature(contract[name])
        assert inspect.signature(getattr(provider, name)) == wanted, name


def test_the_contract_has_every_method_of_a_session_db():
    assert set(public(SessionDB)) == set(public(SessionDBProvider))
    assert SessionDBProvider.__abstractmethods__ == {"from_url", "capabilities", "close"}


@pytest.mark.parametrize("provider", PROVIDERS)
def test_methods_are_written_once(provider):
    """A provider opens, closes and declares; it has no second version of a method."""
    own = set(SessionDBProvider.__abstractmethods__)
    for name, method in public(SessionDBProvider).items():
        assert name in own or getattr(provider, name) is method, name


@pytest.mark.parametrize("provider", PROVIDERS)
def test_every_provider_counts_as_a_session_db(provider):
    assert issubclass(provider, SessionDB)
    assert issubclass(provider, SessionDBProvider)


def test_a_url_of_a_file_opens_that_file(tmp_path):
    with_url = SessionDB(f"sqlite:///{tmp_path / 'a.db'}?mode=embedded")
    with_url.create_session("s", "cli")
    with_url.close()
    assert with_url.provider == "sqlite"
    assert (tmp_path / "a.db").exists()


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///", "sqlite:///x?color=red"])
def test_a_url_of_no_file_is_refused(url):
    with pytest.raises(BadConfig):
        SessionDB(url)


def test_an_unknown_scheme_lists_what_there_is():
    with pytest.raises(UnknownProvider, match="sqlite, postgresql, mysql"):
        SessionDB("oracle://host/db")


def test_a_text_that_is_no_url_is_a_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with SessionDB("demo.db", mode="embedded") as db:
        db.create_session("s", "cli")
        assert db.db_path == Path("demo.db")
    assert (tmp_path / "demo.db").exists()
    with pytest.raises(Closed):
        db.get_session("s")


def open_async(text):
    async def use():
        async with AsyncSessionDB(text):
            pass

    asyncio.run(use())


@pytest.mark.parametrize(
    "open_it",
    [
        SessionDB, open_async, lambda text: SessionDB(f"sqlite:///{text}"),
        lambda text: SessionDB.from_url(f"sqlite:///{text}"),
        lambda text: AgentStore(None, text), lambda text: AgentStore(None, f"sqlite:///{text}"),
    ],
    ids=["text", "async", "url", "from_url", "agents", "agents-url"],
)  # fmt: skip
def test_a_text_in_a_folder_that_is_missing_names_the_folder_and_makes_nothing(tmp_path, open_it):
    with pytest.raises(CannotOpen, match=f"there is no folder {tmp_path}/typo for x.db") as caught:
        open_it(f"{tmp_path}/typo/x.db")
    assert caught.value.sqlite_message == "unable to open database file"
    assert list(tmp_path.iterdir()) == []


def test_folders_of_a_path_are_created_as_hermes_state_does(tmp_path):
    SessionDB(tmp_path / "a/b/state.db", mode="embedded").close()
    AgentStore(None, tmp_path / "c/d/agents.db", mode="embedded").close()
    assert (tmp_path / "a/b/state.db").exists()
    assert (tmp_path / "c/d/agents.db").exists()


def test_an_agent_store_takes_a_text_as_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    AgentStore(None, "agents.db", mode="embedded").close()
    assert (tmp_path / "agents.db").exists()
    with pytest.raises(ValueError, match="names no store"):
        AgentStore(None, "")
    (tmp_path / "config.yaml").write_text("agents:\n  dsn: agents.db\n")
    monkeypatch.setenv("HERMES_HOME", str(tmp_path))
    with pytest.raises(BadConfig, match=r"agents.dsn is not the URL of a store: 'agents.db'"):
        AgentStore(None)


# --- by the settings of the home -------------------------------------------------------------


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setattr("hermes_actor.session_db.DEFAULT_DB_PATH", tmp_path / "state.db")
    monkeypatch.setattr("hermes_actor.hermes_state.DEFAULT_DB_PATH", tmp_path / "state.db")

    def settings(text):
        (tmp_path / "config.yaml").write_text(textwrap.dedent(text))
        return tmp_path

    return settings


def test_settings_name_the_store(home, tmp_path):
    home(f"sessiondb:\n  provider: sqlite\n  dsn: sqlite:///{tmp_path / 'b.db'}?mode=embedded\n")
    db = SessionDB()
    assert db.db_path == tmp_path / "b.db"
    db.close()


def test_variables_are_expanded(home, monkeypatch):
    monkeypatch.setenv("SESSIONS_PASSWORD", SECRET)
    where = home("sessiondb:\n  dsn: postgresql://me:${SESSIONS_PASSWORD}@host/db\n")
    chosen = resolve.choose_by_settings(where)
    assert chosen.name == "postgresql"
    assert SECRET in chosen.url
    assert SECRET not in repr(chosen)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sessiondb:\n  provider: postgresql\n", "sessiondb.dsn is missing"),
        ("sessiondb:\n  provider: mysql\n  dsn: postgresql://h/d\n", "sessiondb.provider is mysql"),
        ("sessiondb:\n  dsn: postgresql://${NOT_SET_ANYWHERE}@h/d\n", "NOT_SET_ANYWHERE"),
        ("sessiondb: yes\n", "must hold keys"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(home, text, words):
    home(text)
    with pytest.raises(BadConfig, match=words):
        SessionDB()


def test_there_is_no_way_back_to_the_file(home, tmp_path):
    home(f"sessiondb:\n  dsn: postgresql://me:{SECRET}@/db?host={tmp_path}\n")
    with pytest.raises(OpenError):
        SessionDB(timeout=0.1)
    assert not (tmp_path / "state.db").exists()


def test_a_subclass_for_files_does_not_ignore_the_settings(home):
    class Mine(SessionDB):
        pass

    home("sessiondb:\n  dsn: postgresql://host/db\n")
    with pytest.raises(BadConfig, match="Mine"):
        Mine()


def test_a_path_is_a_file_whatever_the_settings_say(home, tmp_path):
    home("sessiondb:\n  dsn: postgresql://host/db\n")
    db = SessionDB(tmp_path / "c.db", mode="embedded")
    assert db.provider == "sqlite"
    db.close()


# --- secrets ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        f"postgresql://me:{SECRET}@host/db",
        f"postgresql://me:{SECRET}@h1:1,h2:2/db?sslmode=require",
        f"postgresql://host/db?user=me&password={SECRET}",
        f"host=h password={SECRET} user=me",
        f"host=h password='{SECRET} more' user=me",
        f"mysql+pymysql://me:p/{SECRET}@host/db",
    ],
)
def test_passwords_are_masked(text):
    assert SECRET not in resolve.masked(text)


@pytest.mark.parametrize("scheme", ["postgresql", "mysql"])
def test_no_error_and_no_log_repeats_a_password(scheme, caplog):
    caplog.set_level(logging.DEBUG)
    url = f"{scheme}://me:{SECRET}@127.0.0.1:1/db"
    with pytest.raises(OpenError) as caught:
        SessionDB(url, timeout=0.1)
    error = caught.value
    while error is not None:
        assert SECRET not in str(error)
        error = error.__cause__ or error.__context__
    assert SECRET not in caplog.text


def test_an_address_that_cannot_be_understood_is_not_repeated():
    with pytest.raises(BadConfig) as caught:
        SessionDB(f"postgresql://me:{SECRET}@host:notaport/db?nothing={SECRET}")
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("hosts", ["h1,h2", "h1:3306,h2:3307", "h1,h2:1"])
def test_several_servers_of_mysql_are_refused_in_words(hosts):
    """PyMySQL knows one: to take the first would be a fail-over that never comes."""
    with pytest.raises(BadConfig, match="one host") as caught:
        SessionDB(f"mysql://me:{SECRET},x@{hosts}/db")
    assert SECRET not in str(caught.value)
    # A comma elsewhere is none between hosts.
    with pytest.raises(OpenError, match="does not answer"):
        SessionDB(f"mysql://me:{SECRET},x@127.0.0.1:1/db?program_name=a,b", timeout=0.1)


@pytest.mark.parametrize("scheme", ["postgresql", "mysql"])
def test_an_unknown_parameter_is_refused_in_words(scheme):
    with pytest.raises(BadConfig):
        SessionDB(f"{scheme}://me:{SECRET}@127.0.0.1:1/db?colour=red", timeout=0.1)


# --- drivers and third parties ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("scheme", "module"), [("postgresql", "psycopg"), ("mysql", "pymysql"), ("mysql", "sqlalchemy")]
)
def test_a_missing_driver_names_the_extra(scheme, module):
    program = f"""
import sys
sys.modules[{module!r}] = None
from hermes_actor import SessionDB
from hermes_actor.errors import MissingDriver
try:
    SessionDB("{scheme}://host/db")
except MissingDriver as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert f"pip install 'hermes-actor[{scheme}]'" in done.stdout, done.stderr
    assert issubclass(MissingDriver, ImportError)


def test_a_store_in_a_file_imports_no_driver(tmp_path):
    program = f"""
import sys, json, pathlib
from hermes_actor import SessionDB
SessionDB(pathlib.Path({str(tmp_path / "d.db")!r}), mode="embedded").close()
print(json.dumps(sorted(m for m in sys.modules if m in ("sqlalchemy", "psycopg", "pymysql"))))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert json.loads(done.stdout) == []


def test_a_third_party_is_found_by_its_entry_point(tmp_path, monkeypatch):
    package = tmp_path / "elsewhere.py"
    package.write_text(
        "from hermes_actor.providers.sqlite import SQLiteSessionDBProvider\n"
        "class Elsewhere(SQLiteSessionDBProvider):\n"
        "    provider = 'elsewhere'\n"
        "    @classmethod\n"
        "    def from_url(cls, url, *, settings=None, timeout=30.0):\n"
        "        from pathlib import Path\n"
        "        return cls(Path(url.removeprefix('elsewhere://')), mode='embedded')\n"
    )
    info = tmp_path / "elsewhere-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: elsewhere\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        f"[{resolve.ENTRY_POINT_GROUP}]\nelsewhere = elsewhere:Elsewhere\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    db = SessionDB(f"elsewhere://{tmp_path / 'e.db'}")
    assert db.provider == "elsewhere"
    db.create_session("s", "cli")
    db.close()


async def _count(db):
    async with AsyncSessionDB(db) as twin:
        await twin.create_session("s", "cli")
        async with twin.pipeline() as p:
            for number in range(3):
                p.append_message("s", "user", f"message {number}")
        return await twin.message_count("s")


def test_the_asynchronous_twin_works_on_every_provider(stores, tmp_path):
    import anyio

    assert anyio.run(_count, stores.url(tmp_path / "state.db")) == 3
