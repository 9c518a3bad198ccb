"""The command `buffer`. The pieces that `buffer-delta` shares are in `shell` and `options`."""

from buffer.cli.app import cli, main

__all__ = ["cli", "main"]
