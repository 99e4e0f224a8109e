"""A clock for tests that set the time. Imports nothing of the product."""


class Clock:
    """Stands still until a test sets it."""

    def __init__(self, now: float) -> None:
        self.now = now

    def at(self, now: float) -> None:
        """Set the time."""
        self.now = float(now)
