"""Looking at a queue without touching it: status, verify, and words for people."""
