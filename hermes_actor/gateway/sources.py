"""SessionSource: where a message comes from, in the form that other programs store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

__all__ = ["SessionSource"]

_ALWAYS = (
    "platform", "chat_id", "chat_name", "chat_type", "user_id", "user_name", "thread_id",
    "chat_topic",
)  # fmt: skip
_WHEN_SET = (
    "user_id_alt", "chat_id_alt", "scope_id", "guild_id", "parent_chat_id", "message_id",
    "role_authorized", "profile", "auto_thread_created", "auto_thread_initial_name",
)  # fmt: skip


@dataclass
class SessionSource:
    """The chat, thread and user of a message.

    ``platform`` is a plain text such as ``telegram``. ``scope_id`` and ``guild_id`` are two names
    of one thing: each fills the other, and ``scope_id`` wins.
    """

    platform: str
    chat_id: str | None = None
    chat_name: str | None = None
    chat_type: str = "dm"
    user_id: str | None = None
    user_name: str | None = None
    thread_id: str | None = None
    chat_topic: str | None = None
    user_id_alt: str | None = None
    chat_id_alt: str | None = None
    is_bot: bool = False
    guild_id: str | None = None
    parent_chat_id: str | None = None
    message_id: str | None = None
    scope_id: str | None = None
    role_authorized: bool = False
    profile: str | None = None
    auto_thread_created: bool = False
    auto_thread_initial_name: str | None = None

    def __post_init__(self) -> None:
        # Platforms of a host program are members of an enumeration.
        self.platform = str(getattr(self.platform, "value", self.platform))
        self.scope_id = self.guild_id = self.scope_id or self.guild_id

    @property
    def participant(self) -> str | None:
        """The user as a part of a session key: the stable alternative id, if there is one."""
        return self.user_id_alt or self.user_id

    @property
    def description(self) -> str:
        """One line for people and prompts."""
        if self.platform == "local":
            return "CLI terminal"
        name = self.chat_name or self.chat_id or ""
        if self.chat_type == "dm":
            text = f"DM with {self.user_name or self.user_id or 'user'}"
        elif self.chat_type in ("group", "channel"):
            text = f"{self.chat_type}: {name}"
        else:
            text = str(name)
        return f"{text}, thread: {self.thread_id}" if self.thread_id else text

    def to_dict(self) -> dict[str, Any]:
        """Return the stored form: eight keys always, the others only when they are set."""
        kept = {name: getattr(self, name) for name in _ALWAYS}
        return kept | {name: value for name in _WHEN_SET if (value := getattr(self, name))}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Read the stored form. Raises ``KeyError`` without ``platform`` or ``chat_id``."""
        known = {name: data[name] for name in (*_ALWAYS, *_WHEN_SET) if name in data}
        chat_id = data["chat_id"]
        known |= {"platform": data["platform"], "chat_type": data.get("chat_type") or "dm"}
        return cls(**known | {"chat_id": None if chat_id is None else str(chat_id)})
