"""Ways to write rows into a Delta table in one transaction."""
