"""Mutated ledgers, locations and whole queues, and what must hold of each: the half of `tests.fuzz` beyond decoding.

ledger    a ledger, which is written back as it was read, or CorruptLedger in a few words; the same for each section
location  a location that the store takes and that stays inside the prefix, or a reason in a few words
queue     a store with a mutated manifest, ledger or batch: a reader gets the entries or one of our errors, looking at
          it does the same, and nobody deletes or writes anything that was not asked for
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache, partial
from itertools import count, islice
from pathlib import Path

from buffer.config import ConsumerConfig, ProducerConfig
from buffer.consume.consumer import Consumer
from buffer.consume.fetch import FetchHandle
from buffer.errors import BufferQueueError, CorruptLedger
from buffer.inspect.status import queue_status, read_manifest
from buffer.inspect.verify import check_batches
from buffer.leases import LeaseConfig, LeaseQueue
from buffer.ledger.clients import ClientsView
from buffer.ledger.entries import ENTRIES_MAX, INDEX_MAX, listed
from buffer.ledger.entries import count as count_of
from buffer.ledger.envelope import Envelope
from buffer.ledger.leases import LeaseLedger
from buffer.ledger.plan import Ledger
from buffer.model import BatchDescriptor
from buffer.names import ledger_path, location_problem
from buffer.produce.producer import Producer
from buffer.store import Store, open_store

GOLDEN = Path(__file__).parent / "golden"
PREFIX = "ingest"
MANIFEST = f"{PREFIX}/manifest"
LEDGER = ledger_path(MANIFEST)
ERROR_MAX = 4000  # characters
MAX_BATCH_BYTES = 8 << 20
READ_MAX = 50  # entries of a manifest; the queues that are mutated have a handful
VIEWS: tuple[type[Envelope], ...] = (Envelope, Ledger, LeaseLedger, ClientsView)

_names = count()

LEDGER_TOKENS = (
    *(b"{", b"}", b"[", b"]", b",", b":", b'"', b"null", b"true", b"-1", b"0", b"1.5", b"1e5", b"NaN", b" ", b"\0"),
    *(
        b"9" * 19,
        b"9" * 20,
        b"9" * 41,
        b"9" * 5000,
        b'"version":2,',
        b'"epoch":',
        b'"plan":{',
        b'"leases":',
        b'"born":',
    ),
    *(b"0-9999999999", b"0-4294967295", b"0-39999", b'"entries":{"0":{"r":"0-9"}},', b'"owed":[[0,1000000000000]]'),
    *(b"[" * 40, b'"\\ud800"', b"\xff", b"\xc2\x9b", b'"clients":{}', b'"generation":1,', b'"version":3'),
)
LOCATIONS = [
    *(b"ingest/01JD0000000000000000000000.batch", b"ingest/01JD0000000000000000000000/000000000000000f"),
    *(
        b"ingest/../secret",
        b"other/x.batch",
        b"/ingest/x",
        b"ingest//x",
        b"ingest/%2e%2e/x",
        b"ingest/%252e%252e%252fx",
    ),
    *(b"ingest/a#b c\xc3\xa4", b"ingest\\..\\x", b"ingest/" + b"n" * 2000, b"ingest/x/", b"", b"ingest"),
]
LOCATION_TOKENS = (
    *(
        b"/",
        b"//",
        b".",
        b"..",
        b"%",
        b"%2f",
        b"%2F",
        b"%25",
        b"%00",
        b"\\",
        b"\0",
        b"\n",
        b"\x1b[2J",
        b"#",
        b"?",
        b" ",
    ),
    *(b"\xe2\x80\xae", b"\xed\xa0\x80", b"~", b":", b"ingest/", b"\xc3", b"e\xcc\x81"),
)


def store_with(objects: dict[str, bytes]) -> Store:
    store = open_store(f"memory://fuzz-{next(_names)}")
    for location, data in objects.items():
        store.put(location, data)
    return store


def objects_of(store: Store) -> dict[str, bytes]:
    return {info.location: bytes(store.get(info.location).data) for info in store.list("")}


@cache
def queues() -> list[dict[str, bytes]]:
    """Real queues as objects by location: plain, with client marks, under leases, bound to a loader."""
    made = []
    for client, leased in ((None, False), ("client", False), ("client", True)):
        store = open_store(f"memory://fuzz-{next(_names)}")
        with Producer(ProducerConfig(store=store, compression="zstd"), client_id=client) as producer:
            for number in range(5):
                producer.produce([b"entry %d" % number, b""], metadata=b"m")
                producer.flush()
        config = ConsumerConfig(store=store)
        if leased:
            with LeaseQueue.open(config, LeaseConfig(max_delivery_attempts=3)) as queue:
                first, second, _third = queue.consume(3).batches
                queue.ack(first)
                queue.nack(second, delay_ms=1000)
        else:
            with Consumer.new(config) as consumer:
                consumer.ack_through(consumer.next_descriptors(2)[0].sequence)
        made.append(objects_of(store))
    bound = dict(made[0])
    bound[LEDGER] = (GOLDEN / "ledger" / "v1_planned.json").read_bytes()
    return [*made, bound]


@cache
def ledgers() -> list[bytes]:
    return [
        *(path.read_bytes() for path in sorted((GOLDEN / "ledger").glob("*.json"))),
        *(objects[LEDGER] for objects in queues() if LEDGER in objects),
    ]


def _check_listed(ledger: Envelope) -> None:
    """What stands for many values in a few bytes is bounded by what fits in memory."""
    if isinstance(ledger, Ledger):
        for entries in (ledger.plan.entries if ledger.plan else {}, ledger.blocked.entries if ledger.blocked else {}):
            assert sum(1 for _ in listed(entries)) == count_of(entries) <= ENTRIES_MAX
    if isinstance(ledger, LeaseLedger) and ledger.leases is not None:
        for batch in ledger.leases.batches.values():
            assert batch.owed is None or batch.owed[-1][1] <= INDEX_MAX


def check_ledger(_: random.Random, entries: list[bytes]) -> bool:
    accepted = False
    for view in VIEWS:
        try:
            ledger = view.from_bytes(entries[0], location=LEDGER)
        except CorruptLedger as error:
            _check_words(error)
            continue
        accepted = True
        again = view.from_bytes(ledger.to_bytes(), location=LEDGER)
        assert again == ledger, "a ledger is not read as it was written"
        _check_listed(ledger)
    return accepted


def check_location_text(_: random.Random, entries: list[bytes]) -> bool:
    location = entries[0].decode(errors="surrogateescape")
    problem = location_problem(location, [PREFIX])
    if problem is not None:
        assert len(problem) < ERROR_MAX, "a refusal of many words"
        return False
    assert location.startswith(f"{PREFIX}/"), "outside of the prefix"
    store = store_with({location: b"x"})
    assert [info.location for info in store.list("")] == [location], "another object than its location says"
    return True


def check_queue(rng: random.Random, entries: list[bytes]) -> bool:
    """`entries` are the mutated objects of one of the queues, in order of their locations."""
    names = sorted(queues()[entries[0][0]])
    objects = dict(zip(names, entries[1:], strict=True))
    store = store_with(objects)
    for look in (_look_at, _verify):
        _ours(look, store)
        assert objects_of(store) == objects, "looking at a queue has changed it"
    accepted = _ours(_consume, store)
    for name, data in objects.items():
        if name.endswith(".batch"):
            assert bytes(store.get(name).data) == data, "a reader has changed or deleted a batch"
    return accepted


def _ours(step: Callable[[Store], None], store: Store) -> bool:
    """Whether it went through. Only our own errors may come, in a few words."""
    try:
        step(store)
    except BufferQueueError as error:
        _check_words(error)
        return False
    return True


def _check_words(error: BufferQueueError) -> None:
    assert len(str(error)) < ERROR_MAX, "an error of many words"


def _look_at(store: Store) -> None:
    status = queue_status(store, MANIFEST)
    assert str(status), "a status of no words"
    status.to_dict()


def _verify(store: Store) -> None:
    handle = FetchHandle(store, MAX_BATCH_BYTES, prefixes=(PREFIX,))
    first = islice(read_manifest(store, MANIFEST), READ_MAX)
    for checked in check_batches(handle, first, jobs=1):
        assert len(checked.error) < ERROR_MAX, "an error of many words"


def _consume(store: Store) -> None:
    """Past every batch that cannot be read: none of them may stop the others."""
    config = ConsumerConfig(store=store, max_batch_bytes=MAX_BATCH_BYTES, gc_enabled=False)
    with Consumer.new(config) as consumer:
        for descriptor in consumer.next_descriptors(READ_MAX):
            _ours(partial(_fetch, consumer, descriptor), store)
            consumer.ack(descriptor.sequence)


def _fetch(consumer: Consumer, descriptor: BatchDescriptor, _: Store) -> None:
    entries = consumer.fetch_descriptor(descriptor).entries
    assert sum(map(len, entries)) <= MAX_BATCH_BYTES, "more than was allowed"


QueueCheck = Callable[[random.Random, list[bytes]], bool]
QUEUE_CHECKS: dict[str, QueueCheck] = {
    "ledger": check_ledger,
    "location": check_location_text,
    "queue": check_queue,
}
