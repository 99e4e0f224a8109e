"""The proof that ``hermes_actor.dbapi`` behaves like ``sqlite3``: suites of others, run unchanged.

A suite runs twice, each time in a process of its own in which a module stands in for ``sqlite3``:
``hermes_actor.dbapi`` on side *ours*, the standard module with WAL files on side *control*. What
fails on our side must fail on the other, too, or be in ``differences.toml`` with its reason; what
is in the list must fail.
"""
