"""Reads of an agent store that are more than one row or a list: functions of rows, written once."""
