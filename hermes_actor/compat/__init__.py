"""Interfaces for programs written for the module ``hermes_state`` or for ``SessionDB._conn``."""
