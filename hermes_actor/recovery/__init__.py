"""Backup, integrity checks, and ways to get rows back from damaged or removed files."""
