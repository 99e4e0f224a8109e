"""AgentStore: many agents in one database, each with a view of its own."""
