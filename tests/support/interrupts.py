"""Exceptions at every line of some modules: what a signal handler raises may strike anywhere."""

import gc
import os
import sys
from collections.abc import Callable, Iterator
from types import FrameType, ModuleType
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


def open_descriptors() -> dict[int, str]:
    """The descriptors of this process, and what they are of."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue  # the one that lists them
    return found
