"""Providers of stores: one contract, for a file and for servers."""
