"""Producing: calls are batched, uploaded, appended to the queue."""
