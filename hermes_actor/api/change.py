"""Methods that make a single change: a builder of the operation, and a decoder of its result.

The body of such a method builds a :class:`Change` and submits nothing. The decorator :func:`change`
makes it a method that submits the operation and returns the decoded result. Pipelines and
``AsyncSessionDB`` take the same change by :func:`build` and send it in their own ways, so what is
sent and what is returned cannot differ. Time and generated ids are taken once, by the builder.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, overload

import msgspec

from hermes_actor.errors import OutcomeUnknown
from hermes_actor.store.surrogates import storable
from hermes_protocol.operations import Operation

if TYPE_CHECKING:
    from hermes_actor.api.base import Methods

__all__ = ["Change", "build", "change", "is_one_change", "no_result", "reason_for_all"]

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
S = TypeVar("S", bound="Methods")

_encode = msgspec.msgpack.Encoder().encode


class Change(Generic[R]):
    """One operation, and the decoder that turns its result into the result of the method."""

    __slots__ = ("_decode", "operation")

    @overload
    def __init__(self, operation: Operation[R]) -> None: ...

    @overload
    def __init__(self, operation: Operation[T], decode: Callable[[T], R]) -> None: ...

    def __init__(self, operation: Operation[Any], decode: Callable[[Any], R] | None = None) -> None:
        self.operation = operation
        self._decode = decode

    def outcome(self, result: Any) -> R:
        """Return what the method returns when the operation has *result*."""
        if self._decode is None:
            decoded: R = result
            return decoded
        return self._decode(result)


def no_result(_result: object) -> None:
    """Decode the result of an operation whose method returns nothing."""


def change(
    builder: Callable[Concatenate[S, P], Change[R]],
) -> Callable[Concatenate[S, P], R]:
    """Make a method that submits the change that *builder* builds, and returns its outcome."""

    @wraps(builder)
    def method(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        made = builder(self, *args, **kwargs)
        return made.outcome(self._submit(made.operation))

    # Callers see the result, so ``help`` names its type and not that of the builder.
    returned: str = builder.__annotations__["return"]
    builder.__annotations__["return"] = returned.removeprefix("Change[").removesuffix("]")
    method.builder = builder  # type: ignore[attr-defined]
    return method


def is_one_change(method: Callable[..., Any], db: Methods) -> bool:
    """Return True if *method* makes a single change, and the class of *db* has not replaced it."""
    return hasattr(method, "builder") and getattr(type(db), method.__name__) is method


def build(
    method: Callable[Concatenate[S, P], R], db: S, /, *args: P.args, **kwargs: P.kwargs
) -> Change[R]:
    """Build the change that ``db.method(*args, **kwargs)`` makes, without submitting it.

    Raises:
        TypeError: the method, or what a subclass made of it, is not a single change.
        UnicodeEncodeError: the text of a message holds lone surrogates.

    Raises also what the method raises about its arguments.
    """
    if not is_one_change(method, db):
        raise TypeError(
            f"{type(db).__name__}.{method.__name__} may be more than one change,"
            " so it cannot be sent as one"
        )
    made: Change[R] = method.builder(db, *args, **kwargs)  # type: ignore[attr-defined]
    try:
        _encode(made.operation)
    except UnicodeEncodeError as error:
        made.operation = storable(made.operation, error)
    return made


def reason_for_all(error: BaseException) -> Exception:
    """Return the error of each change when sending all of them raised *error*."""
    if isinstance(error, Exception):
        return error
    return OutcomeUnknown("interrupted while the changes were sent; some may have been made")
