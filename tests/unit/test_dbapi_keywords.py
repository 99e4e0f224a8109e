"""Keywords of methods that Python 3.13 warns of."""

import warnings

import pytest

from hermes_actor.dbapi import keywords


def make(monkeypatch, warns):
    monkeypatch.setattr(keywords, "_WARNS", warns)

    class Connection:
        @keywords.deprecates_keywords("name", "narg", "func")
        def create_function(self, name, narg, func, **more):
            return name, narg, func, more

        @keywords.deprecates_keywords("trace_callback")
        def set_trace_callback(self, trace_callback):
            return trace_callback

    return Connection()


def test_keywords_are_warned_of_in_the_line_of_the_caller(monkeypatch):
    conn = make(monkeypatch, True)
    several = (
        r"Passing keyword arguments 'name', 'narg' and 'func' to "
        r"_sqlite3.Connection.create_function\(\) is deprecated. "
        r"Parameters 'name', 'narg' and 'func' will become positional-only in Python 3.15."
    )
    with pytest.warns(DeprecationWarning, match=several) as seen:
        assert conn.create_function("f", 1, func=len) == ("f", 1, len, {})
    assert seen[0].filename == __file__
    one = (
        r"Passing keyword argument 'trace_callback' to "
        r"_sqlite3.Connection.set_trace_callback\(\) is deprecated. "
        r"Parameter 'trace_callback' will become positional-only in Python 3.15."
    )
    with pytest.warns(DeprecationWarning, match=one):
        assert conn.set_trace_callback(trace_callback=print) is print


@pytest.mark.parametrize("warns", [True, False])
def test_nothing_else_is(monkeypatch, warns):
    conn = make(monkeypatch, warns)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert conn.create_function("f", 1, len, deterministic=True)[3] == {"deterministic": True}
        if not warns:
            assert conn.set_trace_callback(trace_callback=None) is None
