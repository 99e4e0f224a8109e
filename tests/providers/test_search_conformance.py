"""The same messages, the same queries: every server finds what a file finds.

Differences are listed with their reason, and a difference that is gone must leave the list.
"""

import pytest
from support.stores import SERVERS, Stores, chosen_kinds

from hermes_actor import SessionDB

MESSAGES = [
    "the quick brown fox", "who are you", "it will be done with this", "to be or not to be",
    "run the docker-compose up command", "docker compose down",
    "path is /usr/local/bin/python3.11", "version 3.11.7 released",
    "email me at foo@example.com please", "https://example.com/a/b?c=d",
    "snake_case_name and camelCaseName", "don't panic", "C++ and C# and F#",
    "café résumé naïve", "cafe resume naive", "CAFÉ", "日本語のテキスト", "磁盘已满 docker",
    "한국어 텍스트", "emoji 🎉 party 👨‍👩‍👧", "1,000.50 dollars", "running runs ran",
    "organization organize organs", "ＦＵＬＬwidth", "½ half", "straße", "STRASSE",
    "Привет мир", "ПРИВЕТ", "مرحبا بالعالم", "שלום עולם", "नमस्ते दुनिया", "a b c", "x1y2z3",
    "foo—bar em dash", "“smart quotes” here", "tab\tand\nnewline", "zero\u200bwidth",
    "ﬁ ligature", "the", "hello_world", "ünïcödé", "e\u0301clair combining", "thai ภาษาไทย",
    "10 20 30", "nul\x00after nul words", "\x1aescape", "ab", "ไทย", "under_score-dash.dot",
    "'quoted' \"double\"", "naïveté", "I've got it", "O'Reilly", "node.js", "ISO-8859-1",
    "state-of-the-art", "#hashtag @mention", "ΟΔΥΣΣΕΥΣ", "οδυσσευς", "Ǆ", "İstanbul", "istanbul",
    "Müller señor São", "мой ёлка нашей", "Việt Łódź Ångström", "x docker", "x install",
    "x online", "x format", "x candidate", "x notes", "x theory", "x happiness", "x 3rd",
    "x v2.0", "北京烤鸭很好吃", "大别野 fresh", "mixed 日本 words 中文 here", "東京タワー tower",
    " ".join(f"w{number}" for number in range(2000)),
]  # fmt: skip

