"""The documents cannot drift: references are complete, SQL runs, links lead somewhere."""

import ast
import contextlib
import inspect
import re
import sqlite3
import types
from xml.etree import ElementTree as ET

import msgspec
import pytest
from pages import DOCS, PAGES, ROOT, blocks, prose, rows_of, section, table_rows

from hermes_actor import SessionDB, errors, limits
from hermes_actor.settings import ALL
from hermes_protocol import OPERATIONS, result_type
from hermes_protocol import operations as ops
from hermes_protocol.status import Phase, PhaseReport

# --- SQL -------------------------------------------------------------------------------------


@pytest.fixture
def open_embedded(tmp_path):
    """Open a store in the mode that the pages describe; it is closed at the end."""
    with contextlib.ExitStack() as stack:

        def open_():
            db = SessionDB(tmp_path / "state.db", mode="embedded")
            stack.callback(db.close)
            return db

        yield open_


@pytest.fixture
def db(open_embedded):
    return open_embedded()


@pytest.fixture
def reader(db):
    """The reader of the page, on a store that is open for writing."""
    for session_id, parent, model, tokens, cost in (
        ("root", None, "small", 10, 0.5),
        ("middle", "root", "large", 200, 4.0),
        ("tip", "middle", "large", 30, 1.0),
        ("other", None, None, 5, None),
    ):
        db.create_session(session_id, "cli", parent_session_id=parent, model=model)
        db.append_message(session_id, "user", f"question of {session_id}")
        db.append_message(session_id, "assistant", "answer")
        db.update_token_counts(
            session_id, input_tokens=tokens, output_tokens=1, estimated_cost_usd=cost
        )
    (code,) = blocks("how-to/sql.md", "python")
    names = {}
    exec(code, names)
    with contextlib.closing(names["reader"](db.db_path)) as conn:
        yield conn


def ask(conn, block, *parameters):
    rows = conn.execute(blocks("how-to/sql.md", "sql")[block], parameters).fetchall()
    return [dict(row) for row in rows]


def test_sql_ancestors_and_descendants(db, reader):
    ancestors = [row["id"] for row in ask(reader, 0, "tip")]
    assert ancestors == db._session_lineage_root_to_tip("tip")[::-1] == ["tip", "middle", "root"]
    assert [row["id"] for row in ask(reader, 1, "root")] == ["root", "middle", "tip"]


def test_sql_recent_sessions_with_preview(db, reader):
    keys = ("id", "preview", "last_active")
    rows = [tuple(row[key] for key in keys) for row in ask(reader, 2)]
    listed = db.list_sessions_rich(include_children=True)
    assert rows == [tuple(row[key] for key in keys) for row in listed]
    assert rows[0][:2] == ("other", "question of other")


def test_sql_token_statistics(reader):
    assert ask(reader, 3) == [
        {"model": "large", "session_count": 2, "total_input": 230, "total_output": 2,
         "total_cost": 5.0},
        {"model": "small", "session_count": 1, "total_input": 10, "total_output": 1,
         "total_cost": 0.5},
    ]  # fmt: skip
    highest = [(row["id"], row["total_tokens"]) for row in ask(reader, 4)]
    assert highest == [("middle", 201), ("tip", 31), ("root", 11), ("other", 6)]


def test_sql_watermark_reaches_the_newest_message_after_a_search(db, reader):
    db.search_messages("question")
    assert ask(reader, 5) == [{"indexed_through": 8, "newest": 8}]


def test_every_sql_block_is_run_and_none_can_write(reader):
    assert len(blocks("how-to/sql.md", "sql")) == 6
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        reader.execute("DELETE FROM messages")


