"""Load a buffer into Delta Lake tables exactly once, on Spark."""
