"""Many processes that do one thing at the same moment. Used inside a child of the tests."""

import json
import os
from collections.abc import Callable
from functools import partial
from typing import Any

from support.subprocess_env import outcome


def together(count: int, work: Callable[[int], Any]) -> list[dict[str, Any] | None]:
    """Fork *count* processes, let all of them go at once; what ``work(number)`` gave in each.

    ``None`` stands for a process that did not live to tell.
    """
    start, go = os.pipe()
    results, result = os.pipe()
    children = []
    for number in range(count):
        child = os.fork()
        if child == 0:
            os.close(go)
            os.read(start, 1)
            answer = json.dumps([number, outcome(partial(work, number))])
            assert len(answer) < 4096, "only short answers are written in one piece"
            os.write(result, answer.encode() + b"\n")
            os._exit(0)
        children.append(child)
    os.close(result)
    os.close(start)
    # Every process sees the end of this pipe at the same moment.
    os.close(go)
    with os.fdopen(results) as file:
        answers = dict(json.loads(line) for line in file)
    for child in children:
        os.waitpid(child, 0)
    return [answers.get(number) for number in range(count)]
