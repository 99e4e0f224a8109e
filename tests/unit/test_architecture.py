"""What may import what, and what every operation and every error must have."""

import ast
import re
import sys
import typing
from collections import Counter
from functools import cache
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
from support.processes import run_python

import hermes_actor
import hermes_protocol
from hermes_actor import cli, errors
from hermes_actor.agents import changes as agent_changes
from hermes_actor.agents.changes import registry as agent_registry
from hermes_actor.cli.gateway import gateway
from hermes_actor.cli.sessions import sessions
from hermes_actor.store import dispatch
from hermes_actor.store.registry import APPLY
from hermes_protocol import agents as agent_ops
from hermes_protocol import operations as ops
from hermes_protocol.values import Blob

PACKAGES = {
    package.__name__: Path(package.__file__).parent for package in (hermes_actor, hermes_protocol)
}

# Layers, and what each one may import at run time (itself always, the standard library always).
BASE = {
    "_version",
    "build",
    "config",
    "errors",
    "exit_codes",
    "failpoints",
    "ids",
    "journal_mode",
    "limits",
    "paths",
    "settings",
    "sqlite",
    "system",
    "write_rules",
    "write_settings",
}
ALLOWED = {
    "protocol": {"msgspec"},
    "base": set(),
    "store": {"base", "protocol", "msgspec"},
    "compat": {"base", "protocol", "store"},
    "recovery": {"base", "protocol", "store", "client", "tools"},
    "engine": {"base", "protocol", "store", "recovery", "msgspec"},
    "actor": {"base", "protocol", "store", "recovery", "engine", "msgspec", "trio"},
    "client": {"base", "protocol", "store", "msgspec"},
    "embedded": {"base", "protocol", "store", "engine"},
    "api": {"base", "protocol", "store", "client", "msgspec"},
    "session_db": {"base", "protocol", "store", "client", "api", "compat", "msgspec"},
    "providers": {"base", "protocol", "store", "client", "api", "session_db"}
    | {"agents", "agent_store"}
    | {"msgspec", "sqlalchemy", "psycopg", "pymysql"},
    "agents": {"base", "protocol", "store"},
    "agent_store": {"base", "protocol", "client", "agents", "msgspec", "anyio"},
    "dbapi": {"base", "protocol", "client", "msgspec"},
    "attach": {"base", "protocol", "store", "client", "recovery", "msgspec"},
    "pipeline": {"base", "api"},
    "aio": {"base", "protocol", "store", "client", "msgspec", "anyio"},
    "async_session_db": {
        "base",
        "client",
        "aio",
        "api",
        "pipeline",
        "session_db",
        "anyio",
    },
    "gateway": {"base", "protocol", "store", "api", "anyio"},
    "hermes_actor": {"base", "protocol", "session_db"},
    "hermes_state": {"base", "store", "compat", "session_db"},
    "testing": {"base", "client", "session_db", "msgspec"},
    "tools": {"base", "protocol", "store", "msgspec"},
    "cli": {"base", "protocol", "store", "client", "api", "session_db", "hermes_actor", "tools"}
    | {"recovery"}
    | {"click", "msgspec", "rich", "sqlite_utils"},
    "web": {"base", "protocol", "store", "client", "api", "agent_store", "providers", "recovery"}
    | {"tools", "anyio", "starlette", "uvicorn", "jinja2", "markupsafe"},
    "__main__": set(),
}

# Imported when a mode or a command needs it, never at import time.
LATE = {
    "base": {"protocol", "yaml"},
    "recovery": {"engine"},
    "engine": {"agents", "sqlite_utils"},
    "agents": {"croniter", "cryptography", "snowballstemmer"},
    "agent_store": {"embedded", "providers"},
    "api": {"pipeline", "anyio"},
    "dbapi": {"recovery"},
    "attach": {"dbapi", "gateway", "hermes_state"},
    "gateway": {"session_db"},
    "pipeline": {"anyio"},
    "session_db": {"engine", "embedded", "providers"},
    "hermes_actor": {"async_session_db", "dbapi", "agent_store"},
    "tools": {"session_db"},
    "cli": {"actor", "attach", "testing", "engine", "embedded", "dbapi", "gateway", "providers"}
    | {"agents", "agent_store", "web"},
    "__main__": {"cli"},
}


class Import(NamedTuple):
    module: str  # who imports
    name: str  # what
    line: int
    late: bool  # inside a function

    def __str__(self):
        return f"{self.module}:{self.line} imports {self.name}"


