"""The figures of speed: their limits, and the one that needs no clock."""

from pathlib import Path

import pytest
import speed_goals
import writer_alone

STRESS = Path(speed_goals.__file__).parent


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("writes/s N=16", 6.9, ["MISS", "MISS"]),
        ("writes/s N=16", 7.0, ["ok", "MISS"]),
        ("writes/s N=16", 10.0, ["ok", "ok"]),
        ("import", 1.21, ["MISS", "MISS"]),
        ("import", 1.2, ["ok", "MISS"]),
    ],
)
def test_figure_stands_beside_its_limit_and_its_goal(name, value, words):
    line = speed_goals.judged(name, value)
    assert [word for word in line.split() if word in ("ok", "MISS")] == words


def test_every_goal_is_printed_by_a_benchmark():
    sources = {path: path.read_text() for path in STRESS.glob("*.py") if "goals" not in path.name}
    # Those of the table of writers have the names that it makes from their numbers.
    made = [name for name in speed_goals.GOALS if name.endswith(("N=1", "N=16"))]
    for name in set(speed_goals.GOALS) - {name for name in made if "writes/s" in name}:
        assert any(f'judged("{name}"' in text for text in sources.values()), name
    table = sources[STRESS / "writer_table.py"]
    assert 'f"writes/s N={count}"' in table
    assert 'f"pipeline writes/s N={count}"' in table
    assert "if name in speed_goals.GOALS" in table


def test_pages_of_a_lone_change(tmp_path, capsys):
    """They are counted and not timed, so they are the same on every machine, and may not grow."""
    figures, faults = writer_alone.pages(tmp_path)
    assert faults == []
    assert figures["frames"] <= 6.75
    assert sum(figures["tables"].values()) == pytest.approx(400 * figures["frames"])
    assert "WAL bytes of a change, N=1" in capsys.readouterr().out
