"""Tools of agents: search, recap, titles, insights. Pure where possible."""