@cache
def modules():
    found = {}
    for package, folder in PACKAGES.items():
        for file in sorted(folder.rglob("*.py")):
            parts = [package, *file.relative_to(folder).with_suffix("").parts]
            found[".".join(parts).removesuffix(".__init__")] = file
    return found


@cache
def imports():
    """Every import that can happen at run time; those for type checkers are left out."""
    return [one for module, file in modules().items() for one in _imports_of(module, file)]


def _imports_of(module, file):
    found = []

    def visit(node, late):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for child in node.orelse:
                visit(child, late)
            return
        if isinstance(node, ast.Import):
            found.extend(Import(module, alias.name, node.lineno, late) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}:{node.lineno} imports by a relative name"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                name = whole if whole in modules() else node.module
                found.append(Import(module, name, node.lineno, late))
        late = late or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            visit(child, late)

    visit(ast.parse(file.read_text("utf-8")), False)
    return found


def layer_of(module):
    package, *rest = module.split(".")
    if package == "hermes_protocol":
        return "protocol"
    if package != "hermes_actor":
        return package
    if not rest:
        return "hermes_actor"
    if rest[:2] == ["client", "aio"]:
        return "aio"
    return "base" if rest[0] in BASE else rest[0]


def is_standard(name):
    return name.split(".")[0] in sys.stdlib_module_names


def test_every_module_is_looked_at():
    assert {"hermes_actor.store.dispatch", "hermes_actor.engine.writer"} <= set(modules())
    assert {"hermes_actor.session_db", "hermes_protocol.operations"} <= set(modules())
    assert len(imports()) > 200


def test_import_directions():
    wrong = [
        str(one)
        for one in imports()
        if not is_standard(one.name)
        and (layer := layer_of(one.module)) != layer_of(one.name)
        and layer_of(one.name) not in ALLOWED[layer]
        and not (one.late and layer_of(one.name) in LATE.get(layer, set()))
    ]
    assert wrong == []


def test_every_layer_is_known():
    assert {layer_of(module) for module in modules()} <= set(ALLOWED)


@pytest.mark.parametrize(
    ("name", "homes"),
    [
        (r"sqlite3(\.|$)", {"hermes_actor.sqlite", "hermes_actor.engine.index.build_script"}),
        (r"(_sqlite3|pysqlite3|apsw)(\.|$)", set()),
        (r"sqlite_utils(\.|$)", {"hermes_actor.engine.startup.migrations", "hermes_actor.cli"}),
        (r"trio(\.|$)", {"hermes_actor.actor"}),
        (
            r"anyio(\.|$)",
            {
                "hermes_actor.async_session_db",
                "hermes_actor.pipeline",
                "hermes_actor.client.aio",
                "hermes_actor.api.turns",
                "hermes_actor.gateway",
                "hermes_actor.agent_store.async_store",
                "hermes_actor.web",
            },
        ),
        (r"(click|rich)(\.|$)", {"hermes_actor.cli"}),
        (r"(starlette|uvicorn|jinja2)(\.|$)", {"hermes_actor.web"}),
        (r"yaml(\.|$)", {"hermes_actor.config"}),
        (r"cryptography(\.|$)", {"hermes_actor.agents.vault"}),
        (r"croniter(\.|$)", {"hermes_actor.agents.cron"}),
        (r"snowballstemmer(\.|$)", {"hermes_actor.agents.words"}),
    ],
)
def test_import_has_its_only_home(name, homes):
    wrong = [
        str(one)
        for one in imports()
        if re.match(name, one.name)
        and not any(one.module == home or one.module.startswith(f"{home}.") for home in homes)
    ]
    assert wrong == []


def test_connections_of_clients_are_opened_where_forks_are_kept_away():
    """The processes of commands and actors have no threads that fork, nor has a worker."""
    wrong = [
        module
        for module, file in modules().items()
        if re.search(r"\bsqlite3\.connect\(", file.read_text("utf-8"))
        and layer_of(module) not in {"engine", "actor", "attach", "cli"}
        and module != "hermes_actor.testing.plain"
    ]
    assert wrong == []


def test_descriptors_of_any_number_are_waited_for():
    """``select`` takes none above 1023."""
    wrong = [
        module
        for module, file in modules().items()
        if re.search(r"\bselect\.select\(|SelectSelector", file.read_text("utf-8"))
    ]
    assert wrong == []


