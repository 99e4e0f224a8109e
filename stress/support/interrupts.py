"""Exceptions at every line or instruction: what a signal handler raises may strike anywhere."""

import dis
import functools
import gc
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any


class Interrupt(BaseException):
    """What the signal handler of a program raises."""


def interrupted_at(number: int, call: Callable[[], Any], *modules: ModuleType) -> bool:
    """Run *call* with an :class:`Interrupt` before the *number*-th line that it runs in *modules*.

    False if it has run fewer lines. Other errors of *call* are not our business.
    """
    files, left = {module.__file__ for module in modules}, number

    def trace(frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal left
        if frame.f_code.co_filename not in files:
            return None
        if event == "line":
            left -= 1
            if left == 0:
                raise Interrupt
        return trace

    sys.settrace(trace)
    try:
        call()
    except (Interrupt, Exception):
        pass
    finally:
        sys.settrace(None)
    gc.collect()
    return left <= 0


def everywhere(call: Callable[[], Any], *modules: ModuleType) -> Iterator[int]:
    """Interrupt *call* at its first line in *modules*, at its second one, and so on to its end."""
    number = 1
    while interrupted_at(number, call, *modules):
        yield number
        number += 1


class Interruptor:
    """Raises before the n-th instruction that this thread executes in the files of *folders*."""

    def __init__(self, number: int, *folders: Path) -> None:
        self._left = number
        self._folders = tuple(str(folder) for folder in folders)
        self.where = ""

    def __enter__(self) -> None:
        sys.settrace(self._entered)

    def __exit__(self, *exc: object) -> None:
        sys.settrace(None)

    def _entered(self, frame: FrameType, event: str, argument: object) -> Any:
        if not frame.f_code.co_filename.startswith(self._folders):
            return None
        frame.f_trace_opcodes = True
        return self._step

    def _step(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "opcode" and frame.f_lasti not in _leaving(frame.f_code):
            self._left -= 1
            if not self._left:
                name = Path(frame.f_code.co_filename).name
                self.where = f"{name}:{frame.f_lineno} in {frame.f_code.co_name}"
                sys.settrace(None)
                raise Interrupt(self.where)
        return self._step


@functools.cache
def _leaving(code: CodeType) -> frozenset[int]:
    """Where no signal is handled: while a ``with`` block calls ``__exit__``, before a return."""
    found, instructions = set[int](), list(dis.get_instructions(code))
    for at, first in enumerate(instructions):
        window = instructions[at : at + 5]
        calls = window[3:4] if window[3:4] and window[3].opname == "CALL" else window[3:5]
        if (
            all(one.opname == "LOAD_CONST" and one.argval is None for one in window[:3])
            and calls
            and calls[-1].opname == "CALL"
            and calls[-1].arg == 2
        ):
            found.update(one.offset for one in [*window[:3], *calls])
        if first.opname == "RETURN_VALUE":
            found.add(first.offset)
        if first.opname == "WITH_EXCEPT_START":
            found.update((instructions[at - 1].offset, first.offset))
    return frozenset(found)


def every_instruction(
    call: Callable[[], Any], *folders: Path, first: int = 1, step: int = 1
) -> Iterator[tuple[str, Any]]:
    """Call again and again, interrupted one instruction later each time, until one is not.

    Yields where it was interrupted, empty at the end, and what the call gave or raised.
    """
    number = first
    while True:
        interruptor = Interruptor(number, *folders)
        try:
            with interruptor:
                outcome = call()
        except BaseException as error:
            outcome = error
        yield interruptor.where, outcome
        if not interruptor.where:
            return
        number += step


def open_descriptors() -> dict[int, str]:
    """The descriptors of this process, and what they are of."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue  # the one that lists them
    return found
