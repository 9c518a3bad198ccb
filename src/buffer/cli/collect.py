"""`buffer gc`: delete batch objects that the queue no longer needs. The rules are in `buffer.gc.collector`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import click

from buffer.cli.interrupts import InterruptibleClock
from buffer.cli.options import queue_options, settings
from buffer.cli.printing import echo, print_json, working
from buffer.cli.shell import DONE, FAILED, INTERVAL, Seconds, describe, json_option
from buffer.clock import Clock
from buffer.config import GcConfig
from buffer.errors import BufferQueueError, InvalidConfig, ManifestLost, ObjectNotFound
from buffer.gc.collector import CANDIDATES_MAX, Collector, GcReport, Kept, Refusal
from buffer.inspect.status import read_manifest
from buffer.store.base import CanPoll, Store, Version
from buffer.store.open import open_store

log = logging.getLogger(__name__)

POLL_S = 0.5

WHY_KEPT = {
    Kept.IN_QUEUE: "in the queue, not acked yet",
    Kept.TOO_YOUNG: "younger than the grace period, {grace_s:g} s: an append may be under way",
    Kept.NOT_OLDER: "in no entry, but not older than the oldest batch in the queue: not before that is acked",
    Kept.QUEUE_UNDATED: "in no entry, but the queue has a batch whose name tells no time: not before that is acked",
    Kept.LATER: "not looked at: one look takes the {candidates:,} oldest",
}


@click.command()
@queue_options
@click.option("--dry-run", is_flag=True, help="Only list what a first look finds; delete nothing.")
@click.option("--wait-s", type=Seconds(), default=30.0, show_default=True, help="How long to wait for the second look.")
@click.option("--every", "every_s", type=INTERVAL, metavar="SECONDS", help="Go on for ever, with a look this often.")
@click.option("--gc-grace-s", type=float, help="Delete nothing younger. At least 600, the default.")
@click.option(
    "--gc-foreign", is_flag=True, default=None, help="Batches of OpenData's Go producer, too, from more than a day ago."
)
@json_option
def gc(dry_run: bool, wait_s: float, every_s: float | None, as_json: bool, **options: Any) -> int:
    """Delete batch objects that the queue no longer needs.

    Loaders and consumers do this by themselves, in the background. Use this command for a queue that has none, or
    where they run with gc_enabled=false.

    An object goes only if no entry of the manifest names it, it is older than every one that is named and
    older than the grace period, and TWO LOOKS found that, with a change of the manifest between them: an upload
    whose append is still under way must not be taken for garbage. So after a first look this command waits up to
    --wait-s for the queue to move, and looks again. On a queue that does not move, only objects older than a day
    go. And nothing goes while another queue's manifest lies in the same folder.

    \b
    Examples:
      buffer gc --store ./queue --dry-run          what a first look finds, and why the rest stays
      buffer gc --store ./queue                    two looks, then end
      buffer gc --store s3://bucket/events --every 300
    """
    config = settings(GcConfig, options)
    store = open_store(config.store, **config.store_options)
    clock = InterruptibleClock()
    collector = Collector(config, store=store, clock=clock)
    if every_s is not None and not dry_run:
        return _for_ever(collector, config, clock, every_s, as_json)
    with working("looking at the batch objects") as tell:
        if dry_run:
            report = _checked(collector.collect_once(dry_run=True), config, store)
        else:
            report = _two_looks(collector, config, store, clock, wait_s, tell)
    _print_report(report, config, as_json)
    return FAILED if report.failed else DONE


def _two_looks(
    collector: Collector, config: GcConfig, store: Store, clock: Clock, wait_s: float, tell: Callable[[str], None]
) -> GcReport:
    path, version = config.manifest_path, ""
    total = Total()
    deadline_s = clock.monotonic_s() + wait_s
    version = _wait_for_change(store, path, "", clock, deadline_s)
    total.add(_checked(collector.collect_once(), config, store))
    # At once: what is more than a day old needs no change in between.
    while total.waits_for_more:
        tell(f"second look; {len(total.deleted):,} deleted so far")
        total.add(_checked(collector.collect_once(), config, store))
        tell(f"waiting for the queue to move, {wait_s:g} s at most; {len(total.deleted):,} deleted so far")
        changed = _wait_for_change(store, path, version, clock, deadline_s) if total.waits_for_more else version
        if changed == version:
            break
        version = changed
    return total.report()


def _wait_for_change(store: CanPoll, path: str, version: Version, clock: Clock, deadline_s: float) -> Version:
    """The manifest's version, as soon as it is another one; the same one if it is so until the deadline."""
    while True:
        try:
            seen = store.get_if_changed(path, version) if version else store.get(path)
        except ObjectNotFound:
            return version  # the next look says what that means
        if seen is not None and seen.version != version:
            return seen.version
        if clock.monotonic_s() >= deadline_s:
            return version
        clock.sleep(POLL_S)


