"""Cron expressions beside a model that looks at every day: ranges, steps, both fields of days."""

import random
from datetime import UTC, datetime, timedelta

import pytest

from hermes_actor.agents import cron
from hermes_actor.errors import BadValue

FORM = "%Y-%m-%dT%H:%M:%S.%fZ"


def values_of(text, low, high):
    found = set()
    for part in text.split(","):
        body, _, step = part.partition("/")
        if body == "*":
            first, last = low, high
        elif "-" in body:
            first, last = map(int, body.split("-"))
        else:
            first, last = int(body), high if step else int(body)
        found |= set(range(first, last + 1, int(step or 1)))
    return found


def modelled(expression, after):
    """The first matching minute after a time, from five fields of numbers."""
    minute, hour, day, month, weekday = expression.split()
    minutes, hours = values_of(minute, 0, 59), values_of(hour, 0, 23)
    days, months = values_of(day, 1, 31), values_of(month, 1, 12)
    weekdays = {number % 7 for number in values_of(weekday, 0, 7)}
    start = datetime.strptime(after, FORM).replace(tzinfo=UTC, second=0, microsecond=0)
    start += timedelta(minutes=1)
    date = start.replace(hour=0, minute=0)
    for _ in range(9 * 366):
        both = (date.day in days, (date.weekday() + 1) % 7 in weekdays)
        either = day != "*" and weekday != "*"
        if date.month in months and (any(both) if either else all(both)):
            for hour_ in sorted(hours):
                for minute_ in sorted(minutes):
                    found = date.replace(hour=hour_, minute=minute_)
                    if found >= start:
                        return found.strftime("%Y-%m-%dT%H:%M:00.000Z")
        date += timedelta(days=1)
    return None


def drawn_field(chance, low, high):
    first, last = sorted((chance.randint(low, high), chance.randint(low, high)))
    return chance.choice((
        "*", str(first), f"*/{chance.choice((2, 3, 5, 7, 10, 15))}", f"{first}-{last}",
        f"{first}-{first}", f"{first},{last}", f"{first}-{last}/{chance.choice((2, 3, 7))}",
        f"{low}-{high}",
    ))  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
def test_next_time_is_that_of_the_model(seed):
    chance = random.Random(seed)
    for _ in range(250):
        bounds = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
        expression = " ".join(drawn_field(chance, *both) for both in bounds)
        seconds = chance.randrange(4 * 366 * 86400) + chance.random()
        after = datetime(2024, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
        text = after.strftime("%Y-%m-%dT%H:%M:%S.") + f"{after.microsecond // 1000:03}Z"
        assert cron.following(expression, text) == modelled(expression, text), (expression, text)


@pytest.mark.parametrize(
    ("expression", "after", "following"),
    [
        # A range of one value is that value, not every one.
        ("0 9-9 * * *", "2026-01-01T00:00:00.000Z", "2026-01-01T09:00:00.000Z"),
        ("0 9 * * MON-mon", "2026-01-01T00:00:00.000Z", "2026-01-05T09:00:00.000Z"),
        ("00 09-9 * * *", "2026-01-01T10:00:00.000Z", "2026-01-02T09:00:00.000Z"),
        # 2100 is no leap year, and the search does not end before 2104.
        ("0 0 29 2 *", "2096-03-01T00:00:00.000Z", "2104-02-29T00:00:00.000Z"),
        ("*/7 * * * *", "2026-01-01T00:56:00.000Z", "2026-01-01T01:00:00.000Z"),
        ("0 0 29 2 1", "2026-01-31T00:00:00.000Z", "2026-02-02T00:00:00.000Z"),
        ("0 0 15W * *", "2026-08-01T00:00:00.000Z", "2026-08-14T00:00:00.000Z"),
        ("0 0 ? * MON", "2026-02-01T00:00:00.000Z", "2026-02-02T00:00:00.000Z"),
        # UTC: no hour is missing or there twice when clocks are changed.
        ("30 1,2 29 3 *", "2026-03-29T01:30:00.000Z", "2026-03-29T02:30:00.000Z"),
        ("30 2 25 10 *", "2026-10-25T02:30:00.000Z", "2027-10-25T02:30:00.000Z"),
    ],
)
def test_edges(expression, after, following):
    assert cron.following(expression, after) == following


@pytest.mark.parametrize(
    "text",
    ["1," * 2**20 + "1 * * * *", "R * * * *", "R(0-9) * * * *", "H * * * *", "* * * * */0", "@R"],
)
def test_times_of_chance_are_not_understood(text):
    with pytest.raises(BadValue, match="invalid cron expression"):
        cron.check(text)
