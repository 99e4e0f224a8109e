"""Hand-off: an actor passes its store to a successor process without losing a request."""
