"""`buffer clients`: how far each client is in a queue, and what an operator may do about it."""

from __future__ import annotations

from typing import Any

import click

from buffer.cli.look import open_queue
from buffer.cli.options import queue_options
from buffer.cli.printing import print_facts, print_json, print_table
from buffer.cli.shell import DONE, FAILED, json_option
from buffer.clients import ClientLedger
from buffer.clock import SystemClock
from buffer.config import ConsumerConfig
from buffer.inspect.human import plural
from buffer.inspect.status import read_manifest
from buffer.ledger.clients import Clients, hole
from buffer.manifest import Manifest
from buffer.marks import Mark, newest_marks
from buffer.store.base import Store


@click.group()
def clients() -> None:
    """Clients: producers that number their calls, so that a repeated call is in the queue once."""


def _ledger(config: ConsumerConfig, store: Store) -> ClientLedger:
    return ClientLedger(store, config.manifest_path, SystemClock(), timeout_s=config.cas_timeout_s)


@clients.command("list")
@queue_options
@json_option
def list_clients(as_json: bool, **options: Any) -> int:
    """Show how far each client is: the largest client_seq in the queue, counting what has left it.

    It ends with 1 if marks are lost: a reader that knows none has removed entries, and nobody can tell which calls
    were in them. Producers with client ids stop then, until `buffer clients forget --lost` accepts it.

    \b
    Examples:
      buffer clients list --store ./queue
      buffer clients list --store s3://bucket/events --json | jq '.clients[] | select(.client_id == "sensor-7")'
    """
    config, store = open_queue(options)
    manifest = read_manifest(store, config.manifest_path)
    section = _ledger(config, store).read() or Clients()  # after the manifest: marks move from there to here
    lost = hole(section, manifest)
    found = _high_waters(section, manifest)
    if as_json:
        print_json(
            {
                "clients": [
                    {"client_id": name, "client_seq": m.client_seq, "sequence": m.sequence, "batch": m.batch}
                    for name, m in found
                ],
                "through": section.through,
                "lost": None if lost is None else {"first": lost.first, "last": lost.last},
            }
        )
    else:
        rows = [(name, m.client_seq, m.sequence, m.batch) for name, m in found]
        print_table(("client", "client_seq", "sequence", "batch"), rows, right=("client_seq", "sequence"))
        print_facts(
            {
                "clients": f"{len(found):,}",
                "marks lost": f"of sequences {lost.first} to {lost.last}: the numbers above may be too low. See "
                "`buffer clients forget --help`"
                if lost
                else None,
            }
        )
    return FAILED if lost else DONE


def _high_waters(section: Clients, manifest: Manifest) -> list[tuple[str, Mark]]:
    marks = dict(section.marks)
    for name, mark in newest_marks(manifest).items():
        known = marks.get(name)
        if known is None or mark.client_seq >= known.client_seq:
            marks[name] = mark
    return sorted(marks.items())


@clients.command("forget")
@click.argument("client_ids", nargs=-1, metavar="[CLIENT]...")
@click.option("--lost", "accept_loss", is_flag=True, help="Accept that marks were lost, and go on without them.")
@queue_options
@json_option
def forget(client_ids: tuple[str, ...], accept_loss: bool, as_json: bool, **options: Any) -> int:
    """Forget how far clients are: each of them starts anew. Stop their producers first.

    Marks do not expire by themselves. A client that is gone for good leaves a line in the ledger; this takes it out.
    One that still has calls in the queue is refused: they count, and would be kept anew when they leave.

    \b
    Examples:
      buffer clients forget --store ./queue sensor-7 sensor-8
      buffer clients forget --store ./queue --lost

    With --lost the marks that a foreign reader took away are given up. Before, find out how far each client got, in
    the table say: a call that is in it, and is repeated under its number, would be there twice. A manifest that was
    restored from a backup is accepted as it is: how far the clients are is kept, and what it has forgotten is lost.
    """
    config, store = open_queue(options)
    if not client_ids and not accept_loss:
        raise click.UsageError("forget whom? Name clients, or pass --lost")
    ledger = _ledger(config, store)
    if client_ids:
        ledger.check_left(client_ids, read_manifest(store, config.manifest_path))
        ledger.forget(client_ids)
    if accept_loss:
        ledger.accept_loss(lambda: read_manifest(store, config.manifest_path))
    if as_json:
        print_json({"forgotten": list(client_ids), "loss_accepted": accept_loss})
    else:
        print_facts(
            {
                "forgotten": plural(len(client_ids), "clients") if client_ids else None,
                "lost marks": "accepted" if accept_loss else None,
            }
        )
    return DONE
