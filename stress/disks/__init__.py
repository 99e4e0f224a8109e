"""What a disk may do: recording it, cutting its power, and judging what is left."""

import programme  # noqa: F401 - it knows where the support of the tests is
