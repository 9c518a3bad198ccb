"""The dead-letter table, looked at and sent back: which letters there are and why, and the way home to a queue."""
