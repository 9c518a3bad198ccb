"""Names for a loader's configuration: whatever decides where a record goes and what becomes of it. Pure.

Plans keep one: a range that is replayed must go where it went before.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Mapping
from typing import Any

from buffer.config import GIB
from buffer_delta.config import MAX_ENTRY_BYTES, LoaderConfig
from buffer_delta.formats import Format


def digest(config: LoaderConfig, fmt: Format, places: Mapping[str, str]) -> str:
    """A name for everything that decides where a record goes and what becomes of it.

    Tables by where they are, not by how they are spelled; not the main one, which the ledger binds anyway.
    """
    return _named(
        {
            **_facts(config, fmt),
            "routes": {value: places[table] for value, table in config.routes.items()},
            "dead_letters": places[config.dead_letters] if config.dead_letters is not None else None,
        }
    )


def older_digest(config: LoaderConfig, fmt: Format) -> str:
    """What the release before called the same configuration."""
    return _named({**_facts(config, fmt), "routes": dict(config.routes), "tables": config.tables()})


def _named(facts: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def _facts(config: LoaderConfig, fmt: Format) -> dict[str, Any]:
    return {
        "format": fmt.digest(),
        "columns": dict(config.columns),
        "transform": name_of(config.transform),
        "transform_version": config.transform_version,
        "route_by": config.route_by if isinstance(config.route_by, str) else name_of(config.route_by),
        # Only where it was changed: plans of earlier releases know nothing of it.
        **({"max_entry_bytes": config.max_entry_bytes} if config.max_entry_bytes != MAX_ENTRY_BYTES else {}),
        **({"max_batch_bytes": config.max_batch_bytes} if fmt.is_limited and config.max_batch_bytes != GIB else {}),
    }


def name_of(function: Any) -> str | None:
    """A function by its name and its text: editing it is noticed, what it calls is not (`transform_version`)."""
    if function is None:
        return None
    try:
        text = inspect.getsource(function)
    except (OSError, TypeError):  # made in a shell, or not in Python: only its name is left
        text = ""
    name = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', type(function).__name__)}"
    return f"{name}:{hashlib.sha256(text.encode()).hexdigest()[:16]}"
