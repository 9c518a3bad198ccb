"""Avro: bytes to columns (`format`), and columns to bytes (`encode`). No library: see `read` for why."""
