"""Whether a loader would find nothing to do: two small reads, before Spark is started for it.

It says so only if nothing at all is pending, by what queue and ledger tell together:

    the manifest has no entries             nothing waits, and no range is committed but not acked: an ack dequeues
    its epoch is the ledger's               since that loader entered, nobody else has claimed or dequeued anything
    the last plan ends with the queue       all that was ever in the queue was planned, so those acks were the loader's,
                                            which acks what is in its tables; a range that is only planned still waits.
                                            What workers with leases have finished behind it was nobody's to plan
    app and tables are the ledger's         as they are spelled; with others the start has something to say
    the ledger blocks nothing, and no operator's decision (adopt, on_gap) waits to be carried out

In every other case, and on every state that looks odd, the answer is no, and the loader starts and finds out itself.
It looks at no table: one that was dropped or rolled back is noticed by the next start that has something to load.

The ledger is read first. A loader that enters in between has another epoch in the manifest; one that finishes in
between leaves entries or plans that are not in the ledger we read. Both mean "no".
"""

from __future__ import annotations

from buffer.errors import BufferQueueError, ObjectNotFound, StorageError
from buffer.ledger.from_workers import all_finished, finished_runs, workers_of
from buffer.ledger.plan import Ledger
from buffer.manifest import Manifest
from buffer.names import ledger_path
from buffer.store.base import CanGet
from buffer_delta.config import LoaderConfig


def is_idle(store: CanGet, config: LoaderConfig) -> bool:
    """Whether `Loader.run(available_now=True)` would surely load nothing. Raises StorageError."""
    try:
        path = ledger_path(config.manifest_path)
        ledger = Ledger.from_bytes(store.get(path).data, location=path)
        manifest = Manifest.from_bytes(store.get(config.manifest_path).data, location=config.manifest_path)
        return has_nothing_pending(ledger, manifest, config)
    except ObjectNotFound:
        return False
    except StorageError:
        raise
    except BufferQueueError:
        return False  # damaged, or of another release: the start has the words for it


def has_nothing_pending(ledger: Ledger, manifest: Manifest, config: LoaderConfig) -> bool:
    """Raises CorruptLedger."""
    last_planned = ledger.plan.last if ledger.plan is not None else -1
    finished = finished_runs(workers_of(ledger))
    return (
        ledger.born
        and ledger.blocked is None
        and not (config.adopt or config.on_gap == "skip")
        and config.app_id in (None, ledger.app_id)
        and list(ledger.tables) == config.tables()
        and len(manifest) == 0
        and manifest.epoch == ledger.epoch
        and manifest.next_sequence > last_planned
        and all_finished(finished, last_planned + 1, manifest.next_sequence - 1)
    )
