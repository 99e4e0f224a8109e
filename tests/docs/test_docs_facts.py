"""Statements of the documents about the project itself: layers, extras, targets, skips, names."""

import ast
import configparser
import importlib
import importlib.util
import re
import tomllib
import typing
from pathlib import Path

import pytest
from pages import DOCS, PAGES, ROOT, blocks, rows_of, section

from hermes_actor import errors, limits, settings
from hermes_actor.cli.actor.service import systemd
from hermes_actor.paths import resolve_paths
from hermes_actor.sqlite import WAL_RESET_FIXED
from hermes_actor.store.schema import SCHEMA_VERSION

OVERVIEW = "design/overview.md"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def names(cell):
    """The words in backticks of a cell."""
    return set(re.findall(r"`([^`]+)`", cell))


# --- layers ----------------------------------------------------------------------------------

ARCHITECTURE = load(ROOT / "tests" / "unit" / "test_architecture.py")


def layer_rows():
    return {row[0].strip("`"): row for row in rows_of(section(OVERVIEW, "Layers"))[1:]}


def test_layers_are_those_of_the_packages():
    found = {ARCHITECTURE.layer_of(module) for module in ARCHITECTURE.modules()}
    assert set(layer_rows()) == found
    assert all(row[1] for row in layer_rows().values())


@pytest.mark.parametrize("layer", ARCHITECTURE.ALLOWED)
def test_layer_imports_what_the_page_says(layer):
    _, holds, always, late = layer_rows()[layer]
    shown = [", ".join(f"`{name}`" for name in sorted(rules.get(layer, ()))) for rules in
             (ARCHITECTURE.ALLOWED, ARCHITECTURE.LATE)]  # fmt: skip
    row = f"| `{layer}` | {holds} | {shown[0]} | {shown[1]} |"
    assert [always, late] == shown, f"the row of docs/{OVERVIEW} should be:\n{row}"


def test_modules_that_are_open_to_all_layers_are_named():
    text = section(OVERVIEW, "Layers").partition("`base` stands for")[2].partition("\n\n")[0]
    assert names(text.replace("\n", " ")) == ARCHITECTURE.BASE


# --- dependencies ----------------------------------------------------------------------------


def distributions(requirements):
    return [re.match(r"[\w-]+", one).group() for one in requirements]


def test_every_dependency_has_its_reason():
    text = (DOCS / "design/dependencies.md").read_text("utf-8").partition("## Extras")[0]
    rows = rows_of(text)[1:]
    assert [row[0] for row in rows] == distributions(PROJECT["dependencies"])
    assert all(use and why for _, use, why in rows)


def test_extras_bring_what_the_page_says():
    rows = rows_of(section("design/dependencies.md", "Extras"))[1:]
    shown = {row[0].strip("`"): row[1].split(", ") for row in rows}
    extras = PROJECT["optional-dependencies"]
    assert shown == {extra: distributions(required) for extra, required in extras.items()}


# --- limits, settings, versions --------------------------------------------------------------


def test_limits_that_can_be_chosen_name_a_way():
    rows = [row for row in rows_of(section("design/limits.md", "Time")) if len(row) == 4 and row[3]]
    variables = {setting.env for setting in settings.ALL if setting.env}
    ways = set().union(*(names(row[3]) for row in rows[1:]))
    assert {way for way in ways if way.startswith("HERMES_")} <= variables
    assert len(rows) > 2


def test_every_setting_says_what_it_means_in_a_sentence():
    for setting in settings.ALL:
        assert re.fullmatch(r"[`A-Z].*\.", setting.meaning), setting.key


def test_checkpoints_are_due_when_the_page_says():
    text = section("design/durability.md", "Checkpoints")
    for shown in (
        f"{limits.CHECKPOINT_EVERY_WRITES} changes applied",
        f"{limits.CHECKPOINT_EVERY_COMMITS} commits",
        f"grown by {limits.CHECKPOINT_EVERY_FRAMES:,} frames",
    ):
        assert shown in text


