"""Stores on a server: tables, operations and reads in SQLAlchemy Core, and two dialects."""
