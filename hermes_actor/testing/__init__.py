"""Tools to test programs on a store: a pool of writers, records, and the rules of a history.

Import what you need from its modules: :mod:`~hermes_actor.testing.writer_pool` starts processes
that write and record, :mod:`~hermes_actor.testing.history` checks what they recorded against the
file, and :mod:`~hermes_actor.testing.scenario` does something to the actor meanwhile. Nothing here
is needed to use a store.
"""
