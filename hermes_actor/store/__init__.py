"""Rows of a store: the SQL of every read and of every operation."""