WORDS = [
    "the", "who", "it", "will", "this", "not", "docker", "docker-compose", "compose",
    "python3", "3.11", "3.11.7", "11", "foo@example.com", "example", "example.com", "foo",
    "https", "snake_case_name", "snake", "camelCaseName", "don't", "don", "t", "C++", "C",
    "cafe", "CAFE", "resume", "🎉", "👨", "1,000.50", "000", "organize", "organization",
    "fullwidth", "ＦＵＬＬwidth", "½", "half", "strasse", "straße", "a", "b", "x1y2z3", "y2",
    "bar", "smart", "zerowidth", "zero", "ligature", "ﬁ", "fi", "hello", "world",
    "hello_world", "unicode", "eclair", "10", "20", "nul", "after", "escape", "ab", "score",
    "under_score", "terminal", "terminal_run", "read_file", "zebra", "structured", "I've",
    "O'Reilly", "node.js", "iso-8859-1", "state-of-the-art", "hashtag", "json", "text", "type",
    "run", "running", "quoted",
]  # fmt: skip
ACCENTED = [
    "café", "CAFÉ", "résumé", "naïve", "naïveté", "Müller", "muller", "señor", "senor", "São",
    "sao", "мой", "мои", "ёлка", "елка", "нашей", "Việt", "viet", "Łódź", "łódź", "Ångström",
    "angstrom", "ünïcödé", "éclair", "éclair", "привет", "Привет", "ПРИВЕТ", "مرحبا", "שלום",
    "नमस्ते", "दुनिया", "οδυσσευς", "ΟΔΥΣΣΕΥΣ", "istanbul", "İstanbul", "Ǆ", "ǆ",
]  # fmt: skip
STOP_WORDS = [
    "the NOT plain", "the NOT fox", "fox NOT the", "docker NOT the", "who OR fox", "to be",
    "to OR be", "docker AND what", '"what docker"', '"x the docker"', "it AND will", '"to be or"',
    '"be or not"', "this NOT will", "the AND quick", '"the quick"', "is", "are", "you", "with",
]  # fmt: skip
PREFIXES = [
    "do*", "in*", "on*", "for*", "can*", "not*", "the*", "doc*", "instal*", "happ*", "happine*",
    "runn*", "bro*", "naive*", "naï*", "x1*", "caf*", "café*", '"x do"*', '"quick bro"*',
    '"x the"*', "doc* OR in*", "x NOT do*", "doc* AND comp*", '"docker comp"*', "Mül*", "при*",
    "w199*", "3*", "zz*",
]  # fmt: skip
CJK = [
    "日", "日本", "日本語", "語", "磁盘", "磁盘已满", "docker 磁盘", "한국어", "한국", "텍스트",
    "北京", "北京烤鸭", "烤鸭很", "大别野", "大别野 fresh", "中文", "東京", "東京タワー",
    "タワー", "日本 OR fox", "日本語 NOT fox", "北京烤鸭 OR 磁盘已满", "日本 words", "ไทย",
    "ภาษาไทย", "北京 中文", "日本語のテキスト", "很好吃", "タ", "東京タワー AND tower",
]  # fmt: skip
OPERATORS = [
    "quick OR docker", "quick AND fox", "quick NOT fox", '"brown fox"', '"fox brown"',
    "quick or docker", "NEAR(quick fox)", "content:quick", "^the", "(quick", "quick)", "*", '"',
    '""', "-", "--", "a-", "AND", "OR OR", "quick AND", "NOT quick", "quick AND AND fox",
    "quick fox OR docker", "quick OR fox AND docker", "x NOT docker NOT install",
    "x NOT (docker OR install)", "docker OR install OR online OR format", "party 🎉",
    '"docker compose" OR "brown fox"', '"docker compose" down', "x OR y OR z NOT docker",
    "a b c d e f", "fox docker", '"x docker" OR "x install" NOT online',
]  # fmt: skip
_many = [f"w{number}" for number in range(2000)]
LONG = [
    " ".join(_many), " OR ".join(_many), " AND ".join(_many), " NOT ".join(_many[:400]),
    " OR ".join(["nothing"] * 1999 + ["fox"]), f'"{" ".join(_many[:300])}"',
    " ".join(f"{one}*" for one in _many[:300]), "x" * 5000, "a " * 5000,
]  # fmt: skip
QUERIES = [*WORDS, *ACCENTED, *STOP_WORDS, *PREFIXES, *CJK, *OPERATORS, *LONG]

STEM = "PostgreSQL finds other forms of an English word, too"
DIFFERENCES = {
    "postgresql": dict.fromkeys(["run", "running", "quoted"], STEM),
    "mysql": {},
}


def fill(db):
    db.create_session("s", "cli")
    with db.pipeline() as p:
        for text in MESSAGES:
            p.append_message("s", "user", text)
        calls = [{"function": {"name": "read_file", "arguments": '{"p": "日本"}'}}]
        p.append_message("s", "assistant", "", tool_name="terminal_run", tool_calls=calls)
        p.append_message("s", "user", [{"type": "text", "text": "structured zebra"}])


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    db = SessionDB(tmp_path_factory.mktemp("file") / "state.db", mode="embedded")
    fill(db)
    yield db
    db.close()


@pytest.fixture(scope="module", params=[kind for kind in SERVERS if kind in chosen_kinds()])
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def server(kind):
    stores = Stores(kind)
    db = stores.open("store")
    fill(db)
    yield db
    stores.close()


def found(db, query):
    return sorted(hit["id"] for hit in db.search_messages(query, limit=200))


def test_there_are_enough_queries():
    assert len(set(QUERIES)) >= 200


def test_a_server_finds_what_a_file_finds(kind, file, server):
    listed = DIFFERENCES[kind]
    differing = {query for query in set(QUERIES) if found(file, query) != found(server, query)}
    assert {query[:80] for query in differing - listed.keys()} == set()
    assert listed.keys() - differing == set()


def test_stems_only_add_hits(kind, file, server):
    for query in DIFFERENCES[kind]:
        assert set(found(file, query)) < set(found(server, query))
