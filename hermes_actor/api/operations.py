"""A writing method taken apart: the operation that it submits, and what it makes of the result.

Pipelines and the asynchronous shell send operations in their own ways, and must return exactly
what the method returns. So the method runs once, on a stand-in whose ``_submit`` keeps the
operation and answers with a placeholder; whatever the method returns is kept too. When the real
result is there, the placeholder is exchanged for it.

This is sound for methods that submit once and then return either something that does not come
from the result (an argument, ``None``) or the result or a field of it. Time and made-up ids are
taken in that single run. A placeholder refuses every other use with a ``TypeError``, so a method
that does more with its result cannot be in the list by mistake.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import msgspec

from hermes_actor.errors import OutcomeUnknown
from hermes_actor.store.surrogates import without_surrogates

if TYPE_CHECKING:
    from hermes_actor.api.base import Methods
    from hermes_protocol.operations import Operation

__all__ = ["ONE_CHANGE", "Change", "reason_for_all", "record"]

ONE_CHANGE = frozenset({
    "create_session", "ensure_session", "continue_session", "end_session", "reopen_session",
    "update_system_prompt", "update_token_counts", "set_session_title", "append_message",
    "replace_messages", "clear_messages", "set_meta", "vacuum", "request_handoff", "claim_handoff",
    "complete_handoff", "fail_handoff", "finalize_orphaned_compression_sessions",
    "apply_telegram_topic_migration", "enable_telegram_topic_mode",
    "disable_telegram_topic_mode", "bind_telegram_topic", "archive_session", "import_session",
    "queue_title", "move_session_title",
})  # fmt: skip
"""The methods of a SessionDB that do nothing but submit one operation."""

_encode = msgspec.msgpack.Encoder().encode


class Change(NamedTuple):
    """One operation, and what its method returns."""

    operation: Operation[Any]
    returned: Any

    def outcome(self, result: Any) -> Any:
        """What the method returns when the operation has *result*."""
        if not isinstance(self.returned, _Placeholder):
            return self.returned
        for name in self.returned._fields:
            result = getattr(result, name)
        return result


def record(db: Methods, name: str, /, *args: Any, **kwargs: Any) -> Change:
    """Run the method *name* of *db* without submitting anything.

    Raises what the method raises about its arguments, and what the encoder says about a value
    that cannot travel.
    """
    kind: Any = type(db)
    stand_in = _stand_in(kind)(db)
    returned = getattr(stand_in, name)(*args, **kwargs)
    if stand_in._operation is None:
        raise TypeError(f"{name} has not made a change")
    return Change(_storable(stand_in._operation), returned)


def _storable(operation: Operation[Any]) -> Operation[Any]:
    """*operation* as ``Methods._submit`` would have it stored; see there."""
    try:
        _encode(operation)
    except UnicodeEncodeError:
        clean = without_surrogates(operation)
        if clean is operation:
            raise
        return clean
    return operation


class _Placeholder:
    """The result that is not there yet, or a field of it."""

    __slots__ = ("_fields",)

    def __init__(self, *fields: str) -> None:
        self._fields = fields

    def __getattr__(self, name: str) -> _Placeholder:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Placeholder(*self._fields, name)

    def __bool__(self) -> NoReturn:
        raise TypeError("the result of a change that was not sent yet is not known")

    def __eq__(self, other: object) -> NoReturn:
        self.__bool__()

    __hash__ = None  # type: ignore[assignment]


@cache
def _stand_in(kind: Any) -> Any:
    """A class with all methods of *kind* that submits nothing; its instances are not opened."""

    class StandIn(kind):  # type: ignore[misc]
        def __init__(self, db: Methods) -> None:
            self._db = db
            self._operation: Operation[Any] | None = None

        def __getattr__(self, name: str) -> Any:
            return getattr(self._db, name)

        def _submit(self, operation: Operation[Any]) -> Any:
            if self._operation is not None:
                raise TypeError("more than one change")
            self._operation = operation
            return _Placeholder()

    return StandIn


def reason_for_all(error: BaseException) -> Exception:
    """What each change is told when sending them raised *error*."""
    if isinstance(error, Exception):
        return error
    return OutcomeUnknown("interrupted while the changes were sent; some may have been made")
