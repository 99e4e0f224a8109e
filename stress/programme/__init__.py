"""The verification programme: what its jobs have in common."""
