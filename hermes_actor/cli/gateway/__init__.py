"""Commands about the sessions of chats."""
