"""Consuming: one fenced reader with a cursor; fetching, which works anywhere."""
