"""`buffer-delta serve`: the status page, health and metrics of a queue, beside it. Needs no Spark."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import click

from buffer.cli.interrupts import InterruptibleClock
from buffer.cli.look import open_queue
from buffer.cli.options import LOADER_TABLES, queue_options
from buffer.cli.printing import echo
from buffer.cli.shell import INTERVAL
from buffer.config import ConsumerConfig
from buffer.store.open import open_store
from buffer_delta.serve.server import DEFAULT_ADDRESS, StatusServer
from buffer_delta.serve.status import STUCK_S, UNSEEN_S, Limits
from buffer_delta.serve.watch import LOOK_S

TURN_S = 3600.0


@click.command(short_help="Serve a status page, health and metrics of a queue.")
@queue_options
@click.option("--serve", "address", metavar="HOST:PORT", default=DEFAULT_ADDRESS, show_default=True)
@click.option("--every", "look_s", type=INTERVAL, default=LOOK_S, show_default=True, help="Seconds between looks.")
@click.option("--max-lag-s", type=INTERVAL, help="/healthz says 503 if the oldest entry has waited for longer.")
@click.option(
    "--stuck-s",
    type=INTERVAL,
    default=STUCK_S,
    show_default=True,
    help="/healthz says 503 if entries wait and nobody takes one for longer.",
)
@click.option("--no-objects", is_flag=True, help="Do not list the batch objects: the backlog's bytes are not shown.")
@click.option("--show-records", is_flag=True, help="Show what errors quote of records, too.")
def serve(
    address: str,
    look_s: float,
    max_lag_s: float | None,
    stuck_s: float,
    no_objects: bool,
    show_records: bool,
    **options: Any,
) -> None:
    """Serve a status page, health and Prometheus metrics of a queue, until Ctrl-C.

    It only looks: nothing is claimed and nothing is changed, so it runs beside any loader, consumer or workers, on any
    machine that can read the store. A loader serves itself with `buffer-delta load --serve`, and tells more: its
    attempts, its commits, its tables.

    \b
    /             the page                         /healthz   503 if it needs attention
    /api/status   what `buffer-delta status` says  /readyz    503 while the queue cannot be looked at
    /api/history  the last hour                    /metrics   for Prometheus

    It listens to this machine alone unless told otherwise, and has no authentication: to open it to others, put a
    proxy with authentication in front of it.

    \b
    Examples:
      buffer-delta serve --store ./queue
      buffer-delta serve --store s3://bucket/events --serve 0.0.0.0:9464 --max-lag-s 300
    """
    config, store = open_queue(options, LOADER_TABLES)
    server = StatusServer(
        address,
        store,
        config,
        limits=Limits(stuck_s=stuck_s, max_lag_s=max_lag_s, look_s=look_s + UNSEEN_S),
        with_objects=not no_objects,
        show_records=show_records,
    )
    server.start(look_s)
    try:
        echo(f"serving {store.url} {config.manifest_path} at {server.url}")
        clock = InterruptibleClock()
        while True:
            clock.sleep(TURN_S)
    finally:
        server.close()


def serve_queue(address: str, store: str, stack: ExitStack) -> StatusServer:
    """A queue that is served until the stack is left; it need not be there yet."""
    config = ConsumerConfig(store=store)
    server = StatusServer(address, open_store(store), config)
    stack.callback(server.close)
    server.start(look_s=1.0)
    return server


def wait_for_ctrl_c() -> None:
    clock = InterruptibleClock()
    try:
        while True:
            clock.sleep(TURN_S)
    except KeyboardInterrupt:
        return
