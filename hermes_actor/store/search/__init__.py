"""Search in messages: query analysis, full-text tables, ranking, and CJK terms."""
