"""What runs on Spark: sessions, tasks, schemas."""
