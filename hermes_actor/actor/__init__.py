"""The actor: one process that owns a database and serves every other process of the host."""
