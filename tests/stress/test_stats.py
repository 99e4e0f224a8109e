"""The figures of the code: measured on a small tree whose figures are known."""

import json
from pathlib import Path

import stats

ROOT = Path(__file__).parents[2]

FILES = {
    "hermes_actor/__init__.py": '"""A package."""\n',
    "hermes_actor/a.py": (
        '"""What it is."""\n\nfrom hermes_actor import b\n\n\n'
        'def public() -> None:\n    """Return nothing."""\n    b.late()\n'
    ),
    "hermes_actor/b.py": (
        "# Nobody reads this.\nimport os  # nor this\n\n\n"
        "def late():\n    from hermes_actor import a\n    return a, os\n"
    ),
    "hermes_actor/engine/opening.py": (
        '"""Open it."""\n\nfrom hermes_actor.a import public\n\nX = public\n'
    ),
    "protocol/hermes_protocol/__init__.py": "",
    "tests/test_a.py": "def test_a():\n    assert 1\n",
    "tests/conftest.py": "def a() -> int:\n    return 1\n",
    "stress/job.py": "Y = 1\n",
}


def write(root):
    for name, text in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_figures_of_a_small_tree(tmp_path):
    figures = stats.measure(write(tmp_path))
    whole = figures["packages"]["hermes_actor"]
    assert (whole["modules"], whole["lines"]) == (4, 21)
    assert whole["module"] == [6, 7, 8]
    assert whole["function"] == [3, 3, 3]
    assert (whole["typed"], whole["documented"], whole["public"]) == (50, 50, 3)
    assert whole["comments"] == 7.1  # one of 14
    assert figures["packages"]["engine"]["modules"] == 1
    assert (figures["packages"]["tests"]["modules"], figures["packages"]["tests"]["typed"]) == (
        1,
        0,
    )
    assert figures["packages"][stats.SUPPORT]["typed"] == 100
    graph = figures["graph"]
    assert (graph["edges"], graph["late edges"]) == (2, 1)
    assert (graph["cycles at import"], graph["cycles with late imports"]) == ([], [2])
    assert graph["imported by exactly one"] == 2
    signs = figures["signs"]
    assert signs["modules with a name in -ing"] == [1, 3]
    assert signs["docstrings that begin with What, Whether, How …"] == [1, 4]
    assert signs["nobody, per 10,000 words"] > 0
    assert figures["folders"] == {"hermes_actor": 2, "hermes_actor/engine": 1}


def test_tables_show_both_columns(tmp_path, capsys):
    saved = ROOT / "docs/design/figures/code-2b46512.json"
    stats.main(["--root", str(write(tmp_path)), "--beside", str(saved)])
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("| hermes_actor | 286 → 4 | 40,827 → 21 |") for line in lines)
    assert "| edges | 1,238 | 2 |" in lines


def test_saved_figures_have_the_shape_of_new_ones(tmp_path, capsys):
    stats.main(["--root", str(write(tmp_path)), "--json"])
    new = json.loads(capsys.readouterr().out)
    old = json.loads((ROOT / "docs/design/figures/code-2b46512.json").read_text())
    assert new.keys() == old.keys()
    for part in ("graph", "signs"):
        assert new[part].keys() == old[part].keys()
    assert new["packages"]["hermes_actor"].keys() == old["packages"]["hermes_actor"].keys()
