"""The caller's side: readers in the calling process, and the way to the writer."""
