"""Attachment of an installed hermes-agent: its code, on connections with one writer."""
