"""Why something was set aside, as text that every file, table and terminal can hold. Pure.

Reasons come from anywhere: a handler's error, an undecodable file name in it, an argument of a command. Python's text
may hold half of a surrogate pair, which UTF-8 has no bytes for, and two halves that JSON joins to one character when
they are read again: so two reasons that differ when they are written could be one key twice in the ledger, which nobody
can read then. Whoever puts a reason into the ledger passes it through here, once, where it enters.
"""

from __future__ import annotations

from buffer.errors import InvalidInput


def plain(reason: str) -> str:
    """The same text, if UTF-8 can hold it; else halves that fit together are joined, and others become U+FFFD."""
    if not isinstance(reason, str):
        raise InvalidInput(f"a reason is text, not {reason!r}")
    if reason.isascii():
        return reason
    return reason.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
