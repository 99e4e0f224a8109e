"""The operating system: processes, descriptors, locks, file systems, and fork."""
