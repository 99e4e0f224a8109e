"""The real engine and both halves of the conversation in simulated time."""

import programme  # noqa: F401 - it knows where the support of the tests is
