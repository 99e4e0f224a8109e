"""Description of ``session_search`` for a model, with advice on when to use it."""

from __future__ import annotations

from typing import Any

__all__ = ["SCHEMA"]

SCHEMA: dict[str, Any] = {
    "name": "session_search",
    "description": (
        "Search your memory of earlier conversations with this user. Without a query it lists the"
        " latest conversations, at no cost. Use it on your own, before you ask the user to repeat"
        " something: when they say 'we did this before', 'remember when', 'last time', 'as I"
        " mentioned'; when they name a project or person that is not in this conversation; when"
        " you want to know how a similar problem was solved. Search first with few telling words."
        " Words are joined by AND; use OR between alternatives, NOT to exclude, quotes for an"
        " exact phrase and word* for a beginning. The current conversation is not searched."
    ),
    "parameters": {
        "type": "object",
        "properties": {
            "query": {
                "type": "string",
                "description": "What to look for. Leave it out to list the latest conversations.",
            },
            "role_filter": {
                "type": "string",
                "description": "Only messages of these roles, separated by commas: user, assistant,"
                " tool.",
            },
            "limit": {
                "type": "integer",
                "description": "How many conversations, 1 to 5.",
                "default": 3,
                "minimum": 1,
                "maximum": 5,
            },
            "session_id": {
                "type": "string",
                "description": "Read the messages of this conversation instead.",
            },
            "around_message_id": {
                "type": "integer",
                "description": "With session_id: only the messages around this one.",
            },
            "window": {
                "type": "integer",
                "description": "Messages on each side of a hit, 1 to 20; asks for raw messages"
                " instead of summaries.",
            },
            "sort": {
                "type": "string",
                "enum": ["relevance", "newest", "oldest"],
                "description": "Order of raw results; asks for raw messages instead of summaries.",
            },
        },
        "required": [],
    },
}
"""For function calling: the description of the tool for a model."""
