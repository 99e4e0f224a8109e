"""The agent-scoped store: many agents in one database, each with a view of its own.

One registry of tables (:mod:`hermes_actor.agents.tables`) is the source of the schema, of the
verbs, of validation, listings, documentation and import.
"""
