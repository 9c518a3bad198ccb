"""A durable buffer in object storage: producers append batches, one consumer reads them in order.

    Producer, ProducerConfig      accept entries, batch, upload, append
    Consumer, ConsumerConfig      claim, read in order, ack
    FetchHandle, BatchDescriptor  fetch and decode anywhere: threads, processes, Spark executors
    Collector, GcConfig           delete what was processed
    open_store                    the store behind a URL

Errors are in `buffer.errors`, parts for tests in `buffer.testing`.
"""

from buffer.config import ConsumerConfig, GcConfig, ProducerConfig
from buffer.consume.consumer import Consumer
from buffer.consume.fetch import FetchHandle
from buffer.errors import BufferQueueError
from buffer.gc.collector import Collector
from buffer.model import BatchDescriptor, ConsumedBatch, Metadata, RawBatch
from buffer.produce.durability import DurabilityWatcher, WriteHandle
from buffer.produce.producer import Producer
from buffer.store.open import open_store

__all__ = [
    "BatchDescriptor",
    "BufferQueueError",
    "Collector",
    "ConsumedBatch",
    "Consumer",
    "ConsumerConfig",
    "DurabilityWatcher",
    "FetchHandle",
    "GcConfig",
    "Metadata",
    "Producer",
    "ProducerConfig",
    "RawBatch",
    "WriteHandle",
    "open_store",
]
