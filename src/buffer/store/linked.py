"""A local folder that is somebody else's, and that parts of may be on other disks: a table's, say.

An object that is named is found, written and deleted through folders that are links, as other programs do there. The
rest is as ever: a link in the place of an object is not followed, a listing passes over links, and the store's own
folder of locks must be none. A link to nowhere is no folder.
"""

from __future__ import annotations

from pathlib import Path

from buffer.store.local import LocalStore


class LinkedStore(LocalStore):
    """As `LocalStore`, for objects with names of their own: two ways to one object would have two locks."""

    def _refuse_links(self, path: Path) -> None:
        """Here they are followed."""
