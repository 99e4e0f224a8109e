"""Commands that bring new code, or take the data elsewhere."""
