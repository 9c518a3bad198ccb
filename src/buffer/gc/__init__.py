"""Collecting garbage: batch objects that nobody needs any more."""
