"""The writer without threads, sockets or trio: one owner, one connection, one order of changes."""
