"""What a row is: the SQL of every read and of every operation."""
