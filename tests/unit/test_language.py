"""The language of code and documents: names of modules, first words of docstrings, words."""

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

import hermes_actor
import hermes_protocol

ROOT = Path(__file__).parents[2]

FIRST_WORDS = {"What", "Whatever", "Whoever", "Whether", "Which", "How", "Who", "Where", "When"}
FIRST_WORDS |= {"Why", "Whom", "Whose"}
"""No docstring begins with these: a function returns, opens, raises; a value is a noun."""

WORDS = {
    r"nobody|somebody|anybody|everybody|whoever": "name the process: client, writer, actor, caller",
    r"told": "notified, reported, returned",
    r"anew": "again; rebuild, restart, recreate",
    r"patience": "timeout",
    r"mend(?:s|ed|ing)?": "repair",
    r"strangers?": "foreign writer, client, process",
    r"houses?": "store; in the harness: sandbox",
    r"fold(?:s|ed|ing)?[ _]back": "checkpoint",
}
"""Each with the words to use in its place. Comments, strings and identifiers are held to them."""

NOUNS = {"formatting", "framing", "listing", "ranking", "recording", "string"}
"""Endings of module names that look like gerunds and are nouns of the field."""

KEPT = {
    'name="patience"': "the key of a timeout on the wire, which never changes",
    '"mended"': "a key of the JSON that `repair --json` prints, which scripts read",
}
"""Words of formats, and why they stay."""

_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])")
_WORDS = re.compile(rf"(?<![A-Za-z])(?:{'|'.join(WORDS)})(?![A-Za-z])", re.IGNORECASE)


def _files_by_package():
    """Every Python file of both packages, by the folder below ``hermes_actor``."""
    files = {"hermes_protocol": sorted(Path(hermes_protocol.__file__).parent.rglob("*.py"))}
    folder = Path(hermes_actor.__file__).parent
    for file in sorted(folder.rglob("*.py")):
        parts = file.relative_to(folder).parts
        files.setdefault(parts[0] if len(parts) > 1 else "top level", []).append(file)
    return files


def _files_around():
    """Every Python file of the tests and of stress/, by folder."""
    files = {}
    for folder in ("tests", "stress"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            if file != Path(__file__):  # the words themselves
                files.setdefault(str(file.parent.relative_to(ROOT)), []).append(file)
    return files


def _pages():
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("protocol/*.md")]
    return {str(page.relative_to(ROOT)): page for page in sorted(pages)}


def bad_words(text):
    """(line number, word) of each word of ``WORDS`` in *text*, in snake and camel case too."""
    return [
        (number, match.group())
        for number, line in enumerate(text.splitlines(), 1)
        for match in _WORDS.finditer(_HUMP.sub(" ", line))
    ]


def prose_of(text):
    """*text* of a page without its code, line by line: names on the wire stay what they are."""
    text = re.sub(
        r"^ *```.*?^ *```$", lambda m: "\n" * m[0].count("\n"), text, flags=re.MULTILINE | re.DOTALL
    )
    return re.sub(r"`[^`\n]*`", "", text)


def prose_of_code(text):
    """(line number, text) of comments, docstrings, messages of errors, names of functions, classes.

    Variables and other strings are left out: they hold answers and programs of the tests.
    """
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Expr(value=ast.Constant(value=str() as said)):
                yield node.lineno, said
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.lineno, node.name
            case ast.Assert(msg=ast.AST() as message) | ast.Raise(exc=ast.AST() as message):
                for part in ast.walk(message):
                    if isinstance(part, ast.Constant) and isinstance(part.value, str):
                        yield part.lineno, part.value


def bad_docstrings(tree):
    """(line number, first word) of each docstring, of an attribute too, in ``FIRST_WORDS``."""
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str() as text)):
                first = re.match(r"\W*(\w*)", text).group(1)
                if first in FIRST_WORDS:
                    yield node.lineno, first


def is_gerund(module):
    return module.endswith("ing") and module.rpartition("_")[2] not in NOUNS


def findings_of_code(file):
    text = file.read_text(encoding="utf-8")
    name = file.relative_to(ROOT)
    if is_gerund(file.stem):
        yield f"{name}: the name of a module is a noun, not a gerund"
    for line, word in bad_docstrings(ast.parse(text)):
        yield f"{name}:{line}: a docstring begins with {word!r}"
    for kept in KEPT:
        text = text.replace(kept, "")
    for line, word in bad_words(text):
        yield f"{name}:{line}: {word!r}, use: {instead_of(word)}"


def findings_around(file):
    name = file.relative_to(ROOT)
    if is_gerund(file.stem):
        yield f"{name}: the name of a module is a noun, not a gerund"
    for first, text in prose_of_code(file.read_text(encoding="utf-8")):
        for line, word in bad_words(text):
            yield f"{name}:{first + line - 1}: {word!r}, use: {instead_of(word)}"


def instead_of(word):
    return next(use for form, use in WORDS.items() if re.fullmatch(form, word, re.IGNORECASE))


@pytest.mark.parametrize("package", _files_by_package())
def test_code_is_written_in_the_words_of_the_field(package):
    files = _files_by_package()[package]
    findings = [one for file in files for one in findings_of_code(file)]
    assert not findings, "\n".join(findings)


@pytest.mark.parametrize("folder", _files_around())
def test_tests_and_jobs_are_written_in_the_words_of_the_field(folder):
    findings = [one for file in _files_around()[folder] for one in findings_around(file)]
    assert not findings, "\n".join(findings)


@pytest.mark.parametrize("page", _pages())
def test_documents_are_written_in_the_words_of_the_field(page):
    found = bad_words(prose_of(_pages()[page].read_text(encoding="utf-8")))
    lines = [f"{page}:{line}: {word!r}, use: {instead_of(word)}" for line, word in found]
    assert not lines, "\n".join(lines)


def test_the_rules_find_what_they_are_for():
    assert [word for _, word in bad_words("if nobody_serves: NobodyServes  # told Whoever")] == [
        "nobody",
        "Nobody",
        "told",
        "Whoever",
    ]
    assert bad_words("recommend, amendment, household, untold") == []
    page = "told `patience`\n```json\npatience\n```\nanew"
    assert bad_words(prose_of(page)) == [(1, "told"), (5, "anew")]
    source = 'def f():\n    """Whether it is."""\nx = 1\n"""How many."""\ny = """What."""\n'
    assert sorted(bad_docstrings(ast.parse(source))) == [(2, "Whether"), (4, "How")]
    source = (
        'def nobody_comes():\n    """Told."""\n    told = "told"  # anew\n'
        '    assert told, f"somebody {told}"\n    raise ValueError("patience")\n'
    )
    found = [(line, word) for line, text in prose_of_code(source) for _, word in bad_words(text)]
    assert sorted(found) == [
        (1, "nobody"),
        (2, "Told"),
        (3, "anew"),
        (4, "somebody"),
        (5, "patience"),
    ]
    assert is_gerund("opening")
    assert is_gerund("fork_testing")
    assert not is_gerund("framing_table")
