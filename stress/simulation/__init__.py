"""The real engine and both ends of the protocol in simulated time."""

import programme  # noqa: F401 - it knows where the support of the tests is
