"""Output of all commands: formats, tables, files and errors."""
