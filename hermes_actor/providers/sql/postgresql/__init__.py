"""PostgreSQL: dialect, connections, search, notifications, errors and bulk copy."""
