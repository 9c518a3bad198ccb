"""A pool of workers that call a slow service, one of them killed and restarted; no job is lost, none is forgotten.

    python examples/worker_pool.py --store ./jobs --jobs 40 --workers 3

Every worker is a process of its own; they share nothing but the folder (or bucket). A job that the service refuses
every time ends in the dead-letter queue after three deliveries, in whichever processes those were; then it is looked
at, the service is "fixed", and `redrive` brings it back.
"""

import argparse
import asyncio
import os
import random
import signal
import subprocess
import sys
import time

from buffer import ConsumerConfig, Producer, ProducerConfig
from buffer.leases import Exponential, LeaseConfig, LeaseQueue, PerException, Untouched, worker

MANIFEST = "jobs/manifest"
DEAD_LETTERS = "dead/manifest"
LEASES = LeaseConfig(
    visibility_timeout_ms=2_000, max_delivery_attempts=3, dlq_strategy="skip", dlq=DEAD_LETTERS, max_in_flight=100
)
RETRY = PerException({ConnectionError: Untouched(delay_ms=100)}, otherwise=Exponential(first_ms=50, max_ms=500))


class Refused(Exception):
    """The service does not want this job."""


async def call_service(job: bytes) -> None:
    """Slow, and not always there."""
    await asyncio.sleep(random.uniform(0.01, 0.1))
    if random.random() < 0.1:
        raise ConnectionError("the service is away")  # nobody's fault: no attempt is lost
    if job.endswith(b"13") and "FIXED" not in os.environ:
        raise Refused(f"{job.decode()} is not wanted")
    print(f"done {job.decode()} by {os.getpid()}", flush=True)


def open_queue(store: str) -> LeaseQueue:
    return LeaseQueue.open(ConsumerConfig(store=store, manifest_path=MANIFEST, gc_enabled=False), LEASES)


def run_worker(store: str) -> None:
    with open_queue(store) as queue:
        worker(queue, call_service, concurrency=4, retry=RETRY)  # until SIGTERM


def start_worker(store: str, **env: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, __file__, "--store", store, "--worker"]
    return subprocess.Popen(command, env={**os.environ, **env})


def work_off(store: str, queue: LeaseQueue, workers: int, *, kills: int, **env: str) -> None:
    """Workers until nothing is left; some of them are killed on the way."""
    pool = [start_worker(store, **env) for _ in range(workers)]
    total = queue.stats().depth
    while (depth := queue.stats().depth) > 0:
        if kills and depth < total * 3 // 4:
            kills -= 1
            pool[0].kill()
            pool[0].wait()
            print(f"killed {pool[0].pid}", flush=True)
            pool[0] = start_worker(store, **env)
        time.sleep(0.1)
    for process in pool:
        process.send_signal(signal.SIGTERM)
    for process in pool:
        process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", required=True, help="where the queue lies: a path or s3://bucket/path")
    parser.add_argument("--jobs", type=int, default=40)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--worker", action="store_true", help="be one of the workers")
    options = parser.parse_args()
    if options.worker:
        run_worker(options.store)
        return
    with Producer(ProducerConfig(store=options.store, manifest_path=MANIFEST)) as producer:
        for number in range(options.jobs):
            producer.produce([f"job-{number}".encode()])
            producer.flush()  # a batch of its own for each: batches are what workers share
    with open_queue(options.store) as queue:
        work_off(options.store, queue, options.workers, kills=1)
        print(f"parked: {queue.stats().parked}", flush=True)
        print(f"redriven: {queue.redrive()}", flush=True)
        work_off(options.store, queue, options.workers, kills=0, FIXED="yes")
        print("all jobs are done", flush=True)


if __name__ == "__main__":
    main()