def test_damaged_full_text_tables_are_made_again(open_embedded):
    """What the page on operations promises."""
    db = open_embedded()
    db.create_session("s1", "cli")
    db.append_message("s1", "user", "needle 针")
    assert db.search_messages("needle")
    db.close()
    with contextlib.closing(sqlite3.connect(db.db_path, isolation_level=None)) as conn:
        conn.execute("UPDATE messages_fts_data SET block = x'ffffffffffff' WHERE id = 10")
    db = open_embedded()
    assert [hit["id"] for hit in db.search_messages("needle")] == [1]
    assert [hit["id"] for hit in db.search_messages("针")] == [1]


# --- references ------------------------------------------------------------------------------

METHODS = {
    name: member
    for name, member in inspect.getmembers(SessionDB, callable)
    if not name.startswith("_")
}


def documented_calls():
    """Name and parameter list of every call that the page shows in bold."""
    text = (DOCS / "reference/session-db.md").read_text()
    return dict(re.findall(r"\*\*`(\w+)(\(.*?\))`\*\*", text))


def test_reference_has_every_public_method_and_no_other():
    assert set(documented_calls()) == {*METHODS, "SessionDB"}


def test_reference_names_only_what_exists():
    text = (DOCS / "reference/session-db.md").read_text()
    named = set(re.findall(r"`(\w+)\(", text)) - {"SessionDB"}
    assert [name for name in sorted(named) if not hasattr(SessionDB, name)] == []


@pytest.mark.parametrize("name", [*METHODS, "SessionDB"])
def test_reference_shows_the_signature(name):
    member = SessionDB if name == "SessionDB" else METHODS[name]
    real = inspect.signature(member)
    plain = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in real.parameters.values()
        if parameter.name != "self"
    ]
    shown = ast.unparse(ast.parse(f"def f{documented_calls()[name]}: pass").body[0].args)
    expected = str(inspect.Signature(plain))
    assert shown == ast.unparse(ast.parse(f"def f{expected}: pass").body[0].args)


def error_classes():
    return [
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, errors.HermesActorError)
    ]


def also_inherits(cls):
    """The classes that callers know without us, as the table shows them."""
    names = []
    for base in cls.__bases__:
        if not issubclass(base, errors.HermesActorError) and base is not Exception:
            prefix = "sqlite3." if issubclass(base, sqlite3.Error) else ""
            names.append(f"`{prefix}{base.__name__}`")
    return ", ".join(names)


def test_every_error_is_in_the_table_with_its_facts():
    rows = {row[0].strip("`"): row for row in table_rows("reference/errors.md")[1:]}
    assert set(rows) == {cls.__name__ for cls in error_classes()}
    for cls in error_classes():
        _, code, also, executed, meaning, advice = rows[cls.__name__]
        assert (code, also, executed) == (f"`{cls.code}`", also_inherits(cls), cls.executed)
        assert meaning, cls
        assert advice, cls


def fields_of(struct):
    """Fields as the pages show them: a required one by name, others with their default."""
    shown = []
    for field in msgspec.structs.fields(struct):
        default = field.default
        if field.default_factory is not msgspec.NODEFAULT:
            default = field.default_factory()
        suffix = "" if default is msgspec.NODEFAULT else f"={default!r}"
        shown.append(f"`{field.name}{suffix}`")
    return shown


def result_name(operation):
    result = result_type(operation)
    if result is type(None):
        return "`None`"
    if isinstance(result, types.UnionType):
        return (
            f"`{' | '.join(getattr(one, '__name__', 'None') for one in result.__args__)}`".replace(
                "NoneType", "None"
            )
        )
    return f"`{result}`" if "[" in str(result) else f"`{result.__name__}`"


def test_every_operation_is_in_the_tables_with_its_facts():
    rows = {row[0]: row for row in table_rows("reference/operations.md") if row[0] != "tag"}
    tags = {f"`{msgspec.inspect.type_info(cls).tag}`": cls for cls in OPERATIONS}
    assert list(rows) == list(tags)
    for tag, cls in tags.items():
        _, struct, fields, result, meaning = rows[tag]
        assert struct == f"`{cls.__name__}`"
        assert fields == ", ".join(fields_of(cls)), tag
        assert result == result_name(cls), tag
        assert meaning, tag


