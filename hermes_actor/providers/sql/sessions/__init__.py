"""Session rows on a server: lists, titles, lineages, removal and figures."""
