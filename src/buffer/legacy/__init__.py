"""The two-manifest JSON ingest format that came before the queue, and the way off it.

format       the bytes: batches, both manifests, names                                         (pure)
manifests    what may be done with the manifests: claims, acks, clean-up; the rules stand there (pure)
parked       what could not be read                                                            (pure)
ingestor     key-value pairs in, batches and their locations out
claims       the manifests over compare-and-swap, without threads
collector    claims with a heartbeat
"""

from buffer.legacy.claims import CollectedBatch
from buffer.legacy.collector import Collector
from buffer.legacy.config import CollectorConfig, IngestorConfig
from buffer.legacy.format import KeyValueEntry
from buffer.legacy.ingestor import Ingestor, WriteWatcher
from buffer.legacy.parked import Unreadable

__all__ = [
    "CollectedBatch",
    "Collector",
    "CollectorConfig",
    "Ingestor",
    "IngestorConfig",
    "KeyValueEntry",
    "Unreadable",
    "WriteWatcher",
]
