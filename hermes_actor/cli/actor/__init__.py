"""Commands that look after the actor."""
