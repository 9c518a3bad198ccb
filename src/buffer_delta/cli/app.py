"""The command `buffer-delta`: load a queue into Delta Lake tables."""

from __future__ import annotations

import dataclasses
import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from importlib.metadata import version
from typing import Any

import click

from buffer.cli.interrupts import InterruptibleClock
from buffer.cli.options import queue_options
from buffer.cli.printing import echo, is_terminal, print_json
from buffer.cli.shell import (
    BLOCKED,
    CORE_EXIT_CODES,
    EXIT_CODE_HELP,
    GAP,
    USAGE,
    ExitCodes,
    OrderedGroup,
    Seconds,
    Session,
    completion_command,
    json_option,
    run,
    session_options,
)
from buffer.errors import Fenced
from buffer.gc.short_run import ShortRun
from buffer.store.open import open_store
from buffer_delta.cli.check import check
from buffer_delta.cli.dead_letters import dead_letters, redrive
from buffer_delta.cli.demo import demo
from buffer_delta.cli.init import init
from buffer_delta.cli.live import live_line
from buffer_delta.cli.prepare import prepare
from buffer_delta.cli.serve import serve
from buffer_delta.cli.settings import loader_options, loader_settings
from buffer_delta.cli.spark import explaining_spark, running_spark, spark_options
from buffer_delta.cli.status import status, unblock
from buffer_delta.config import LoaderConfig
from buffer_delta.errors import Blocked, QueueBound, RedriveUnfinished, RouteChanged, SequenceGap
from buffer_delta.load.idle import is_idle
from buffer_delta.load.progress import Progress, Total

log = logging.getLogger(__name__)

EXIT_CODES: ExitCodes = (
    (Blocked, BLOCKED),
    (SequenceGap, GAP),
    (QueueBound, USAGE),
    (RouteChanged, USAGE),
    (RedriveUnfinished, USAGE),
    *CORE_EXIT_CODES,
)
"""The tree of lost state (table dropped, ledger behind, …) is in the core's list already, as GAP."""

FENCED_WAIT_S = 5.0


@click.group(
    cls=OrderedGroup,
    epilog=EXIT_CODE_HELP,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@session_options
@click.version_option(version("buffer-delta"), package_name="buffer-delta")
def cli() -> None:
    """Load a durable buffer into Delta Lake tables, exactly once, on Spark.

    \b
    Try it:
      buffer-delta demo
      seq 1000 | buffer produce --store ./queue
      buffer-delta load --store ./queue --table ./numbers --format text --available-now
    """


@click.command()
@queue_options
@loader_options
@spark_options
@click.option("--available-now", is_flag=True, help="Load what is in the queue now, then end.")
@click.option(
    "--fenced-wait-s",
    type=Seconds(),
    default=FENCED_WAIT_S,
    show_default=True,
    help="How long to wait before ending with 3 when another loader took over.",
)
@json_option
def load(available_now: bool, fenced_wait_s: float, as_json: bool, **options: Any) -> None:
    """Load a queue into a Delta table, each record exactly once.

    It runs until SIGTERM or Ctrl-C (which finish the commit in hand), or, with --available-now, until what is in
    the queue now is loaded. Start it again whenever it ended: it goes on where the table says it stopped.

    \b
    Examples:
      buffer-delta load --store ./queue --table ./events --format json --schema 'id BIGINT, name STRING'
      buffer-delta load --store s3://bucket/q --table s3a://lake/events --format json --dead-letters s3a://lake/bad
      buffer-delta load --config buffer.toml --available-now --json
      spark-submit examples/loader_job.py --config buffer.toml

    On a terminal one line shows how far it is; elsewhere there is a line for each commit, with --log-format json as
    JSON on stderr. --json prints each commit as a line of JSON on stdout ("event": "commit") and, with --available-now,
    the total of the run as the last one ("event": "done"), also if there was nothing to load. --serve adds a status
    page, health and metrics.

    Every setting can stand in the [loader] table of the --config file, or come as --set key=value.

    \b
    What the exit codes ask of a supervisor:
      1  failed: start it again, with a pause
      2  the call is wrong, or does not fit what the queue was loaded with before
      3  fenced: another loader runs. Do NOT start it again at once, or the two will duel
      4  blocked: batches cannot be read; see `buffer-delta unblock`
      5  a gap: batches or rows that should be there are not; an operator decides (--on-gap skip)
    """
    config = loader_settings(options)
    with explaining_spark():
        from buffer_delta.formats import resolve_format

        resolve_format(config.format)  # before Spark starts: that takes seconds
    spark_settings = {key: options[key] for key in ("master", "driver_memory", "packages", "spark_conf")}
    session = click.get_current_context().find_object(Session) or Session()
    if available_now and (deleted := _deleted_if_idle(config)) is not None:
        _tell_total(Total(deleted=deleted), session, as_json)
        return
    is_drawn = not as_json and session.log_format == "text" and is_terminal(sys.stderr) and is_terminal(sys.stdout)

    def tell(progress: Progress) -> None:
        if as_json:
            print_json({"event": "commit", **progress.to_dict()})
        elif session.log_format == "text" and not is_drawn:
            echo(str(progress))

    with running_spark(f"buffer-delta {config.table}", loads=config, **spark_settings) as spark:
        from buffer_delta.load.loader import Loader

        loader = Loader(spark, config, on_progress=tell)
        with _waiting_if_fenced(fenced_wait_s), live_line(loader.observe) if is_drawn else nullcontext():
            last = loader.run(available_now=available_now)
    if available_now:
        _tell_total(loader.total, session, as_json)
    elif last is None and not as_json:
        echo("there was nothing to load")
    elif last is not None and is_drawn:
        echo(str(last))


@contextmanager
def _waiting_if_fenced(wait_s: float) -> Iterator[None]:
    """A supervisor that starts it again at once would take the queue back from the loader that took over."""
    try:
        yield
    except Fenced:
        log.warning("another loader took over; ending in %g s", wait_s)
        InterruptibleClock().sleep(wait_s)
        raise


def _tell_total(total: Total, session: Session, as_json: bool) -> None:
    """One line on what a run did, also where it found nothing to do."""
    if as_json:
        print_json({"event": "done", **dataclasses.asdict(total)})
    if session.log_format != "text":
        log.info("%s", total, extra={"event": "done", "facts": dataclasses.asdict(total)})
    elif not as_json:
        echo(str(total))


def _deleted_if_idle(config: LoaderConfig) -> int | None:
    """How many old batches were deleted, if there is nothing else to do; None: Spark is needed."""
    store = open_store(config.store, **config.store_options)
    if not is_idle(store, config):
        return None
    if not config.gc_enabled:
        return 0
    gc = ShortRun(config.gc(), store=store, clock=InterruptibleClock())
    gc.begin()
    return gc.end()


for command in (
    init,
    check,
    load,
    status,
    serve,
    unblock,
    dead_letters,
    redrive,
    demo,
    prepare,
    completion_command("buffer-delta"),
):
    cli.add_command(command)


def main(args: Sequence[str] | None = None) -> None:
    sys.exit(run(cli, "buffer-delta", args, EXIT_CODES))