def test_decoders_are_made_where_threads_wait_for_each_other():
    """Half a description of a type ends the process."""
    shape = r"Decoder\(|msgspec\.convert\(|\bdecode\([^\n]*type="
    wrong = [
        module
        for module, file in modules().items()
        if re.search(shape, file.read_text("utf-8")) and module != "hermes_protocol.decoders"
    ]
    assert wrong == []


FILES_OF_THEIR_OWN = {
    "_export_documents": "the manifest is added to",
    "_shell": "the history of its statements",
    "files": "what people name",
}
"""Modules of the command line that write or rename files, and which."""


def test_files_that_people_name_are_written_in_one_place():
    shape = r"""\.(write_text|write_bytes|rename)\(|O_CREAT|\.replace\((self\.)?(path|target)"""
    opened = r"""open\([^)]*["'][wax]b?\+?["']"""
    writes = {
        module.rpartition(".")[2]
        for module, file in modules().items()
        if module.startswith("hermes_actor.cli.")
        and re.search(f"{shape}|{opened}", file.read_text("utf-8"))
    }
    assert writes - set(FILES_OF_THEIR_OWN) == set(), "use hermes_actor.cli.output.files"


def test_commands_hold_no_sql():
    """What a command reads is a function of ``store`` or ``recovery``, which others can use."""
    sql = re.compile(
        r"""\b(SELECT|INSERT INTO|UPDATE|DELETE FROM|PRAGMA|VACUUM|CREATE (TABLE|INDEX))\b"""
    )
    wrong = [
        f"{module}:{node.lineno}"
        for module, file in modules().items()
        if layer_of(module) in {"cli", "web"}
        for node in strings_of(file)
        if sql.search(node.value)
    ]
    assert wrong == []


def strings_of(file):
    """The strings of a module that are not docstrings, those inside f-strings included."""
    tree = ast.parse(file.read_text("utf-8"))
    texts = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in texts
    ]


def all_imports(module, file):
    """(imported module, name, line) of every import, those for type checkers included."""
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom):
            yield from ((node.module, alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "", node.lineno) for alias in node.names)


def test_only_the_program_imports_the_command_line():
    wrong = [
        f"{module}:{line}"
        for module, file in modules().items()
        if layer_of(module) not in {"cli", "__main__"}
        for name, _, line in all_imports(module, file)
        if name == "hermes_actor.cli" or name.startswith("hermes_actor.cli.")
    ]
    assert wrong == []


def test_private_names_are_not_imported_by_other_modules():
    wrong = [
        f"{module}:{line} imports {name} of {source}"
        for module, file in modules().items()
        for source, name, line in all_imports(module, file)
        if source.startswith(tuple(PACKAGES))
        and name.startswith("_")
        and not name.startswith("__")
        and f"{source}.{name}" not in modules()
    ]
    assert wrong == []


def test_modules_of_commands_are_named_like_the_commands():
    """One package for each heading of the help; what is no command begins with an underscore."""
    expected = {package: set(cli.COMMANDS[heading]) for heading, package in cli.PACKAGES.items()}
    for package, group in (("sessions", sessions.COMMANDS), ("gateway", gateway.COMMANDS)):
        expected[package] |= {name for part in group.values() for name in part}
    for package, commands in expected.items():
        prefix = f"hermes_actor.cli.{package}."
        there = {
            name
            for module in modules()
            if module.startswith(prefix) and "." not in (name := module.removeprefix(prefix))
        }
        named = {name.replace("-", "_") for name in commands} - {"import"}
        found = {name for name in there if not name.startswith("_")}
        assert found == named | ({"import_"} & found), package


MOST_MODULES = 27
"""Modules of one package: more are a package that wants to be split."""


def test_packages_are_small_enough_to_be_read():
    sizes = Counter(file.parent for file in modules().values())
    assert {folder for folder, size in sizes.items() if size > MOST_MODULES} == set()


def test_sqlite3_is_imported_somewhere():
    assert any(one.name == "sqlite3" for one in imports())


def test_session_db_imports_the_engine_only_inside_functions():
    found = [
        one
        for one in imports()
        if one.module == "hermes_actor.session_db"
        and layer_of(one.name) in {"engine", "embedded", "actor"}
    ]
    assert found
    assert all(one.late for one in found)


