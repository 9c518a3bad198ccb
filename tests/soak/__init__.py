"""Everything at once, for as long as you like: `python -m tests.soak --minutes 20`, or `make soak MINUTES=20`."""
