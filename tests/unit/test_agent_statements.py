"""Every statement that has a scope, without it: a control of the isolation of agents.

What A is answered, and what its rows become, is the same whether B is there or not. Each place
where a statement names the scope is broken in turn; the comparison must then fail, or the place
must be listed below with the reason why nothing can show.
"""

import re
import sqlite3

import pytest
from msgspec import to_builtins
from support.agent_isolation import CALLS, SAME, of, questions
from support.agent_stores import KEY, START, conversation, everywhere, parents

from hermes_actor import AgentStore
from hermes_actor.agent_store.ports import Port
from hermes_actor.agents.changes import apply
from hermes_actor.agents.rows import FileRows
from hermes_actor.agents.schema import SQLITE, create_statements
from hermes_actor.agents.tables import TABLES
from hermes_actor.agents.vault import Vault
from hermes_protocol.agents import AgentsDelete

SCOPED = [table.name for table in TABLES.values() if table.scoped]


class Memory(Port):
    """Tables in memory, without a process: what a test does to them is undone."""

    def __init__(self, home):
        self.address, self.home = ":memory:", home
        self.conn = sqlite3.connect(":memory:", isolation_level=None)
        self.conn.execute("PRAGMA foreign_keys = ON")
        for statement in create_statements(SQLITE):
            self.conn.execute(statement)

    def submit(self, operation, timeout):
        return apply(FileRows(self.conn), operation)

    def ask(self, question, timeout):
        return question(FileRows(self.conn))

    def subscribe(self, after, timeout):
        raise NotImplementedError

    def close(self):
        self.conn.close()


def without_b(port, home):
    """The same tables without the rows of B; what belongs to no agent stays."""
    other = Memory(home)
    port.conn.backup(other.conn)
    other.conn.execute("PRAGMA foreign_keys = OFF")
    for name in SCOPED:
        other.conn.execute(f"DELETE FROM {name} WHERE agent_id = 'B'")
    other.conn.execute("PRAGMA foreign_keys = ON")
    return other


def unregistered(store):
    parents(store, "A")
    conversation(store, "A")
    store.submit(AgentsDelete(table="agents", key={}, agent_id="A"))


STATES = {
    "A has nothing": lambda store: None,
    "A has parents": lambda store: parents(store, "A"),
    "A is not registered": unregistered,
    "A has what B has": lambda store: (everywhere(store, "A", 2), conversation(store, "A")),
}


class Pair:
    """Stores with and without the rows of B, and every use of them by A."""

    def __init__(self, home, state):
        self.store = AgentStore.global_(
            home / "agents.db", mode="on demand", vault=Vault(KEY), clock=lambda: START
        )
        self.store.port = self.both = Memory(home)
        # Number 1 is for the rows of B, which A asks for by it.
        numbered = [(table.name, 500) for table in TABLES.values() if table.serial]
        self.both.conn.executemany("INSERT INTO sqlite_sequence VALUES (?, ?)", numbered)
        STATES[state](self.store)
        # Of the host there is one sandbox in the whole store: that A learns of it is the rule.
        self.both.conn.execute("UPDATE sandboxes SET type = 'docker'")
        everywhere(self.store, "B", 1)
        conversation(self.store, "B")
        self.both.conn.execute("UPDATE sandboxes SET type = 'docker'")
        # The numbers that the store gives next are those of both.
        self.both.conn.execute("UPDATE sqlite_sequence SET seq = 1000")
        self.alone = without_b(self.both, home)
        self.before = of(self.store, "B")
        a = self.store.of("A")

        def change(operation):
            return lambda port: port.submit(operation, 0)

        def question(place):
            def ask(port):
                a.port = port
                return list(questions(a))[place][1]()

            return ask

        names = [name for name, _ in questions(a)]
        self.uses = {name: change(operation) for name, operation in [*CALLS, *SAME]}
        self.uses |= {name: question(place) for place, name in enumerate(names)}

    def outcome(self, port, use):
        """Return what A is answered and what it has then; ``None`` for that if B has changed."""
        port.conn.execute("BEGIN")
        try:
            try:
                answer = to_builtins(self.uses[use](port))
            except Exception as error:  # a broken statement may end in any
                answer = type(error), str(error)
            self.store.port = port
            same = port is self.alone or of(self.store, "B") == self.before
            return answer, of(self.store, "A") if same else None
        finally:
            port.conn.execute("ROLLBACK")


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    return [Pair(tmp_path_factory.mktemp("pair"), state) for state in STATES]


@pytest.fixture(scope="module")
def expected(pairs):
    return {(n, use): pair.outcome(pair.alone, use) for n, pair in enumerate(pairs)
            for use in pair.uses}  # fmt: skip


def test_a_cannot_know_whether_b_is_there(pairs, expected):
    for n, pair in enumerate(pairs):
        for use in pair.uses:
            assert pair.outcome(pair.both, use) == expected[n, use], use
    answered = [one for one, _ in expected.values() if not (isinstance(one, tuple) and one)]
    assert len(answered) > len(expected) / 2  # most are no errors


PLACE = re.compile(
    r'(?<!_)(?:\b\w+\.)?"?\bagent_id"? = (:agent_id|p\."agent_id"|wanted\.value)(?!\w)'
)
"""Where a statement names the scope."""


def broken(sql):
    """Give *sql* without its scope, one place after the other."""
    for place in PLACE.finditer(sql):
        always = ":agent_id IS NOT NULL" if place[1] == ":agent_id" else "1 = 1"
        yield sql[: place.start()] + always + sql[place.end() :]
    if sql.startswith("INSERT") and ":agent_id" in sql:
        yield sql.replace(":agent_id", "'B'", 1)


EQUIVALENT = {
    r'^UPDATE @schedule_runs SET .* WHERE "id" = :id AND':
        "the number names one row of the whole store, and was found with the scope just before",
}  # fmt: skip
"""Places that make no difference, with the reason."""


@pytest.fixture(scope="module")
def statements(pairs):
    """Every statement, with the uses that run it."""
    found, plain = {}, FileRows.spelled
    with pytest.MonkeyPatch.context() as patch:
        for n, pair in enumerate(pairs):
            for use in pair.uses:

                def spelled(self, sql, mark=(n, use)):
                    found.setdefault(sql, set()).add(mark)
                    return plain(self, sql)

                patch.setattr(FileRows, "spelled", spelled)
                pair.outcome(pair.both, use)
    return found


def replaced(sql, wrong):
    """Return the spelling of statements with *wrong* in place of *sql*."""
    plain = FileRows.spelled
    return lambda self, text: plain(self, wrong if text == sql else text)


def test_a_statement_without_its_scope_is_noticed(pairs, expected, statements):
    missed, places = [], 0
    for sql, marks in statements.items():
        for wrong in broken(sql):
            places += 1
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(FileRows, "spelled", replaced(sql, wrong))
                outcomes = (pairs[n].outcome(pairs[n].both, use) == expected[n, use]
                            for n, use in marks)  # fmt: skip
                if all(outcomes):
                    missed.append(wrong)
    unknown = [one for one in missed if not any(re.search(known, one) for known in EQUIVALENT)]
    assert not unknown, "\n".join(unknown)
    assert all(any(re.search(known, one) for one in missed) for known in EQUIVALENT)
    assert places > 150
