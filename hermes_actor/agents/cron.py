"""Cron expressions in UTC: five fields, six with seconds first, seven with the year last."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

from hermes_actor.agents.times import canonical, parsed
from hermes_actor.errors import BadValue, MissingDriver

__all__ = ["BACKOFF_SECONDS", "check", "following", "next_after_error"]

BACKOFF_SECONDS = (30, 60, 300, 900, 3600)
"""Pause after the first, second, … failure in a row."""

_NICKNAMES = {
    "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *", "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0", "@daily": "0 0 * * *", "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}  # fmt: skip
_LAST_WEEKDAY = re.compile(r"\b([0-7]|SUN|MON|TUE|WED|THU|FRI|SAT)#L\b", re.IGNORECASE)
_PART = re.compile(r"([0-9A-Z]+)-([0-9A-Z]+)(?:/[0-9]+)?", re.IGNORECASE)
_WORD = re.compile(r"[A-Z]+")
_WORDS = {
    "JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC",
    "SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT", "L", "W",
}  # fmt: skip
_LONGEST = 255
"""Characters of an expression, as its column has; a long one takes seconds to be understood."""
_EVERY_WEEKDAY = ("0-6", "1-7", "0-7", "SUN-SAT", "MON-SUN")
_YEARS = 10
"""Search this far ahead: a leap day may be eight years away."""


def check(expression: str) -> None:
    """Raise :class:`BadValue` unless *expression* can be understood."""
    _iterator(expression, datetime(2026, 1, 1, tzinfo=UTC))


def following(expression: str, after: str) -> str | None:
    """Return the first matching second later than *after*; ``None`` if there is none.

    Raises :class:`BadValue` for an expression that cannot be understood.
    """
    # Whole seconds: a match at the second of *after* itself would lie before it.
    start = parsed(after).replace(microsecond=0)
    found = _iterator(expression, start)
    try:
        value = found.get_next(datetime)
    except Exception as error:
        if "Croniter" in type(error).__name__:
            return None
        raise
    return canonical(value.astimezone(UTC))


def next_after_error(expression: str, now: str, errors: int) -> str | None:
    """Return the next time after a failure that *errors* others came before."""
    natural = following(expression, now)
    if natural is None:
        return None
    pause = BACKOFF_SECONDS[min(errors, len(BACKOFF_SECONDS) - 1)]
    return max(natural, canonical(parsed(now) + timedelta(seconds=pause)))


def _iterator(expression: str, start: datetime) -> Any:
    try:
        from croniter import croniter  # type: ignore[import-untyped]
    except ModuleNotFoundError as error:
        raise MissingDriver(
            "schedules need the Python package croniter; install it with:"
            " pip install 'hermes-actor[agents]'"
        ) from error
    if not isinstance(expression, str):
        raise _not_understood(repr(expression))
    if len(expression) > _LONGEST:
        raise _not_understood(expression)
    fields = _NICKNAMES.get(expression.strip().lower(), expression).split()
    words = {word for field in fields for word in _WORD.findall(field.upper())}
    # croniter knows R, a time of chance: the next one would be another at every look.
    if len(fields) not in (5, 6, 7) or "+" in "".join(fields) or not words <= _WORDS:
        raise _not_understood(expression)
    days = _LAST_WEEKDAY.sub(lambda found: f"L{_number(found[1])}", fields[_weekday(fields)])
    fields[_weekday(fields)] = days
    fields = [",".join(map(_without_range_of_one, field.split(","))) for field in fields]
    _free_days(fields)
    try:
        return croniter(
            " ".join(fields), start, second_at_beginning=True, max_years_between_matches=_YEARS
        )
    except Exception:
        raise _not_understood(expression) from None


def _without_range_of_one(part: str) -> str:
    """Return ``9`` for ``9-9``, which croniter takes for every value."""
    found = _PART.fullmatch(part)
    if found is None:
        return part
    first, last = (text.lstrip("0").upper() or "0" for text in found.groups())
    return first if first == last else part


def _free_days(fields: list[str]) -> None:
    """Free both fields of days where one that is restricted names every day.

    Either may match then; croniter takes such a field for ``*``, beside which both must match.
    """
    week = _weekday(fields)
    month = week - 2
    if not {"*", "?"}.isdisjoint((fields[week], fields[month])):
        return
    if fields[week].upper() in _EVERY_WEEKDAY or fields[month] == "1-31":
        fields[week] = fields[month] = "*"


def _weekday(fields: list[str]) -> int:
    """Return the place of the day of the week: the last field, or the one before the year."""
    return {5: 4, 6: 5, 7: 5}[len(fields)]


def _number(day: str) -> int:
    if day.isdigit():
        return int(day) % 7
    return ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT").index(day.upper())


def _not_understood(expression: str) -> BadValue:
    return BadValue(
        f"invalid cron expression {expression[:80]!r}; write for example '0 9 * * MON-FRI'"
    )
