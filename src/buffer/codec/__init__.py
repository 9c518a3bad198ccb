"""Batch bytes and entries, both ways. Pure."""
