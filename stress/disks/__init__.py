"""What a disk may do: recording it, cutting its power, and judging what is left."""
