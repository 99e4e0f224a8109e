"""The demonstration: writers and readers while the actor is updated, killed and ended."""
