"""A producer in asyncio: many tasks share it, and each waits until its own events are durable.

    python examples/async_producer.py --store ./queue --events 1000
    python examples/async_producer.py --store s3://bucket/queue --for-ever --rate 200

`produce_async` waits for room in the buffer without blocking the loop; `await handle` waits for durability.
"""

import argparse
import asyncio
import json
import random
import signal
import time
from contextlib import suppress

from buffer import BufferQueueError, Producer, ProducerConfig


def parse(args: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Produce events from several asyncio tasks.")
    parser.add_argument("--store", required=True, help="where the queue lies: a path or s3://bucket/path")
    parser.add_argument("--allow-http", action="store_true", help="the store's endpoint has no TLS")
    parser.add_argument("--tasks", type=int, default=4)
    parser.add_argument("--events", type=int, default=1000, help="of each task")
    parser.add_argument("--for-ever", action="store_true", help="until SIGTERM or Ctrl-C")
    parser.add_argument("--rate", type=float, default=0, help="events a second of each task; 0 is without a limit")
    return parser.parse_args(args)


async def sensor(producer: Producer, name: str, options: argparse.Namespace, stop: asyncio.Event) -> int:
    """One task. Returns how many of its events are durable."""
    sent, durable, call = 0, 0, max(1, int(options.rate) or 100)
    while not stop.is_set() and (options.for_ever or sent < options.events):
        count = call if options.for_ever else min(call, options.events - sent)
        events = [
            {"id": sent + n, "sensor": name, "at_ms": time.time_ns() // 1_000_000, "value": random.gauss(20, 3)}
            for n in range(count)
        ]
        handle = await producer.produce_async([json.dumps(event).encode() for event in events], name.encode())
        sent += count
        try:
            await handle
            durable += count
        except BufferQueueError as error:
            print(f"{name}: {count} events are not durable: {error}")
        if options.rate:
            with suppress(TimeoutError):  # the ordinary pause between two calls
                await asyncio.wait_for(stop.wait(), count / options.rate)
    return durable


async def run(options: argparse.Namespace) -> int:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    store_options = {"client_options": {"allow_http": True}} if options.allow_http else {}
    config = ProducerConfig(store=options.store, store_options=store_options, flush_interval_ms=100)
    async with Producer(config) as producer:
        names = [f"sensor-{number + 1}" for number in range(options.tasks)]
        durable = await asyncio.gather(*(sensor(producer, name, options, stop) for name in names))
    for name, count in zip(names, durable, strict=True):
        print(f"{name}: {count:,} events are durable")
    return sum(durable)


if __name__ == "__main__":
    given = parse()
    total = asyncio.run(run(given))
    raise SystemExit(0 if given.for_ever or total == given.tasks * given.events else 1)
