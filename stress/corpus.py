"""Realistic agent sessions for the benchmarks: the same seed gives the same text everywhere.

The sizes follow what agents write: user turns of 100–400 bytes, answers of 0.3–2 KB, tool results
of 0.5–2 KB, 2 % of the messages in Chinese. Words are drawn by Zipf's law, so that a search can
be for a common, a medium or a rare one. Nothing here touches a database.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    _Maker = Callable[[random.Random, int], str]

COMMON, MEDIUM, RARE = "error", "invoice", "zeppelin"
PHRASE, PREFIX = "connection refused by upstream", "deploy*"
CJK_FREQUENT, CJK_RARE, CJK_LONG, CJK_SINGLE = "数据", "骆驼", "机器学习", "网"
CJK_SHARE = 0.022  # of the texts; some messages have no text, so 2 % of the messages
EPOCH = 1_735_689_600.0  # 2025-01-01: a fixed year keeps every time stamp reproducible

# By falling frequency: function words first, as in English, then the trade's own vocabulary.
_HEAD = """
the to of and a in is it for that on with this as you be are have not from or was can by at we if
will an but your they all has one which there error what so when more about out up no do some
would into then them other its also been only were could should my how after our who than may
use file code test data run user time line check build set value message request response config
server call list function output input path branch log change commit service update version token
script table query report python agent session memory model search tool result step plan note task
"""
_LATER = ("deploy", "deployed", "deploying", "deployment", "deploys", MEDIUM)  # from rank 1000 on
_ONSETS = "b c d f g h l m n p r s t v w br ch cl dr fl gr pl pr sh sl st th tr"
_CODAS = ("", "", "", "n", "r", "l", "s", "t", "m", "nd", "st", "ck")
_ENDINGS = ("", "", "ing", "ed", "er", "ly", "ment", "s")
_CJK_HEAD = """
我们 今天 现在 时间 问题 方法 系统 数据 文件 代码 程序 用户 服务 测试 错误 结果 消息 请求 网络
更新 部署 配置 日志 需要 可以 已经 没有 因为 所以 如果 这个 什么 的 了 在 是 和 也 都 就 很 把
"""
_CJK_TAIL = [CJK_LONG, "人工智能", "自然语言", "软件工程", "万里长城", "北京烤鸭", "性能优化"]
_CJK_OTHER = "一不人有他大来上个国到说们为子你地出道年得里后自以会家下过天去能对小多然心学么之看起"
_TOOLS = {
    "terminal": 34, "read_file": 26, "web_search": 14, "patch": 9, "write_file": 7,
    "browser_navigate": 5, "delegate_task": 3, "memory": 2, "mcp_天气查询": 0.05,
}  # fmt: skip
_SOURCES = {"cli": 42, "telegram": 25, "discord": 20, "cron": 12, "acp": 0.5}
_MODELS = ("claude-opus-4.6", "gpt-5.2", "hermes-4-405b", "qwen3-235b", "gemini-3-pro")
_ENDS = ("cli_close", "tui_close", "new_session", "session_reset", "session_switch", None, None)


class Message(NamedTuple):
    """One message; `db.append_message(session_id, **message._asdict())` stores it."""

    role: str
    content: str | list[dict[str, Any]] | None
    tool_name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    token_count: int | None = None
    finish_reason: str | None = None
    reasoning: str | None = None


@dataclass(frozen=True, slots=True)
class Session:
    """One session row; `kind` is root, continuation, branch or delegate."""

    id: str
    kind: str
    source: str
    user_id: str | None
    model: str
    system_prompt: str
    parent: str | None
    started_at: float
    ended_at: float | None
    end_reason: str | None
    title: str | None


_Slot = tuple[str, int | None, str | None]  # kind, place of the parent, end reason


def _vocabulary() -> list[str]:
    rng, onsets = random.Random("vocabulary"), _ONSETS.split()
    found = dict.fromkeys(_HEAD.split())
    while len(found) < 11_000:
        parts = rng.choices(onsets, k=rng.choice((1, 2, 2, 3)))
        stem = "".join(part + rng.choice("aeiou") + rng.choice(_CODAS) for part in parts)
        found[stem + rng.choice(_ENDINGS)] = None
    ranked = list(found)
    ranked[1000 : 1000 + 100 * len(_LATER) : 100] = _LATER
    return ranked


def _chinese_vocabulary() -> list[str]:
    rng, head = random.Random("中文"), _CJK_HEAD.split()
    characters = sorted({*"".join(head), *_CJK_OTHER})
    pairs = ("".join(rng.sample(characters, 2)) for _ in range(900))
    return list(dict.fromkeys([*head, *pairs, *_CJK_TAIL]))


_WORDS = _vocabulary()
_WEIGHTS = list(accumulate((rank + 3.7) ** -1.07 for rank in range(len(_WORDS))))
_CHINESE = _chinese_vocabulary()
_CHINESE_WEIGHTS = list(accumulate((rank + 10) ** -0.7 for rank in range(len(_CHINESE))))


def words(rng: random.Random, size: int) -> str:
    """English-like sentences of about `size` bytes."""
    drawn = rng.choices(_WORDS, cum_weights=_WEIGHTS, k=size * 10 // 56 + 1)
    chance = rng.random()
    if chance < 0.00104:
        drawn.insert(len(drawn) // 2, PHRASE if chance < 0.001 else RARE)
    start = 0
    while start < len(drawn):
        drawn[start] = drawn[start].capitalize()
        stop = min(start + rng.randint(6, 15), len(drawn)) - 1
        drawn[stop] += rng.choice((".", ".", ".", "?", ":\n", ".\n\n"))
        start = stop + 1
    return " ".join(drawn)


def chinese(rng: random.Random, size: int) -> str:
    """Chinese sentences of about `size` characters."""
    drawn = rng.choices(_CHINESE, cum_weights=_CHINESE_WEIGHTS, k=size // 2)
    if rng.random() < 0.004:
        drawn.insert(len(drawn) // 3, CJK_RARE)
    for stop in range(rng.randint(4, 7), len(drawn), 6):
        drawn[stop] += rng.choice("，，。？")
    return "".join(drawn) + "。"


def tool_output(rng: random.Random, size: int) -> str:
    """What a tool prints: paths, line numbers, hashes and words."""
    lines: list[str] = []
    while sum(map(len, lines)) < size:
        folder, module = rng.choices(_WORDS, cum_weights=_WEIGHTS, k=2)
        mark = f" {rng.getrandbits(28):07x}" if rng.random() < 0.3 else ""
        text = words(rng, 60).replace("\n", " ")
        lines.append(f"src/{folder}/{module}.py:{rng.randint(1, 900)}: {text}{mark}")
    return "\n".join(lines)


def _text(rng: random.Random, low: int, high: int, make: _Maker = words) -> str:
    size = rng.randint(low, high)
    return chinese(rng, size // 3) if rng.random() < CJK_SHARE else make(rng, size)


def turn(rng: random.Random) -> list[Message]:
    """One exchange: the user's message, rounds of tool calls, the answer."""
    asked: str | list[dict[str, Any]] = _text(rng, 100, 400)
    chance = rng.random()
    if chance < 0.01:
        image = {"url": f"data:image/png;base64,{rng.randbytes(60).hex()}"}
        asked = [{"type": "text", "text": asked}, {"type": "image_url", "image_url": image}]
    elif chance < 0.02:
        asked = f"<memory-context>{words(rng, 80)}</memory-context>\n{asked}"
    result = [Message("user", asked)]
    for _ in range(rng.choice((0, 0, 1, 1, 2, 4))):
        name = rng.choices(list(_TOOLS), weights=list(_TOOLS.values()))[0]
        ident = f"call_{rng.getrandbits(48):012x}"
        detail = f'{{"path": "src/{rng.choice(_WORDS)}.py", "text": "{name} {ident[5:9]}"}}'
        call = {"id": ident, "type": "function", "function": {"name": name, "arguments": detail}}
        said = None if rng.random() < 0.4 else _text(rng, 300, 700)
        thought = words(rng, 200) if rng.random() < 0.2 else None
        printed = _text(rng, 500, 2000, tool_output)
        result.append(Message("assistant", said, None, [call], None, 90, "tool_calls", thought))
        result.append(Message("tool", printed, name, None, ident))
    answer = _text(rng, 300, 2000)
    return [*result, Message("assistant", answer, None, None, None, len(answer) // 4, "stop")]


def turns(rng: random.Random) -> Iterator[list[Message]]:
    """Exchanges without end."""
    while True:
        yield turn(rng)


def _shape(rng: random.Random, count: int) -> list[_Slot]:
    """Which session continues, forks or serves which: parents before children."""
    slots: list[_Slot] = []
    while len(slots) < count:
        here, end, chance = len(slots), rng.choice(_ENDS), rng.random()
        if chance < 0.05:
            links = range(here, here + rng.choice((1, 1, 2, 2, 3, 5)))
            slots.append(("root", None, "compression"))
            slots += [("continuation", i, "compression") for i in links]
            slots[-1] = ("continuation", links[-1], end)
        elif chance < 0.07:
            slots += [("root", None, "branched"), ("branch", here, end)]
        else:
            helpers = rng.randint(1, 3) if chance < 0.10 else 0
            slots += [("root", None, end), *[("delegate", here, "done")] * helpers]
    return slots[:count]


def _sizes(rng: random.Random, slots: list[_Slot], messages: int) -> list[int]:
    """How many messages each session gets: a skewed draw that adds up to `messages`."""
    factors = [3 if end == "compression" else rng.random() > 0.02 for _, _, end in slots]
    weights = [rng.lognormvariate(0, 0.8) * factor for factor in factors]
    scale = messages / sum(weights)
    marks = [0, *(round(mark * scale) for mark in accumulate(weights))]
    return [after - before for before, after in pairwise(marks)]


def _times(rng: random.Random, start: float, count: int, resumed: bool) -> list[float]:
    """When the messages came; a resumed session has one long pause in the middle."""
    gaps = [rng.expovariate(1 / 25) + 0.001 for _ in range(count)]
    if resumed and count > 4:
        gaps[count // 2] += rng.uniform(0.1, 20) * 86_400
    return list(accumulate(gaps, initial=start + 0.5))[1:]


def sessions(
    rng: random.Random, count: int, messages: int
) -> Iterator[tuple[Session, list[tuple[float, Message]]]]:
    """`count` sessions with `messages` messages in all, each with its time; parents come first."""
    slots = _shape(rng, count)
    starts = sorted(EPOCH + rng.random() * 365 * 86_400 for _ in slots)
    sizes, prompt = _sizes(rng, slots, messages), words(rng, 400)
    made: list[Session] = []
    for (kind, place, end), size, start in zip(slots, sizes, starts, strict=True):
        parent = None if place is None else made[place]
        title = " ".join(rng.sample(_WORDS, 3)).capitalize() if rng.random() < 0.6 else None
        source = rng.choices(list(_SOURCES), weights=list(_SOURCES.values()))[0]
        user = f"u{min(int(rng.paretovariate(0.7)), 400)}" if source == "telegram" else None
        if parent is not None:
            source = "tool" if kind == "delegate" else parent.source
            user, ended = parent.user_id, parent.ended_at or parent.started_at + 60
            within = parent.started_at + rng.random() * (ended - parent.started_at)
            start = within if kind == "delegate" else ended + rng.choice((0.0, 0.4, 1.7))
            if kind == "continuation" and parent.title:
                base, _, number = parent.title.partition(" #")
                title = f"{base} #{int(number or 1) + 1}"
        stamps = _times(rng, start, size, kind == "root" and rng.random() < 0.12)
        moment = datetime.fromtimestamp(start, UTC).strftime("%Y%m%d_%H%M%S")
        session = Session(
            f"{moment}_{rng.getrandbits(24):06x}", kind, source, user, rng.choice(_MODELS),
            prompt + words(rng, 300), parent.id if parent else None, start,
            max(stamps, default=start) + 0.25 if end else None, end, title,
        )  # fmt: skip
        made.append(session)
        flow = (message for exchange in turns(rng) for message in exchange)
        yield session, list(zip(stamps, flow, strict=False))
