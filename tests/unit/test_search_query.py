"""Queries as typed become FTS5 expressions that cannot fail; the right index is chosen."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_actor.store.search.query import (
    Plan,
    Route,
    contains_cjk,
    count_cjk,
    is_cjk,
    plan_query,
    sanitize,
)

SANITIZED = [
    ("red blue", "red blue"),
    ("  red   blue ", "red   blue"),
    ("C++", "C"),
    ('"open', "open"),
    ("(half", "half"),
    ("{braces}", "braces"),
    ("^foo", "foo"),
    ("foo^2", "foo 2"),
    ("a + b", "a   b"),
    ("NEAR(a b)", "NEAR a b"),
    ("x OR(y)", "x OR y"),
    ("red AND", "red"),
    ("red and", "red"),
    ("OR blue", "blue"),
    ("NOT foo", "foo"),
    ("NOT(x)", "x"),
    ("AND", ""),
    ("not a", "a"),
    ("NOT NOT a", "NOT a"),
    ("AND OR foo", "OR foo"),
    ("foo AND OR", "foo AND"),
    ("a AND OR b", "a AND OR b"),
    ("android", "android"),
    ("AND-x", "-x"),
    ("and.x y", ".x y"),
    ('"AND"', '"AND"'),
    ('"a" AND', '"a"'),
    ("***", ""),
    ("build*", "build*"),
    ("*build", "build"),
    ("bui*ld", "bui*ld"),
    ("build** x", "build* x"),
    ("foo *", "foo"),
    ("a * * b", "a   b"),
    ('"two words"', '"two words"'),
    ('"two words" more', '"two words" more'),
    ('"a" OR "b"', '"a" OR "b"'),
    ('"a b" "c', '"a b"  c'),
    ('""', '""'),
    ('"" x', '"" x'),
    ('foo"bar"baz', 'foo"bar"baz'),
    ('x" y "z', 'x" y "z'),
    ("left-pad", '"left-pad"'),
    ("why left-pad broke", 'why "left-pad" broke'),
    ("left-pad OR is-odd", '"left-pad" OR "is-odd"'),
    ('"a left-pad b"', '"a left-pad b"'),
    ('foo-"bar-baz"', 'foo-"bar-baz"'),
    ("K8.1", '"K8.1"'),
    ("1.5", '"1.5"'),
    ("v1.2.3-rc.1", '"v1.2.3-rc.1"'),
    ("web-ui.main.js", '"web-ui.main.js"'),
    ("ab_cd", '"ab_cd"'),
    ("a_b_c", '"a_b_c"'),
    ("a__b", '"a__b"'),
    ("_a_b", '"_a_b"'),
    ("_foo", "_foo"),
    ("foo_", "foo_"),
    ("foo_bar_", '"foo_bar_"'),
    ("__init__", '"__init__"'),
    ("foo-", "foo-"),
    ("-foo", "-foo"),
    ("-a-b", '-"a-b"'),
    ("a-b-", '"a-b"-'),
    ("foo--bar", "foo--bar"),
    ("foo..bar", "foo..bar"),
    ("x.-y", "x.-y"),
    ("a.b:c-d", '"a.b":"c-d"'),
    ("résumé-naïve", '"résumé-naïve"'),
    ("北京-烤鸭", '"北京-烤鸭"'),
    ("ab_cd and 万里长城", '"ab_cd" and 万里长城'),
    ('"北京烤鸭"', '"北京烤鸭"'),
    ("90%完成", "90%完成"),
    ("user@example.com", 'user@"example.com"'),
    ("path/to/file.py", 'path/to/"file.py"'),
    ("a:b", "a:b"),
    ("content:nginx", "content:nginx"),
    ("don't", "don't"),
    ("what?", "what?"),
    ("red, blue", "red, blue"),
    ("50%", "50%"),
    ("\\d+", "\\d"),
]

CJK_RANGES = [
    (0x3000, 0x303F),
    (0x3040, 0x309F),
    (0x30A0, 0x30FF),
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xAC00, 0xD7AF),
    (0x20000, 0x2A6DF),
]

# The first three ranges follow each other, so only these have outsiders next to both ends.
LONELY_RANGES = [(0x3000, 0x30FF), *CJK_RANGES[3:]]


def test_table_is_whole():
    assert len(SANITIZED) == len({query for query, _ in SANITIZED}) == 81


@pytest.mark.parametrize(("query", "clean"), SANITIZED, ids=[query for query, _ in SANITIZED])
def test_sanitized(query, clean):
    assert sanitize(query) == clean


@given(
    st.lists(
        st.sampled_from(["red", "left-pad", "*", "AND", '"', '"a-b"', "(", "^", " ", "北京", "9"]),
        max_size=8,
    )
)
def test_every_pair_of_quotes_comes_back_with_its_text(parts):
    query = "".join(parts)
    phrases = query.split('"')[1::2]
    if query.count('"') % 2:
        phrases.pop()
    left = sanitize(query)
    for phrase in phrases:
        quoted = f'"{phrase}"'
        assert quoted in left
        left = left[left.index(quoted) + len(quoted) :]


@pytest.mark.parametrize(("low", "high"), CJK_RANGES)
def test_range_is_cjk_from_end_to_end(low, high):
    assert all(map(is_cjk, range(low, high + 1)))


def test_nothing_else_is_cjk():
    inside = sum(high - low + 1 for low, high in CJK_RANGES)
    assert sum(map(is_cjk, range(0x110000))) == inside
    for low, high in LONELY_RANGES:
        assert not is_cjk(low - 1)
        assert not is_cjk(high + 1)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 0),
        ("abc", 0),
        ("é", 0),
        ("，", 0),
        ("😀", 0),
        ("北", 1),
        ("a北b京", 2),
        ("かナ한𠀀〇", 5),
    ],
)
def test_cjk_characters_are_counted(text, count):
    assert count_cjk(text) == count
    assert contains_cjk(text) is (count > 0)


@pytest.mark.parametrize("query", [None, "", "  ", "***", "AND", "( ) { }", "\n\t"])
def test_nothing_to_look_for_has_no_plan(query):
    assert plan_query(query) is None


@pytest.mark.parametrize(
    ("query", "match"),
    [
        ("red blue", "red blue"),
        ("left-pad OR x", '"left-pad" OR x'),
        ("a，b", "a，b"),  # a full-width comma is not CJK
        ("résumé", "résumé"),
    ],
)
def test_words_go_to_the_word_index_as_sanitized(query, match):
    assert plan_query(query) == Plan(Route.WORDS, match)


@pytest.mark.parametrize(
    ("query", "match"),
    [
        ("北京烤鸭", '"北京烤鸭"'),
        ("北京烤", '"北京烤"'),
        ("北京烤鸭 AND 已经订好了", '"北京烤鸭" AND "已经订好了"'),
        ("北京烤鸭 and 已经订好了", '"北京烤鸭" and "已经订好了"'),
        ("北京烤鸭 NOT zz", '"北京烤鸭" NOT "zz"'),
        ("北京烤鸭 nginx", '"北京烤鸭" "nginx"'),
        ("bob的旅行", '"bob的旅行"'),
        ("北京烤鸭*", '"北京烤鸭*"'),
        ('"北京烤鸭"', '"北京烤鸭"'),
        ('"北京烤鸭" "订好了"', '"北京烤鸭""" """订好了"'),
        ("北京-烤鸭", '"北京-烤鸭"'),
    ],
)
def test_three_characters_in_every_cjk_token_go_to_the_trigrams(query, match):
    assert plan_query(query) == Plan(Route.TRIGRAMS, match)


@pytest.mark.parametrize(
    ("query", "terms"),
    [
        ("北", ("北",)),
        ("北京", ("北京",)),
        ("BOB说", ("BOB说",)),  # three characters, one of them CJK
        ("北京 NOT 烤鸭", ("北京", "烤鸭")),
        ("北京 not 烤鸭", ("北京", "烤鸭")),
        ("北京 nginx", ("北京", "nginx")),
        ("北京烤鸭 北京", ("北京烤鸭", "北京")),  # one short token takes the long one along
        ('"北京 烤鸭"', ("北京", "烤鸭")),
        ("90%好", ("90%好",)),
        ("90_好", ("90_好",)),
        ("x 。", ("x", "。")),
    ],
)
def test_a_shorter_cjk_token_goes_to_like(query, terms):
    assert plan_query(query) == Plan(Route.LIKE, "", terms)


@pytest.mark.parametrize(
    "query",
    [
        "a" + " " * 200_000 + "b",
        '"a" ' * 50_000,
        "a." * 100_000,
        "a " * 100_000 + "AND",
        "* " * 100_000,
    ],
    ids=["blanks", "phrases", "joined", "words", "stars"],
)
def test_a_long_query_is_cleaned_in_one_pass(query):
    """Quadratic patterns took minutes for these; the timeout of the tests is the limit."""
    assert sanitize(query) is not None
