"""Session rows of a file: lists, titles, lineages, removal and figures."""
