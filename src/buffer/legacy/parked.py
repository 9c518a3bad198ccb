"""What could not be read, and how often that was tried: a small JSON file of ours beside the manifests. Pure.

    {"version":1,"unreadable":{location:{"tries":[ms,…],"parked":true,"why":"…"},…}}

A try is named by the token of its claim, so one that is counted twice after a lost answer counts once. With the
last try the batch is parked: this file says so first, then the claim gets a time that never comes. In between, a
claim that goes stale is taken over by somebody who finds it parked here and finishes the job.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from buffer.errors import CorruptManifest

VERSION = 1
WHY_LENGTH_MAX = 1000


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A batch that could not be read."""

    tries: tuple[int, ...]
    parked: bool
    why: str


@dataclass(frozen=True, slots=True)
class ParkedFile:
    unreadable: Mapping[str, Unreadable] = field(default_factory=dict)

    def count(self, location: str, token: int, why: str, tries_max: int) -> ParkedFile:
        """One more try that failed; the last one parks the batch."""
        before = self.unreadable.get(location, Unreadable((), False, ""))
        tries = tuple(dict.fromkeys((*before.tries, token)))
        parked = before.parked or len(tries) >= tries_max
        return self._with({location: Unreadable(tries, parked, why[:WHY_LENGTH_MAX])})

    def without(self, locations: Collection[str]) -> ParkedFile:
        return ParkedFile({where: what for where, what in self.unreadable.items() if where not in locations})

    def is_parked(self, location: str) -> bool:
        return location in self.unreadable and self.unreadable[location].parked

    def _with(self, more: Mapping[str, Unreadable]) -> ParkedFile:
        return ParkedFile({**self.unreadable, **more})


def encode_parked(file: ParkedFile) -> bytes:
    unreadable = {
        where: {"tries": what.tries, "parked": what.parked, "why": what.why} for where, what in file.unreadable.items()
    }
    return json.dumps({"version": VERSION, "unreadable": unreadable}, indent=1).encode()


def decode_parked(data: bytes | None, location: str) -> ParkedFile:
    """The file; an empty one where there is no object. Raises CorruptManifest."""
    if data is None:
        return ParkedFile()
    try:
        document = json.loads(data.decode())
        if document["version"] != VERSION:
            raise ValueError(f"version {document['version']!r} is not known here")
        return ParkedFile({where: _unreadable(what) for where, what in document["unreadable"].items()})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptManifest(
            f"the list of parked batches at {location!r} is damaged: {type(error).__name__}: {error}; "
            "restore it, or delete it: then parked batches stay claimed and nobody knows why",
            location=location,
        ) from error


def _unreadable(what: Any) -> Unreadable:
    tries, parked, why = what["tries"], what["parked"], what["why"]
    if not isinstance(parked, bool) or not isinstance(why, str) or not all(type(token) is int for token in tries):
        raise ValueError(f"{what!r} does not say tries, parked and why")
    return Unreadable(tuple(tries), parked, why)
