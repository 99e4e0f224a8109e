"""The real engine and both ends of the protocol in simulated time."""
