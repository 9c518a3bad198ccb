"""The pipeline: a queue into tables, exactly once."""
