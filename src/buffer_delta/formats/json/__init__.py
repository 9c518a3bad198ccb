"""JSON payloads into typed columns: a fast way, and an exact one for what it does not take."""
