"""Commands for programs."""
