"""The command `buffer-delta`. Starts without Spark: only the commands that need it import it."""

from buffer_delta.cli.app import cli, main

__all__ = ["cli", "main"]
