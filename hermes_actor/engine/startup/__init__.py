"""Opening a database for its owner: schema, start-up recovery, files left behind."""
