"""Uploading a batch: under a fresh name, with retries. Nothing here knows the queue; `append.py` puts it there.

The two are apart so that many machines can upload and one can append:

    upload = upload_entries([b"one", b"two"], store=…, clock=…, config=…)     # anywhere, say in a Spark task
    append_uploads([upload, …], store=…, clock=…, config=…)                   # in one place, in one write

- An `Upload` is small and picklable: it has the name and what the manifest says about the batch, not the bytes.
- A put is repeated under the name it has: the content never changes, so a put that landed twice is one put.
- The process dies: what was uploaded and not appended is an orphan that the collector removes. An attempt that is
  repeated has names of its own, so it never touches what an earlier one has uploaded.

**How long a name may be appended.** The collector deletes a batch that no entry names once its ULID is older than
`gc_grace_s` by the collector's clock. So a name is valid for half of that, and the other half is what clocks may
differ by. Who made the name counts from then on with the monotonic clock (`NewName.made_s`), which no one can set.
Between machines only the ULID's wall time is common. Whoever gets an `Upload` compares that with his own wall clock,
once, and counts on with his monotonic clock (`valid_until_s`). The collector compares the same ULID with its clock, so
what counts is how far these two are apart: half the grace period at most, as the docs demand. The uploader's clock
may be off by more: a ULID from the future is kept for longer, and is not believed for longer than a fresh one; one
from the past is renamed earlier.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from buffer.backoff import Backoff
from buffer.clock import Clock
from buffer.codec.batch import encode_batch_parts
from buffer.config import QUIET_GRACE_S, ProducerConfig
from buffer.errors import StorageError
from buffer.manifest import PackedMetadata
from buffer.names import batch_location, batch_ulid, ulid_time_ms
from buffer.produce.intake import ENTRY_OVERHEAD_BYTES, Entries, check_call
from buffer.store.base import CanPut

UPLOAD_ATTEMPTS_MAX = 6  # on top of what the store's own client repeats; then the batch fails
UPLOAD_BACKOFF = Backoff(first_s=0.2, max_s=5.0, attempts_max=UPLOAD_ATTEMPTS_MAX)

_T = TypeVar("_T")


class NewName(NamedTuple):
    """Where a batch was put by this process."""

    location: str
    made_s: float
    """Monotonic time from before the ULID was made: what its age counts from."""


@dataclass(frozen=True, slots=True)
class Upload:
    """A batch that lies in the store and is in no queue yet."""

    location: str
    metadata: PackedMetadata
    entry_count: int
    payload_bytes: int
    """The entries' own bytes."""
    stored_bytes: int
    """The object's, after compression."""

    @property
    def made_ms(self) -> int:
        """When its name was made, by the wall clock of whoever made it."""
        ulid = batch_ulid(self.location)
        assert ulid is not None, f"{self.location!r} was made by `batch_location`"
        return ulid_time_ms(ulid)


def name_valid_s(config: ProducerConfig) -> float:
    """How long a name may be appended after it was made."""
    return config.gc_grace_s / 2


def safe_until_s(valid_until_s: float, config: ProducerConfig) -> float:
    """Until when an append that was sent while the name was valid may land.

    It is conditional on a manifest version that was read before, so it can land only while that stands. And while the
    manifest does not change, the collector deletes nothing that is younger than a day by its clock, which may be ahead
    by half the grace period; a name is valid for the other half.
    """
    return valid_until_s + max(0.0, QUIET_GRACE_S - config.gc_grace_s)


def valid_until_s(upload: Upload, clock: Clock, valid_s: float) -> float:
    """Until when, by this process's monotonic clock, the name of somebody else's upload may be appended."""
    now_s = clock.monotonic_s()  # before the wall clock is read: an age may be overestimated, never under
    age_s = (clock.now_ms() - upload.made_ms) / 1000
    return now_s + valid_s - max(0.0, age_s)


def upload_entries(
    entries: Entries, metadata: bytes = b"", *, store: CanPut, clock: Clock, config: ProducerConfig
) -> Upload:
    """Upload entries as one batch, with one metadata item, as one `produce` call would.

    Raises InvalidInput as `produce` does, or the store's error: then there is nothing, or an orphan.
    """
    parts, count, block_bytes = check_call(entries, metadata, config.max_batch_bytes)
    packed = PackedMetadata.pack([0], [clock.now_ms()], [metadata])
    data = encode_batch_parts([parts] if isinstance(parts, list) else parts, config.compression)
    name = put_under_new_name(data, store=store, clock=clock, prefix=config.data_path_prefix)
    return Upload(name.location, packed, count, block_bytes - ENTRY_OVERHEAD_BYTES * count, len(data))


def put_under_new_name(data: bytes | memoryview, *, store: CanPut, clock: Clock, prefix: str) -> NewName:
    """Put a batch where none was before. Raises the store's error, after trying again where that can help."""
    return make_new_name(store.put, data, clock, prefix)


def make_new_name(put: Callable[[str, _T], None], what: _T, clock: Clock, prefix: str) -> NewName:
    """Make a batch's name and `put` it there, again and again while the errors say that this can help."""
    made_s = clock.monotonic_s()  # before the name: an age may be overestimated, never under
    location = batch_location(prefix, clock.new_ulid())
    for attempt in UPLOAD_BACKOFF.attempts(clock):
        try:
            put(location, what)  # handed on: a closure would keep the bytes alive as long as an error's traceback
            break
        except StorageError as error:
            if not error.retryable or attempt + 1 == UPLOAD_ATTEMPTS_MAX:
                raise
    return NewName(location, made_s)
