#!/usr/bin/env python3
"""Measure the code: sizes, annotations, docstrings, comments, imports, language.

``make stats`` prints the tables in Markdown, the figures of an earlier commit before each arrow.
Everything is derived from the source by ``ast`` and ``tokenize``; nothing is imported, so any
checkout can be measured::

    python stress/stats.py --root CHECKOUT --json > docs/design/figures/code-COMMIT.json
    python stress/stats.py --beside docs/design/figures/code-COMMIT.json
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import statistics
import tokenize
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["main", "measure", "tables"]

Figures = dict[str, Any]
Function = ast.FunctionDef | ast.AsyncFunctionDef

PRODUCT = {"hermes_actor": "hermes_actor", "hermes_protocol": "protocol/hermes_protocol"}
AROUND = ("tests", "stress")
SUPPORT = "tests: what they share"
"""Modules of the tests that hold no tests: these are annotated, a test takes what pytest gives."""

CLAUSES = {"What", "Whatever", "Whoever", "Whether", "Which", "How", "Who", "Where", "When", "Why"}
"""First words of a docstring that is neither a verb nor a noun phrase."""
WORDS = ("nobody", "somebody", "whoever", "anybody", "told", "anew", "patience", "mended")
"""Words that are counted in docstrings and comments, per 10,000 words."""


@dataclass
class Module:
    """One file, parsed once."""

    name: str
    path: str
    text: str
    tree: ast.Module = field(init=False)
    comments: list[str] = field(init=False)
    comment_lines: int = field(init=False)
    """Lines that hold nothing but a comment."""

    def __post_init__(self) -> None:
        self.tree = ast.parse(self.text)
        tokens = tokenize.generate_tokens(io.StringIO(self.text).readline)
        comments = [t for t in tokens if t.type == tokenize.COMMENT]
        self.comments = [t.string for t in comments]
        self.comment_lines = sum(t.line.lstrip().startswith("#") for t in comments)

    @property
    def folder(self) -> str:
        return self.path.rpartition("/")[0]

    @property
    def stem(self) -> str:
        return self.path.rpartition("/")[2].removesuffix(".py")

    @property
    def lines(self) -> int:
        return len(self.text.splitlines())

    @property
    def nonblank(self) -> int:
        return sum(bool(line.strip()) for line in self.text.splitlines())

    def functions(self) -> list[Function]:
        return [n for n in ast.walk(self.tree) if isinstance(n, Function)]

    def docstrings(self) -> list[str]:
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        nodes = (n for n in ast.walk(self.tree) if isinstance(n, kinds))
        return [text for n in nodes if (text := ast.get_docstring(n))]

    def public_functions(self) -> Iterator[Function]:
        """Functions of the module and methods of its public classes, without an underscore."""
        for node in self.tree.body:
            if isinstance(node, Function) and not node.name.startswith("_"):
                yield node
            elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                for part in node.body:
                    if isinstance(part, Function) and not part.name.startswith("_"):
                        yield part

    def public_names(self) -> int:
        return sum(not name.startswith("_") for name in self._top_level())

    def _top_level(self) -> Iterator[str]:
        for node in self.tree.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield node.name
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                yield node.target.id
            elif isinstance(node, ast.Assign):
                yield from (t.id for t in node.targets if isinstance(t, ast.Name))


def measure(root: Path) -> Figures:
    """Return every figure of the checkout at *root*, by section, package and name."""
    product = {name: _read(root / path, name) for name, path in PRODUCT.items()}
    around = {name: _read(root / name, name) for name in AROUND}
    tests = around["tests"]
    around["tests"] = [m for m in tests if m.stem.startswith("test_")]
    around[SUPPORT] = [m for m in tests if not m.stem.startswith("test_")]
    return {
        "packages": _by_package(product, around),
        "graph": _graph([m for modules in product.values() for m in modules]),
        "signs": _signs(product["hermes_actor"]),
        "folders": _folders(product["hermes_actor"]),
    }


def _read(folder: Path, name: str) -> list[Module]:
    modules = []
    for file in sorted(folder.rglob("*.py")):
        path = f"{name}/{file.relative_to(folder).as_posix()}"
        dotted = path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
        modules.append(Module(dotted, path, file.read_text(encoding="utf-8")))
    return modules


# --- by package ------------------------------------------------------------------------------


def _by_package(
    product: dict[str, list[Module]], around: dict[str, list[Module]]
) -> dict[str, Figures]:
    parts: dict[str, list[Module]] = {"hermes_actor": product["hermes_actor"], "top level": []}
    for module in product["hermes_actor"]:
        steps = module.path.split("/")
        parts.setdefault(steps[1] if len(steps) > 2 else "top level", []).append(module)
    parts["hermes_protocol"] = product["hermes_protocol"]
    parts |= around
    return {name: _sizes(modules) for name, modules in parts.items() if modules}


def _sizes(modules: list[Module]) -> Figures:
    functions = [f for m in modules for f in m.functions()]
    public = [f for m in modules for f in m.public_functions()]
    nonblank = sum(m.nonblank for m in modules)
    return {
        "modules": len(modules),
        "lines": sum(m.lines for m in modules),
        "module": _spread([m.lines for m in modules]),
        "function": _spread([(f.end_lineno or f.lineno) - f.lineno + 1 for f in functions]),
        "typed": _percent(sum(f.returns is not None for f in functions), len(functions)),
        "public": sum(m.public_names() for m in modules),
        "documented": _percent(sum(ast.get_docstring(f) is not None for f in public), len(public)),
        "comments": _rate(sum(m.comment_lines for m in modules), nonblank, 100),
    }


def _spread(numbers: list[int]) -> list[int]:
    """Median, ninth decile and maximum."""
    if not numbers:
        return [0, 0, 0]
    ordered = sorted(numbers)
    return [int(statistics.median(ordered)), ordered[int(0.9 * (len(ordered) - 1))], ordered[-1]]


def _percent(part: int, whole: int) -> int:
    return round(100 * part / whole) if whole else 0


def _rate(part: int, whole: int, per: int) -> float:
    return round(per * part / whole, 1) if whole else 0.0


# --- imports ---------------------------------------------------------------------------------


def _graph(modules: list[Module]) -> Figures:
    known = {m.name for m in modules}
    edges: dict[str, set[tuple[str, str]]] = {"import": set(), "late": set(), "type": set()}
    for module in modules:
        for kind, target in _imports(module, known):
            if target != module.name:
                edges[kind].add((module.name, target))
    edges["late"] -= edges["import"]
    edges["type"] -= edges["import"] | edges["late"]
    direct = edges["import"]
    users = Counter(target for _, target in direct)
    uses = Counter(source for source, _ in direct)
    fan_in = [users[name] for name in known]
    fan_out = _spread([uses[name] for name in known])
    late = direct | edges["late"]
    return {
        "modules": len(known),
        "edges": len(direct),
        "late edges": len(edges["late"]),
        "type-only edges": len(edges["type"]),
        "cycles at import": _cycles(direct),
        "cycles with late imports": _cycles(late),
        "cycles with type-only imports": _cycles(late | edges["type"]),
        "fan-in median": int(statistics.median(fan_in)) if fan_in else 0,
        "fan-out median / p90 / max": fan_out,
        "imported by exactly one": sum(n == 1 for n in fan_in),
        "basenames used more than once": sum(
            n > 1 for n in Counter(m.stem for m in modules if m.stem != "__init__").values()
        ),
        "class names used more than once": sum(
            n > 1
            for n in Counter(
                node.name for m in modules for node in m.tree.body if isinstance(node, ast.ClassDef)
            ).values()
        ),
        "lines of imports, %": _rate(
            sum(_span(n) for m in modules for n in ast.walk(m.tree) if _is_import(n)),
            sum(m.nonblank for m in modules),
            100,
        ),
        "highest fan-out": [f"{name} {n}" for name, n in _highest(uses)],
        "highest fan-in": [f"{name} {n}" for name, n in _highest(users)],
    }


def _highest(counts: Counter[str]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:5]


def _is_import(node: ast.AST) -> bool:
    return isinstance(node, ast.Import | ast.ImportFrom)


def _span(node: Any) -> int:
    return int(node.end_lineno - node.lineno + 1)


def _imports(module: Module, known: set[str]) -> Iterator[tuple[str, str]]:
    """(``import``, ``late`` or ``type``; the imported module) of every import of *module*."""

    def visit(node: ast.AST, kind: str) -> Iterator[tuple[str, str]]:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for inner in node.body:
                yield from visit(inner, "type")
            for inner in node.orelse:
                yield from visit(inner, kind)
            return
        if isinstance(node, ast.Import):
            yield from ((kind, alias.name) for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                target = whole if whole in known else node.module or ""
                if target in known:
                    yield kind, target
        if isinstance(node, Function | ast.Lambda) and kind == "import":
            kind = "late"
        for child in ast.iter_child_nodes(node):
            yield from visit(child, kind)

    return visit(module.tree, "import")


def _cycles(edges: Iterable[tuple[str, str]]) -> list[int]:
    """Sizes of the strongly connected components of more than one module, largest first."""
    following: dict[str, list[str]] = {}
    for source, target in edges:
        following.setdefault(source, []).append(target)
        following.setdefault(target, [])
    order: list[str] = []
    _visit_all(following, list(following), order.append)
    backwards: dict[str, list[str]] = {name: [] for name in following}
    for source, targets in following.items():
        for target in targets:
            backwards[target].append(source)
    sizes: list[int] = []
    seen: set[str] = set()
    for name in reversed(order):
        if name not in seen:
            component: list[str] = []
            _visit_all(backwards, [name], component.append, seen)
            sizes.append(len(component))
    return sorted((size for size in sizes if size > 1), reverse=True)


def _visit_all(
    following: dict[str, list[str]],
    starts: list[str],
    left: Callable[[str], None],
    seen: set[str] | None = None,
) -> None:
    """Walk depth first from *starts*; call *left* with each module after all that follow it."""
    seen = set() if seen is None else seen
    for start in starts:
        if start in seen:
            continue
        seen.add(start)
        stack = [(start, iter(following[start]))]
        while stack:
            name, rest = stack[-1]
            follower = next((one for one in rest if one not in seen), None)
            if follower is None:
                stack.pop()
                left(name)
            else:
                seen.add(follower)
                stack.append((follower, iter(following[follower])))


# --- language --------------------------------------------------------------------------------


def _signs(modules: list[Module]) -> Figures:
    docstrings = [text for m in modules for text in m.docstrings()]
    firsts = Counter(re.match(r"\W*(\w*)", text).group(1) for text in docstrings)  # type: ignore[union-attr]
    prose = " ".join([*docstrings, *(c for m in modules for c in m.comments)]).lower()
    counts = Counter(re.findall(r"[a-z]+", prose))
    total = sum(counts.values())
    named = [m for m in modules if m.stem != "__init__"]
    clauses = sum(firsts[word] for word in CLAUSES)
    return {
        "modules with a name in -ing": [sum(m.stem.endswith("ing") for m in named), len(named)],
        "docstrings that begin with What, Whether, How …": [clauses, len(docstrings)],
        "most frequent first words": [f"{word} {n}" for word, n in firsts.most_common(4)],
        **{f"{word}, per 10,000 words": _rate(counts[word], total, 10_000) for word in WORDS},
    }


def _folders(modules: list[Module]) -> dict[str, int]:
    """Modules of each folder, ``__init__`` not counted, largest first."""
    return dict(Counter(m.folder for m in modules if m.stem != "__init__").most_common())


# --- tables ----------------------------------------------------------------------------------

_COLUMNS = {
    "modules": "modules",
    "lines": "lines",
    "module": "module median / p90 / max",
    "function": "function median / p90 / max",
    "typed": "typed, %",
    "public": "public names",
    "documented": "public functions with a docstring, %",
    "comments": "comment lines per 100 lines",
}


def tables(now: Figures, before: Figures | None = None) -> str:
    """Return all figures as Markdown; with *before*, each cell is ``before → now``."""
    old: Figures = before or {}
    parts = [
        _table("package", list(_COLUMNS.values()), _package_rows(now, old), "By package"),
        _pairs("Imports", now["graph"], old.get("graph")),
        _pairs("Language of docstrings and comments", now["signs"], old.get("signs")),
        _pairs("Modules per folder", now["folders"], old.get("folders")),
    ]
    return "\n\n".join(parts) + "\n"


def _package_rows(now: Figures, old: Figures) -> Iterator[list[str]]:
    new, former = now["packages"], old.get("packages")
    for name in [*new, *(n for n in former or {} if n not in new)]:
        cells = [_cell(new.get(name), former and former.get(name, {}), key) for key in _COLUMNS]
        yield [name, *cells]


def _pairs(title: str, now: Figures, old: Figures | None) -> str:
    if old is None:
        return _table("", ["now"], ([key, _shown(value)] for key, value in now.items()), title)
    keys = [*now, *(key for key in old if key not in now)]
    rows = ([key, _shown(old.get(key)), _shown(now.get(key))] for key in keys)
    return _table("", ["before", "now"], rows, title)


def _table(first: str, columns: list[str], rows: Iterable[list[str]], title: str) -> str:
    lines = [f"## {title}", "", f"| {' | '.join([first, *columns])} |"]
    lines.append("|---" + "|---:" * len(columns) + "|")
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def _cell(now: Figures | None, old: Figures | None, key: str) -> str:
    shown = _shown(now and now.get(key))
    return shown if old is None else f"{_shown(old.get(key))} → {shown}"


def _shown(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, list):
        if value and isinstance(value[0], str):
            return ", ".join(value)
        return " / ".join(_shown(one) for one in value) or "0"
    return f"{value:,}"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1], metavar="CHECKOUT")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--beside", type=Path, metavar="FILE", help="figures saved with --json")
    chosen = parser.parse_args(arguments)
    figures = measure(chosen.root)
    if chosen.json:
        print(json.dumps(figures, indent=1, ensure_ascii=False))
    else:
        before = json.loads(chosen.beside.read_text()) if chosen.beside else None
        print(tables(figures, before), end="")


if __name__ == "__main__":
    main()
