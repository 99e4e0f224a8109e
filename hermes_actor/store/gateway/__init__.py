"""Routes of chats and turns of conversations: rules that files and servers share, and their SQL."""
