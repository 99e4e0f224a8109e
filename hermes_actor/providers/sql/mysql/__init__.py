"""MySQL and MariaDB: dialect, search, errors and bulk copy."""
