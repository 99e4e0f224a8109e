"""The full-text indexes: maintained between changes, and beside the actor for large texts."""
