"""What PostgreSQL and MySQL share: tables, operations and reads in SQLAlchemy Core."""