def test_schema_version_is_the_same_on_all_pages():
    for page in ("reference/file-format.md", "how-to/drop-in.md"):
        assert f"ersion {SCHEMA_VERSION}" in (DOCS / page).read_text("utf-8"), page
    claims = [
        (page.name, found)
        for page in PAGES
        for found in re.findall(r"versions? 1 to (\d+)", page.read_text("utf-8"))
    ]
    allowed = {str(SCHEMA_VERSION - 1), "22"}
    assert claims
    assert [claim for claim in claims if claim[1] not in allowed] == []


def test_every_value_of_executed_is_explained():
    rows = rows_of(section("design/durability.md", "What an error says"))[1:]
    assert {row[0].strip("`") for row in rows} == set(typing.get_args(errors.Executed))


# --- targets and skipped tests ---------------------------------------------------------------

MAKEFILE = (ROOT / "Makefile").read_text("utf-8")
TARGETS = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))
PUBLIC_TARGETS = set(re.findall(r"^([a-z-]+):.*##", MAKEFILE, re.MULTILINE))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_targets_of_make_that_a_page_names_exist(page):
    text = page.read_text("utf-8")
    named = set(re.findall(r"`make ([a-z-]+)|^ *make ([a-z-]+)", text, re.MULTILINE))
    assert {first or second for first, second in named} <= TARGETS


def test_contributors_learn_of_every_target():
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    assert set(re.findall(r"^make ([a-z-]+)", text, re.MULTILINE)) == PUBLIC_TARGETS - {"help"}


def skip_reasons(file):
    """The reason of every skip of a module; what is filled in at run time is an ellipsis."""
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        match node:
            case ast.Call(func=ast.Attribute(attr="skip" | "skipif" | "importorskip")):
                reasons = [word.value for word in node.keywords if word.arg == "reason"]
                for reason in reasons or node.args[:1]:
                    yield re.sub(r"\{[^}]*\}", "…", ast.unparse(reason).lstrip("f").strip("'\""))


def test_every_reason_to_skip_a_test_is_listed():
    files = [*(ROOT / "tests").rglob("*.py"), *(ROOT / "stress").rglob("*.py")]
    reasons = {one for file in files if file != Path(__file__) for one in skip_reasons(file)}
    rows = rows_of(section(ROOT / "CONTRIBUTING.md", "Tests that are skipped"))[1:]
    assert {row[0] for row in rows} == reasons


# --- names -----------------------------------------------------------------------------------

_DOTTED = re.compile(r"\bhermes_(?:actor|protocol)(?:\.\w+)+(?![\w/])")
_PATH = re.compile(r"`((?:[\w.-]+/)+[\w.-]+\.(?:py|md|json))`")
_ROOTS = (ROOT, ROOT / "hermes_actor", ROOT / "protocol", ROOT / "docs", ROOT / "tests")

GROUPS = {"hermes_actor.sessiondb_providers", "hermes_actor.gateway_hooks"}
"""Names of entry points, which packages of third parties declare."""


