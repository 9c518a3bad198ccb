"""The command `buffer`: put records into a queue, look into it, keep it clean."""

from __future__ import annotations

from importlib.metadata import version

import click

from buffer.cli.clients import clients
from buffer.cli.collect import gc
from buffer.cli.leases import leases
from buffer.cli.look import ledger, manifest, status, verify
from buffer.cli.migrate import migrate
from buffer.cli.produce import produce
from buffer.cli.shell import EXIT_CODE_HELP, OrderedGroup, completion_command, leave, run, session_options
from buffer.cli.tail import tail


@click.group(
    cls=OrderedGroup,
    epilog=f"{EXIT_CODE_HELP} `buffer-delta` loads a queue into Delta Lake tables.",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@session_options
@click.version_option(version("buffer-delta"), package_name="buffer-delta")
def cli() -> None:
    """A durable buffer in object storage.

    Producers put records into a queue: batches of them as objects, and one manifest that lists the batches. No
    broker runs anywhere; a queue is a folder of a bucket, or of a disk.

    \b
    Try it:
      seq 1000 | buffer produce --store ./queue
      buffer status --store ./queue
      buffer tail   --store ./queue
    """


COMMANDS = (
    produce,
    status,
    tail,
    manifest,
    ledger,
    clients,
    leases,
    verify,
    gc,
    migrate,
    completion_command("buffer"),
)

for command in COMMANDS:
    cli.add_command(command)


def main() -> None:
    leave(run(cli, "buffer"))