@pytest.mark.parametrize(
    "name", ["MessageRow", "SessionRow", "Continued", "Pruned", "Imported", "SqlResult"]
)
def test_values_inside_operations_are_described(name):
    text = (DOCS / "reference/operations.md").read_text().replace("\n", " ")
    assert f"`{name}`" in text
    for field in fields_of(getattr(ops, name)):
        assert field in text, field


def test_file_format_names_every_object_and_key(db):
    db.create_session("s1", "telegram")
    db.append_message("s1", "user", "x")
    db.search_messages("x")
    db.apply_telegram_topic_migration()
    text = (DOCS / "reference/file-format.md").read_text()
    shadow = re.compile(r"sqlite_|messages_fts\w*_(data|idx|content|docsize|config)$")
    names = [row[0] for row in db._conn.execute("SELECT name FROM sqlite_master")]
    names += [row[0] for row in db._conn.execute("SELECT key FROM hermes_actor_meta")]
    names += [row[1] for row in db._conn.execute("PRAGMA table_info(messages)")]
    assert [n for n in names if not shadow.match(n) and f"`{n}`" not in text] == []


def test_limits_have_the_values_of_the_page():
    rows = [row for row in table_rows("design/limits.md") if row[0].startswith("`")]
    assert len(rows) > 20
    for name, value, reason, *_ in rows:
        assert float(value) == getattr(limits, name.strip("`")), name
        assert reason, name


# --- links -----------------------------------------------------------------------------------


def anchors(page):
    """Anchors of the headings of a page, as code hosts make them."""
    titles = re.findall(r"^#+ +(.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"\w+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(target)
    assert broken == []


def test_every_page_is_reachable_from_the_index():
    reached, waiting = set(), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in reached or page.suffix != ".md":
            continue
        reached.add(page)
        targets = re.findall(r"\]\(([^)\s#:]+)", prose(page))
        waiting += [(page.parent / target).resolve() for target in targets]
    assert [page for page in DOCS.rglob("*.md") if page not in reached] == []


def test_every_setting_is_in_the_table_of_settings():
    text = (DOCS / "operations.md").read_text("utf-8")
    table = text.partition("## Settings")[2].partition("\n## ")[0]
    for setting in ALL:
        assert f"`{setting.key}`" in table, setting.key
        assert setting.env is None or f"`{setting.env}`" in table, setting.env


# --- phases --------------------------------------------------------------------------------------


def test_every_phase_is_in_the_table_of_the_operations_page():
    cells = [row[0].strip("`") for row in rows_of(section("operations.md", "Phases"))[1:]]
    assert cells.pop() == "not running"  # said by the command, when there is no actor
    assert {PhaseReport.parse(cell).phase for cell in cells} == set(Phase)
    assert len(cells) == len(Phase)


def test_every_phase_is_in_the_protocol_and_in_the_terms():
    protocol = (ROOT / "protocol" / "README.md").read_text()
    rows = [line for line in protocol.splitlines() if line.startswith("   | `")]
    (term,) = [row[1] for row in table_rows("design/terms.md") if row[0] == "phase"]
    for phase in Phase:
        assert f"`{phase.value}`" in term
        if phase is Phase.UNKNOWN:
            assert "Read any other word as `unknown`." in protocol
        else:
            assert any(row.startswith(f"   | `{phase.value}` |") for row in rows), phase


# --- the picture of README ----------------------------------------------------------------------


def test_picture_of_readme_is_whole_and_ends_with_the_verdict():
    svg = (DOCS / "demo.svg").read_text("utf-8")
    tree = ET.fromstring(svg)
    texts = {
        "".join(one.itertext()).strip() for one in tree.iter("{http://www.w3.org/2000/svg}text")
    }
    assert any(text.startswith("hermes-actor: Nothing was lost") for text in texts)
    assert any(text.startswith("plain sqlite3: ") for text in texts)
    assert "demo.svg" in (ROOT / "README.md").read_text("utf-8")
