"""The schema of an agent store in three dialects, made from the registry."""

from __future__ import annotations

from typing import NamedTuple

from hermes_actor.agents.tables import TABLES, Column, Form, Table, Unique

__all__ = [
    "SERVER_PREFIX",
    "SQLITE",
    "Dialect",
    "create_statements",
    "mysql",
    "postgresql",
    "quoted",
]

SERVER_PREFIX = "hermes_agents_"
"""Prefix of the tables on servers, where the tables of a session store may be beside them."""


class Dialect(NamedTuple):
    """The words of a provider that differ."""

    name: str
    types: dict[Form, str]
    prefix: str = ""
    key: str = "TEXT"
    """Type of a text that is part of keys; ``{0}`` is its length."""
    partial: bool = True


SQLITE = Dialect(
    "sqlite",
    {
        Form.TEXT: "TEXT",
        Form.JSON: "TEXT",
        Form.FLAG: "INTEGER",
        Form.NUMBER: "INTEGER",
        Form.SERIAL: "INTEGER PRIMARY KEY AUTOINCREMENT",
        Form.TIME: "TEXT",
    },
)


def postgresql() -> Dialect:
    """Return the dialect of PostgreSQL."""
    text = 'text COLLATE "C"'
    forms = {Form.TEXT: text, Form.JSON: "jsonb", Form.FLAG: "boolean", Form.NUMBER: "bigint"}
    serial = {Form.SERIAL: "bigserial PRIMARY KEY", Form.TIME: text}
    return Dialect("postgresql", {**forms, **serial}, SERVER_PREFIX, text)


def mysql(collation: str) -> Dialect:
    """Return the dialect of MySQL and MariaDB; *collation* compares code points."""
    words = f"CHARACTER SET utf8mb4 COLLATE {collation}"
    forms = {Form.TEXT: f"LONGTEXT {words}", Form.JSON: "JSON", Form.FLAG: "TINYINT(1)"}
    serial = {Form.SERIAL: "BIGINT AUTO_INCREMENT PRIMARY KEY", Form.NUMBER: "BIGINT"}
    time = {Form.TIME: f"VARCHAR(32) {words}"}
    key = f"VARCHAR({{0}}) {words}"
    return Dialect("mysql", {**forms, **serial, **time}, SERVER_PREFIX, key, partial=False)


def quoted(name: str) -> str:
    """Return *name* in quotation marks, which a connection of MySQL replaces by its own."""
    return f'"{name}"'


def create_statements(dialect: Dialect) -> list[str]:
    """Return the statements that create every table and index that is missing."""
    return [line for table in TABLES.values() for line in _statements(table, dialect)]


def _statements(table: Table, dialect: Dialect) -> list[str]:
    name = dialect.prefix + table.name
    lines = [_column(column, dialect) for column in table.columns]
    partial = [rule for rule in table.uniques if rule.where]
    if not dialect.partial:
        lines += [_generated(table, rule) for rule in partial]
        lines += [f"UNIQUE KEY {rule.name} ({_guard(rule)})" for rule in partial]
    key = _names(table.whole_key)
    lines += [f"PRIMARY KEY ({key})" if table.serial is None else f"UNIQUE ({key})"]
    lines += [f"UNIQUE ({_names(rule.columns)})" for rule in table.uniques if not rule.where]
    lines += [
        f"FOREIGN KEY ({_names(one.columns)}) REFERENCES {dialect.prefix}{one.table}"
        f" ({_names(one.names)}) ON DELETE CASCADE ON UPDATE CASCADE"
        for one in table.foreign
    ]
    made = [f"CREATE TABLE IF NOT EXISTS {name} (\n  " + ",\n  ".join(lines) + "\n)"]
    if dialect.partial:
        made += [
            f"CREATE UNIQUE INDEX IF NOT EXISTS {_index(rule.name, dialect)} ON {name}"
            f" ({_names(rule.columns)}) WHERE {' AND '.join(one.sql for one in rule.where)}"
            for rule in partial
        ]
    for index in table.indexes:
        where = f" WHERE {index.where}" if index.where and dialect.partial else ""
        made.append(
            f"CREATE INDEX IF NOT EXISTS {_index(index.name, dialect)} ON {name}"
            f" ({_names(index.columns)}){where}"
        )
    return made


def _index(name: str, dialect: Dialect) -> str:
    """Return the name of an index; on PostgreSQL it shares a name space with all tables."""
    return dialect.prefix + name


def _names(columns: tuple[str, ...]) -> str:
    return ", ".join(map(quoted, columns))


def _column(column: Column, dialect: Dialect) -> str:
    kind = dialect.key.format(column.length) if column.length else dialect.types[column.form]
    words = [quoted(column.name), kind]
    if column.form is not Form.SERIAL and not column.null:
        words.append("NOT NULL")
    if dialect.name == "sqlite" and column.form is Form.JSON:
        words.append(f"CHECK ({column.name} IS NULL OR json_valid({column.name}))")
    if dialect.name == "sqlite" and column.form is Form.FLAG:
        words.append(f"CHECK ({column.name} IN (0, 1))")
    return " ".join(words)


def _guard(rule: Unique) -> str:
    return f"{rule.name}_guard"


def _generated(table: Table, rule: Unique) -> str:
    """Return a column that is null where the rule does not apply: MySQL has no partial indexes."""
    length = sum(column.length for column in table.columns if column.name in rule.columns)
    value = f"CONCAT_WS(CHAR(31), {_names(rule.columns)})"
    where = " AND ".join(one.sql for one in rule.where)
    return (
        f"{_guard(rule)} VARCHAR({length + 8}) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
        f" GENERATED ALWAYS AS (CASE WHEN {where} THEN {value} END) STORED"
    )
