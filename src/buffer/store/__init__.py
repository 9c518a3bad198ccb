"""Object stores behind one small protocol (`base`): cloud stores and memory (`objects`), local files (`local`).

`open_store` is the door. To write a store of your own, implement `Store` and run `buffer.testing.contract` on it.
"""

from buffer.store.base import (
    DeleteFailure,
    Lost,
    Object,
    ObjectInfo,
    Outcome,
    Store,
    Unknown,
    Version,
    Won,
    check_location,
)
from buffer.store.local import LocalStore
from buffer.store.objects import CloudStore
from buffer.store.open import open_store

__all__ = [
    "CloudStore",
    "DeleteFailure",
    "LocalStore",
    "Lost",
    "Object",
    "ObjectInfo",
    "Outcome",
    "Store",
    "Unknown",
    "Version",
    "Won",
    "check_location",
    "open_store",
]
