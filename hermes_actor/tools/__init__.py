"""What agents do with a store: search tool, recap, titles, insights. Pure where it can be."""
