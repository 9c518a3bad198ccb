"""What is wrong with a batch or an entry: a value. The loader's protocol needs none of what reads batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Failure:
    """A batch that could not be read, or an entry that nothing can be made of, and whose fault that is."""

    sequence: int
    location: str
    error: str
    kind: Literal["data", "missing", "infra"]
    index: int | None = None
    """Of the entry; None: the whole batch."""
