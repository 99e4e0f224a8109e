"""The cost of the import hook of an attached program: steps of the interpreter, not time."""

import importlib.util
import sys
import types

import pytest

from hermes_actor.attach import boot

MODULES = ["argparse", "asyncio.base_events", "typing", "logging", "http.client"]
STEPS_OF_A_FUNCTION, STEPS_OF_A_CONSTANT = 30, 9


def code_of(name):
    return importlib.util.find_spec(name).loader.get_code(name)


def functions_in(code):
    found = [code]
    for one in found:
        found += [inner for inner in one.co_consts if isinstance(inner, types.CodeType)]
    return found


def steps_of(code):
    """The steps that our module makes to look at *code*."""
    steps = 0

    def trace(frame, event, _argument):
        nonlocal steps
        if frame.f_code.co_filename != boot.__file__:
            return None
        frame.f_trace_opcodes = True
        steps += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        assert not boot._uses_bound(code)
    finally:
        sys.settrace(before)
    return steps


@pytest.mark.parametrize("name", MODULES)
def test_a_module_is_looked_at_in_few_steps(name):
    """Every function of every module of the program, at each of its starts."""
    functions = functions_in(code_of(name))
    constants = sum(len(one.co_consts) for one in functions)
    allowed = STEPS_OF_A_FUNCTION * len(functions) + STEPS_OF_A_CONSTANT * constants
    assert 0 < steps_of(code_of(name)) <= allowed
