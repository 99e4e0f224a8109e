"""Commands of the agent store."""