def test_session_db_is_cheap_to_import():
    loaded = run_python(
        """
        import json, sys
        from hermes_actor import SessionDB
        print(json.dumps(sorted(sys.modules)))
        """
    )
    heavy = {"trio", "sqlite_utils", "click", "rich", "anyio", "asyncio", "yaml"}
    heavy |= {"hermes_actor.engine", "hermes_actor.actor", "hermes_actor.embedded"}
    assert heavy & set(loaded) == set()
    assert "hermes_actor.session_db" in loaded


def test_current_file_is_served_without_what_migrations_need(tmp_path):
    loaded = run_python(
        """
        import json, sys
        from pathlib import Path
        from hermes_actor import SessionDB
        for _ in range(2):
            db = SessionDB(Path(sys.argv[1]), mode="embedded")
            db.create_session("s", "cli")
            db.append_message("s", "user", "walrus")
            assert db.search_messages("walrus")
            db.close()
        print(json.dumps(sorted(sys.modules)))
        """,
        tmp_path / "state.db",
    )
    assert {"trio", "sqlite_utils", "click", "rich", "anyio"} & set(loaded) == set()


# Operations.

ALL_OPERATIONS = (*ops.OPERATIONS, *agent_ops.AGENT_OPERATIONS)
OPERATIONS = [pytest.param(operation, id=operation.__name__) for operation in ALL_OPERATIONS]
BY_THE_WRITER = {ops.Vacuum, ops.SqlRun, ops.SqlLease, ops.StagePart, ops.Staged}


def test_list_of_operations_is_complete():
    defined = {
        value
        for module in (ops, agent_ops)
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, ops.Operation)
    }
    assert set(ALL_OPERATIONS) == defined - {ops.Operation} == set(ops.Operation.__subclasses__())
    assert len(ALL_OPERATIONS) == len(set(ALL_OPERATIONS))


def test_every_operation_is_applied_by_one_function_or_by_the_writer():
    assert set(APPLY) == set(ops.OPERATIONS) - BY_THE_WRITER
    assert len(set(APPLY.values())) == len(APPLY)
    assert set(agent_registry.APPLY) == set(agent_ops.AGENT_OPERATIONS)
    assert len(set(agent_registry.APPLY.values())) == len(agent_registry.APPLY)


def test_every_subject_of_the_store_is_registered():
    store = PACKAGES["hermes_actor"] / "store"
    applying = {file.stem for file in store.rglob("*.py") if "\n@applies(" in file.read_text()}
    assert applying == {subject.__name__.split(".")[-1] for subject in dispatch._SUBJECTS}
    folder = PACKAGES["hermes_actor"] / "agents" / "changes"
    applying = {file.stem for file in folder.glob("*.py") if "\n@applies(" in file.read_text()}
    assert applying == {subject.__name__.split(".")[-1] for subject in agent_changes._SUBJECTS}


def test_tags_are_unique():
    tags = [operation.__struct_config__.tag for operation in ALL_OPERATIONS]
    assert len(tags) == len(set(tags))


@pytest.mark.parametrize("operation", OPERATIONS)
def test_operation_is_a_frozen_tagged_map(operation):
    config = operation.__struct_config__
    assert config.frozen
    assert not config.array_like
    assert not config.forbid_unknown_fields
    assert config.tag_field == "op"
    assert re.fullmatch(r"[a-z]+\.[a-z_]+", config.tag)
    assert f'tag="{config.tag}"' in Path(sys.modules[operation.__module__].__file__).read_text()
    assert operation.__doc__


@pytest.mark.parametrize("operation", OPERATIONS)
def test_no_field_of_an_operation_is_of_any_type(operation):
    for kind in typing.get_type_hints(operation).values():
        assert kind is not typing.Any


def samples(kind):
    """A value of a field's type that is no default."""
    given = {
        str: "text 北京",
        bool: True,
        int: 7,
        float: 1700000000.25,
        bytes: b"\x00\xff",
        Blob: Blob(b"\x00\xff"),
        type(None): None,
    }
    if kind in given:
        return [given[kind]]
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return [sample(kind)]
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return list(arguments)
    if origin is list:
        return [[value for value in samples(arguments[0]) if value is not None]]
    if origin is dict:
        return [{"key": value} for value in samples(arguments[1])]
    return [value for argument in arguments for value in samples(argument)]


def sample(struct, place=0):
    values = {name: samples(kind) for name, kind in typing.get_type_hints(struct).items()}
    fields = {name: values[name][place % len(values[name])] for name in struct.__struct_fields__}
    return struct(**fields)


