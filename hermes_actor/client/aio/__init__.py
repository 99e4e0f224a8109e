"""The client for event loops: asyncio and trio, through anyio. Nothing here starts a task."""