@dataclass
class Total:
    """Several looks as one report: all that was deleted, and what the last one left over."""

    last: GcReport | None = None
    deleted: tuple[str, ...] = ()

    def add(self, report: GcReport) -> None:
        self.deleted += report.deleted
        self.last = report

    @property
    def waits_for_more(self) -> bool:
        return self.last is None or bool(self.last.waiting or self.last.failed)

    def report(self) -> GcReport:
        assert self.last is not None, "at least one look was added"
        return replace(self.last, deleted=self.deleted)


def _for_ever(collector: Collector, config: GcConfig, clock: Clock, every_s: float, as_json: bool) -> int:
    while True:
        try:
            _print_report(collector.collect_once(), config, as_json)
        except BufferQueueError as error:  # a store that is away comes back; nothing was deleted meanwhile
            log.warning("could not look, trying again in %g s: %s", every_s, describe(error))
        clock.sleep(every_s)


def _checked(report: GcReport, config: GcConfig, store: Store) -> GcReport:
    """The report, unless the collector refused to work."""
    if report.refusal is Refusal.MISSING:
        read_manifest(store, config.manifest_path)  # says why it is missing
    if report.refusal is Refusal.SHARED:
        raise InvalidConfig(
            f"nothing was deleted: {report.shared}", key="data_path_prefix", value=config.data_path_prefix
        )
    if report.refusal is not None:
        raise ManifestLost(
            f"nothing was deleted: the manifest {config.manifest_path!r} is not to be trusted "
            f"({report.refusal.value}). It was restored or replaced; decide which state is right first",
            location=config.manifest_path,
        )
    return report


def _print_report(report: GcReport, config: GcConfig, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "dry_run": report.dry_run,
                "listed": report.listed,
                "deleted": list(report.deleted),
                "waiting": list(report.waiting),
                "failed": [{"location": f.location, "error": str(f.cause)} for f in report.failed],
                "refusal": report.refusal.value if report.refusal else None,
                "shared": report.shared,
                "kept": {
                    **{why.value: report.kept.get(why, 0) for why in Kept},
                    "second_look": len(report.waiting),
                },
            }
        )
        return
    for location in report.waiting if report.dry_run else report.deleted:
        echo(location)
    for failure in report.failed:
        echo(f"error: {failure.location}: {failure.cause}", err=True)
    if report.dry_run:
        echo(
            f"{len(report.waiting):,} of {report.listed:,} batches would go after a second look, "
            "once the queue has changed or they are a day old",
            err=True,
        )
        for why, text in WHY_KEPT.items():
            if count := report.kept.get(why, 0):
                reason = text.format(grace_s=config.gc_grace_s, candidates=CANDIDATES_MAX)
                echo(f"{count:,} {'stays' if count == 1 else 'stay'}: {reason}", err=True)
        return
    rest = f"; {len(report.waiting):,} more wait for another look" if report.waiting else ""
    failed = f"; {len(report.failed):,} could not be deleted" if report.failed else ""
    echo(f"{len(report.deleted):,} of {report.listed:,} batches deleted{rest}{failed}", err=True)