def decode(body):
    return msgspec.msgpack.decode(body, type=typing.Union[ALL_OPERATIONS])  # noqa: UP007


@pytest.mark.parametrize("place", range(5))
@pytest.mark.parametrize("operation", OPERATIONS)
def test_operation_survives_the_wire(operation, place):
    value = sample(operation, place)
    assert decode(msgspec.msgpack.encode(value)) == value


@pytest.mark.parametrize("operation", OPERATIONS)
def test_unknown_fields_of_a_newer_client_are_skipped(operation):
    value = sample(operation)
    newer = msgspec.msgpack.decode(msgspec.msgpack.encode(value))
    newer = {"future": [1, {"x": None}], **newer, "other": b"\x00"}
    assert decode(msgspec.msgpack.encode(newer)) == value


@pytest.mark.parametrize("operation", OPERATIONS)
def test_defaults_do_not_travel(operation):
    required = {
        name: samples(kind)[0]
        for name, kind in typing.get_type_hints(operation).items()
        if name in operation.__struct_fields__[: _required(operation)]
    }
    body = msgspec.msgpack.decode(msgspec.msgpack.encode(operation(**required)))
    assert set(body) == {"op", *required}


def _required(operation):
    fields = msgspec.structs.fields(operation)
    return sum(field.required for field in fields)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_operation_cannot_be_changed(operation):
    value = sample(operation)
    for name in operation.__struct_fields__:
        with pytest.raises(AttributeError):
            setattr(value, name, None)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_result_has_a_type(operation):
    assert ops.result_type(operation) is not typing.Any


# Errors.


def all_errors():
    def below(cls):
        return [cls, *(found for child in cls.__subclasses__() for found in below(child))]

    return list(dict.fromkeys(below(errors.HermesActorError)))


def documented():
    """Class name → name of the class above it, as the tree in the docstring draws them."""
    tree = errors.__doc__.partition("::")[2].partition("\nEvery error")[0]
    above, found = {}, {}
    for line in filter(str.strip, tree.splitlines()):
        drawn, _, text = line.rpartition("── ")
        depth = len(drawn) // 4 if drawn else 0
        names = re.match(r"\w+(?:, \w+)*", text.strip()).group().split(", ")
        above[depth] = names[0]
        found.update(dict.fromkeys(names, above.get(depth - 1)))
    return found


def test_tree_in_the_docstring_is_the_tree():
    drawn = documented()
    assert sorted(drawn) == sorted(error.__name__ for error in all_errors())
    for name, above in drawn.items():
        if above is not None:
            bases = [base.__name__ for base in getattr(errors, name).__bases__]
            assert above in bases, f"{name} is drawn below {above}"


def test_every_error_has_a_code_of_its_own():
    codes = [vars(error)["code"] for error in all_errors()]
    assert len(codes) == len(set(codes))
    assert errors.by_code == {error.code: error for error in all_errors()}


@pytest.mark.parametrize("error", all_errors(), ids=lambda error: error.__name__)
def test_error_can_be_made_from_its_message(error):
    made = error("what happened")
    assert str(made) == made.sqlite_message == "what happened"
    assert made.executed in ("no", "yes", "unknown")
    assert error.__name__ in errors.__all__
    assert re.fullmatch(r"[a-z-]+", error.code)


def test_parts_of_the_actor_do_not_know_the_server():
    """Type-only imports count: a part that takes the whole server is a piece of the same object."""
    folder = PACKAGES["hermes_actor"] / "actor"
    naming = {
        file.relative_to(folder).as_posix()
        for file in folder.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if (isinstance(node, ast.ImportFrom) and node.module == "hermes_actor.actor.server")
        or (isinstance(node, ast.Name) and node.id == "Server")
    }
    assert naming == {"process.py"}


def test_no_modules_of_the_actor_import_each_other_in_a_circle():
    """At run time or for a type checker."""
    folder, edges = PACKAGES["hermes_actor"] / "actor", {}
    names = {
        module: file
        for module, file in modules().items()
        if file.is_relative_to(folder) and file.name != "__init__.py"
    }
    for module, file in names.items():
        edges[module] = {
            node.module
            for node in ast.walk(ast.parse(file.read_text("utf-8")))
            if isinstance(node, ast.ImportFrom) and node.module in names
        }
    while leaves := {module for module, targets in edges.items() if not targets & edges.keys()}:
        for module in leaves:
            del edges[module]
    assert edges == {}