def exists(name):
    """True if a dotted name leads to a module, or to an attribute of one."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:end]))
        except ImportError:
            continue
        for part in parts[end:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_names_of_the_code_on_a_page_exist(page):
    text = page.read_text("utf-8")
    dotted = set(_DOTTED.findall(text)) - GROUPS
    missing = [one for one in sorted(dotted) if not exists(one)]
    roots = (*_ROOTS, page.parent)
    paths = {path for path in _PATH.findall(text) if "NAME" not in path}
    missing += [path for path in paths if not any((root / path).exists() for root in roots)]
    assert missing == []


def test_names_of_entry_points_are_those_of_the_code():
    homes = ("providers/resolve.py", "gateway/hooks.py")
    code = "".join((ROOT / "hermes_actor" / home).read_text("utf-8") for home in homes)
    assert all(f'"{group}"' in code for group in GROUPS)


def test_functions_for_agents_are_where_the_page_says():
    rows = rows_of((DOCS / "reference/tools.md").read_text("utf-8"))[1:]
    for shown, module, _ in rows:
        found = importlib.import_module(f"hermes_actor.{module.strip('`')}")
        for name in names(shown):
            assert hasattr(found, name.partition("(")[0]), name


def test_named_tests_exist():
    code = "".join(file.read_text("utf-8") for file in (ROOT / "tests").rglob("*.py"))
    defined = set(re.findall(r"def (test_\w+)", code))
    defined |= {file.stem for file in (ROOT / "tests").rglob("test_*.py")}
    for page in PAGES:
        named = set(re.findall(r"`(test_\w+)`", page.read_text("utf-8")))
        assert named <= defined, page.name


def test_guarantees_and_rules_that_a_page_names_are_defined():
    overview, durability = (
        (DOCS / page).read_text("utf-8") for page in (OVERVIEW, "design/durability.md")
    )
    defined = set(re.findall(r"^\*\*(G\d+)\.", overview, re.MULTILINE))
    defined |= set(re.findall(r"^## (R\d):", durability, re.MULTILINE))
    for page in PAGES:
        named = set(re.findall(r"\b([GR][1-9]\d?)\b", page.read_text("utf-8")))
        assert named <= defined, page.name


def test_terms_have_one_meaning():
    words = [
        word.strip(" `")
        for row in rows_of((DOCS / "design/terms.md").read_text("utf-8"))
        if row[0] != "word"
        for word in row[0].split(", ")
    ]
    assert len(words) == len(set(words)) > 50


OF_SQLITE = {"database is locked", "database or disk is full"}


def said(cell):
    """The fixed parts of a line of the log or the status, as the page shows it."""
    return [
        part.strip(" :") for part in re.split(r"…|\d[\d.]*|[()]|pid|SIG\w+", cell) if len(part) > 5
    ]


def test_lines_of_log_and_status_are_those_of_the_code():
    code = "".join(file.read_text("utf-8") for file in (ROOT / "hermes_actor").rglob("*.py"))
    code = re.sub(r'"\n *f?"', "", code)  # texts that go on in the next line
    lines = [row[0] for row in rows_of(section("operations.md", "Log"))[1:]]
    lines += [
        row[1] for row in rows_of(section("operations.md", "Faults")) if "degraded:" in row[1]
    ]
    shown = [line.removeprefix("degraded: ") for cell in lines for line in names(cell)]
    assert len(shown) > 15
    parts = {part for line in shown for part in said(line)} - OF_SQLITE
    assert [part for part in sorted(parts) if part not in code] == []


# --- the service by hand ---------------------------------------------------------------------

OF_THE_USER = {"User", "Environment", "ExecStart", "ExecReload"}
"""What a system service has in another form: its user, home and paths."""


def service_section(text):
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str
    unit.read_string(text.replace("\\\n", " "))
    return {key: " ".join(value.split()) for key, value in unit["Service"].items()}


def test_unit_by_hand_says_what_the_installed_one_says(tmp_path):
    files = systemd.Systemd(resolve_paths(tmp_path / "state.db")).files
    (generated,) = [text for path, text in files.items() if path.suffix == ".service"]
    (shown,) = blocks("how-to/service.md", "ini")
    installed, by_hand = service_section(generated), service_section(shown)
    for key in OF_THE_USER:
        installed.pop(key, None)
        by_hand.pop(key, None)
    assert by_hand == installed


# --- what an adopter and a first user are promised ---------------------------------------------


def test_no_page_promises_that_two_writers_do_no_harm():
    """The page of an adopter said "nothing breaks", and two others that commits can be lost."""
    fixed = ".".join(map(str, WAL_RESET_FIXED))
    for name in ("how-to/drop-in.md", "how-to/inspect.md", "operations.md"):
        text = " ".join((DOCS / name).read_text().split())
        assert f"before {fixed}" in text, name
        assert re.search(r"two writers can (lose|meet a race)", text), name
    for page in PAGES:
        assert "nothing breaks" not in page.read_text(), page


def test_make_says_what_it_installs_before_it_does():
    """A first user waited a minute for `make run` without a word, and got servers unasked."""
    recipes = re.split(r"\n(?=\S)", (ROOT / "Makefile").read_text())
    found = [one for one in recipes if re.search(r"apt-get install|pip install|npm install", one)]
    assert len(found) > 10
    for recipe in found:
        before = re.split(r"(?:apt-get|pip|npm) install", recipe)[0]
        said = re.search(r'echo "[^"]*(install|fetch)', before)
        assert said, f"this target installs in silence:\n{recipe}"
    readme = (ROOT / "README.md").read_text()
    assert "`make test` also installs the servers" in readme
