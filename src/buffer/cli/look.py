"""Commands that look at a queue and change nothing: `status`, `manifest dump`, `ledger dump`, `verify`."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import click

from buffer.cli.interrupts import InterruptibleClock
from buffer.cli.older import legacy_option, older_path, show_status, verify_pairs
from buffer.cli.options import LOOKING_TABLES, looking_settings, queue_options
from buffer.cli.printing import Lazy, echo, print_facts, print_json, print_table, track
from buffer.cli.shell import DONE, FAILED, json_option
from buffer.config import ConsumerConfig
from buffer.consume.fetch import FetchHandle
from buffer.errors import ObjectNotFound
from buffer.inspect.human import human_bytes, plural
from buffer.inspect.status import queue_status, read_ledger, read_manifest
from buffer.inspect.verify import check_batches, damaged
from buffer.manifest import VERSION as MANIFEST_VERSION
from buffer.manifest import Manifest
from buffer.model import BatchDescriptor, Metadata
from buffer.names import ledger_path
from buffer.store.base import Store
from buffer.store.open import open_store


def open_queue(options: dict[str, Any], tables: Sequence[str] = LOOKING_TABLES) -> tuple[ConsumerConfig, Store]:
    config = looking_settings(options, tables)
    store = open_store(config.store, **config.store_options) if isinstance(config.store, str) else config.store
    return config, store


def fetch_handle(config: ConsumerConfig, store: Store) -> FetchHandle:
    return FetchHandle(
        store, config.max_batch_bytes, config.fetch_attempts, InterruptibleClock(), prefixes=config.prefixes()
    )


@click.command()
@queue_options
@click.option("--no-objects", is_flag=True, help="Do not list the batch objects: quicker on a prefix of millions.")
@legacy_option
@json_option
def status(no_objects: bool, legacy: bool, as_json: bool, **options: Any) -> None:
    """Show what waits in a queue, how far its loader is, and whether anybody must act.

    Nothing is claimed and nothing is changed: run it as often as you like, beside producers and loaders.

    \b
    Examples:
      buffer status --store ./queue
      buffer status --store s3://bucket/events --json | jq .lag_seconds

    \b
    waiting   batches that no consumer has acked yet, and their bytes
    lag       how long the oldest of them has waited
    epoch     goes up by one each time a consumer takes the queue over
    plan      the range that a loader is committing, or planned last
    blocked   batches that cannot be read; `buffer verify` and `buffer-delta unblock` help

    A queue of the older format (a manifest of pending batches, and one of claims) is shown as what it is: how many
    batches are free, claimed, stale, parked, or being migrated.
    """
    config, store = open_queue(options)
    if (path := older_path(store, config, legacy=legacy)) is not None:
        show_status(store, path, as_json=as_json)
        return
    prefix = None if no_objects else config.data_path_prefix
    found = queue_status(store, config.manifest_path, data_path_prefix=prefix)
    if as_json:
        print_json(found.to_dict())
    else:
        print_facts(found.facts())


@click.group()
def manifest() -> None:
    """The manifest: the list of batches that is the queue."""


@manifest.command("dump")
@queue_options
@json_option
def dump_manifest(as_json: bool, **options: Any) -> None:
    """Print the manifest as JSON; with --json on one line.

    \b
    Keys: version, epoch, next_sequence, entries[{sequence, location,
          metadata[{start_index, ingestion_time_ms, payload_base64}]}]

    \b
    Example:
      buffer manifest dump --store ./queue | jq '.entries[].location'
    """
    config, store = open_queue(options)
    found = read_manifest(store, config.manifest_path)
    for _ in found:  # all of it, before a part of a damaged one is printed
        pass
    print_json(manifest_document(found), indent=None if as_json else 2)


def manifest_document(manifest: Manifest) -> dict[str, Any]:
    """For `print_json`: entries and items become JSON one by one, for a manifest may have millions."""
    return {
        "version": MANIFEST_VERSION,
        "epoch": manifest.epoch,
        "next_sequence": manifest.next_sequence,
        "entries": Lazy(len(manifest), lambda: map(_entry_document, manifest)),
    }


def _entry_document(entry: BatchDescriptor) -> dict[str, Any]:
    items = Lazy(len(entry.metadata), lambda: map(_item_document, entry.metadata))
    return {"sequence": entry.sequence, "location": entry.location, "metadata": items}


def _item_document(item: Metadata) -> dict[str, Any]:
    return {
        "start_index": item.start_index,
        "ingestion_time_ms": item.ingestion_time_ms,
        "payload_base64": base64.b64encode(item.payload).decode(),
    }


@click.group()
def ledger() -> None:
    """The ledger: what a loader has promised to do with the queue."""


@ledger.command("dump")
@queue_options
@json_option
def dump_ledger(as_json: bool, **options: Any) -> None:
    """Print the ledger as JSON; with --json on one line. It exists once a loader was here.

    An older file is shown in today's form, sections that this release does not know as they are.

    \b
    Example:
      buffer ledger dump --store ./queue | jq .plan.range
    """
    config, store = open_queue(options)
    found = read_ledger(store, config.manifest_path)
    if found is None:
        path = ledger_path(config.manifest_path)
        raise ObjectNotFound(
            f"{store.url} has no ledger {path!r}: no loader has been at this queue, or the path is wrong",
            location=path,
        )
    print_json(found.to_document(), indent=None if as_json else 2)


@click.command()
@queue_options
@click.option("--from", "first", type=click.IntRange(min=0), default=0, help="Start at this sequence.")
@click.option("--jobs", type=click.IntRange(1, 64), default=4, show_default=True, help="Batches read at once.")
@legacy_option
@json_option
def verify(first: int, jobs: int, legacy: bool, as_json: bool, **options: Any) -> int:
    """Check that every batch in the queue is there and decodes.

    Reads them all, changes nothing, and lists the ones that are damaged:

    \b
    missing      there is no object at its location
    corrupt      its bytes do not decode, or are more than max_batch_bytes allows
    refused      its location is not in the queue's folder (see former_prefixes), or nobody's
    unreadable   the store could not deliver it: no permission, no network

    \b
    Example:
      buffer verify --store s3://bucket/events && echo all fine

    Of a queue of the older format it checks what waits, parked batches too; `--from` means nothing there.

    Exit code 1 if any batch is damaged.
    """
    config, store = open_queue(options)
    if (path := older_path(store, config, legacy=legacy)) is not None:
        return verify_pairs(store, config, path, jobs, as_json=as_json)
    seen = read_manifest(store, config.manifest_path)
    total = max(0, seen.next_sequence - max(first, seen.first_sequence))
    checks = check_batches(fetch_handle(config, store), seen.entries_from(first), jobs)
    checked = list(track(checks, total=total, label="verifying"))
    bad = damaged(checked, read_manifest(store, config.manifest_path))
    entries, size = sum(item.entries for item in checked), sum(item.bytes for item in checked)
    if as_json:
        listed = [{"sequence": b.sequence, "location": b.location, "problem": b.problem, "error": b.error} for b in bad]
        print_json({"batches": len(checked), "entries": entries, "bytes": size, "damaged": listed})
    else:
        if bad:
            print_table(
                ["sequence", "problem", "location", "error"],
                [(b.sequence, b.problem, b.location, b.error) for b in bad],
                right=["sequence"],
            )
        batches = plural(len(checked), "batches")
        verdict = f"{len(bad):,} of {batches} damaged" if bad else f"{batches}, all fine"
        echo(f"{verdict}: {plural(entries, 'entries')}, {human_bytes(size)} decoded")
    return FAILED if bad else DONE
