"""The figures and bars of insights, as printed."""

import json

import pytest
from support.cli_home import DAY, NOW, called, said

from hermes_actor.cli.output.formatting import short_duration
from hermes_actor.cli.sessions.insights import bars


def test_insights_without_sessions_say_so(home):
    home.add("s", "x")
    found = home("insights", "--source", "none")
    assert found == (0, "  No sessions found in the last 30 days (source: none).\n", "")
    empty = home("insights", "--source", "none", "--json").json
    assert empty["empty"] is True
    assert "generated_at" not in empty
    assert empty["skills"]["summary"]["total_skill_actions"] == 0


def test_insights_draw_bars_to_scale():
    assert [len(bar) for bar in bars([5, 0, 0, 0, 1, 1, 2])] == [15, 0, 0, 0, 3, 3, 6]


def test_insights_count_the_longest_streak(home):
    for day in (0, 1, 2, 3, 6):
        home.add(f"s{day}", started=day * DAY)
    found = home("insights", "--json").json["activity"]
    assert (found["max_streak"], found["active_days"]) == (4, 5)
    assert "  Best streak: 4 consecutive days" in home("insights").lines


def test_insights_rank_tools(home):
    home.add("s", called("terminal", "read_file"), said("tool", "x", tool_name="terminal"))
    assert home("insights", "--json").json["tools"] == [
        {"tool": "read_file", "count": 1, "percentage": 50.0},
        {"tool": "terminal", "count": 1, "percentage": 50.0},
    ]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        pytest.param(59.6, "60s", id="seconds"),
        pytest.param(90, "2m", id="minutes"),
        pytest.param(3660, "1h 1m", id="hours"),
        pytest.param(129600, "1.5d", id="days"),
        (7200, "2h"),
    ],
)
def test_durations(seconds, text):
    assert short_duration(seconds) == text


def test_insights_show_platforms_only_if_there_is_more_than_the_terminal(home):
    home.add("s", "x")
    assert "Platforms" not in home("insights").out
    home.add("t", "x", source="telegram")
    assert "📱 Platforms" in home("insights").out


def skill(tool, name):
    arguments = json.dumps({"name": name})
    call = {"id": "c", "type": "function", "function": {"name": tool, "arguments": arguments}}
    return {"role": "assistant", "tool_calls": [call]}


def test_report_whole(home):
    home.add("20260301_090000_bbbbbb", "q", called("read_file", content="a"),
             said("tool", "x", tool_name="read_file"), skill("skill_view", "pdf"), started=DAY,
             ended=DAY - 3600, model="anthropic/claude-sonnet-4.6",
             tokens={"input_tokens": 6000, "output_tokens": 1000, "cache_read_tokens": 500,
                     "estimated_cost_usd": 1.25})  # fmt: skip
    home.add("20260302_090000_cccccc", "q", started=3600, source="telegram",
             tokens={"input_tokens": 30})  # fmt: skip
    home.add("20250101_000000_oooooo", "old", started=40 * DAY)
    assert (
        home("insights", "--top", 1).out
        == """\

  ╔══════════════════════════════════════════════════════╗
  ║                  📊 Hermes Insights                  ║
  ║                     Last 30 days                     ║
  ╚══════════════════════════════════════════════════════╝

  Period: Mar 01, 2026 — Mar 02, 2026

  📋 Overview
  ────────────────────────────────────────────────────────
  Sessions:          2             Messages:        5
  Tool calls:        2             User messages:   2
  Input tokens:      6,030         Output tokens:   1,000
  Total tokens:      7,530
  Active time:       ~1h           Avg session:     ~1h
  Avg msgs/session:  2.5

  🤖 Models Used
  ────────────────────────────────────────────────────────
  Model                          Sessions       Tokens
  claude-sonnet-4.6                     1        7,500
  unknown                               1           30

  💰 Cost
  ────────────────────────────────────────────────────────
  Model                                  Cost  Status
  claude-sonnet-4.6                   $1.2500  estimated
  unknown                             $0.0000  estimated
  Total                               $1.2500

  📱 Platforms
  ────────────────────────────────────────────────────────
  Platform       Sessions   Messages         Tokens
  cli                   1          4          7,500
  telegram              1          1             30

  🔧 Top Tools
  ────────────────────────────────────────────────────────
  Tool                            Calls        %
  read_file                           1    50.0%
  skill_view                          1    50.0%

  🧠 Skills
  ────────────────────────────────────────────────────────
  Skill                          Loads   Edits   Last used
  pdf                                1       0      Mar 01
  1 skills, 1 loads, 0 edits

  📈 Trend by Day
  ────────────────────────────────────────────────────────
  Sessions  ██  at most 1 a day
  Tokens    █▁  at most 7,500 a day
  Cost      █▁  at most $1.25 a day
  2026-03-01 to 2026-03-02

  📅 Activity Patterns
  ────────────────────────────────────────────────────────
  Mon  ███████████████ 1
  Tue                  0
  Wed                  0
  Thu                  0
  Fri                  0
  Sat                  0
  Sun  ███████████████ 1

  Peak hours: 9AM (1), 10AM (1)
  Active days: 2
  Best streak: 2 consecutive days

  🏆 Notable Sessions
  ────────────────────────────────────────────────────────
  Longest session  1h               Mar 01  20260301_090000_bbbbbb
  Most messages    4 msgs           Mar 01  20260301_090000_bbbbbb
  Most tokens      7,000 tokens     Mar 01  20260301_090000_bbbbbb
  Most tool calls  2 calls          Mar 01  20260301_090000_bbbbbb

  📈 Sessions by Tokens
  ────────────────────────────────────────────────────────
          Tokens       Cost  Session
           7,500    $1.2500  20260301_090000_bbbbbb

"""
    )


def test_window_by_session_and_by_scan_agree(home):
    for number in range(6):
        home.add(f"s{number}", "q", called("terminal"), started=number * 10 * DAY)
    for days, sessions in ((365, 6), (45, 5), (5, 1)):
        found = home("insights", "--days", days, "--json").json
        assert found["overview"]["total_sessions"] == sessions
        assert found["overview"]["user_messages"] == sessions
        assert found["tools"] == [{"tool": "terminal", "count": sessions, "percentage": 100.0}]


def test_broken_tool_calls_do_not_cost_the_report(home):
    home.add("s", "q", called("terminal"))
    with home.store() as db:
        db._conn.execute("UPDATE messages SET tool_calls = '[{broken' WHERE role = 'assistant'")
    assert home("insights", "--json").json["tools"] == []


def test_generated_at(home):
    home.add("s", "q")
    assert home("insights", "--json").json["generated_at"] == NOW
