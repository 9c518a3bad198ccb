"""`buffer-delta demo`: the whole story on one machine, with a kill -9 in the middle of it.

Several producer processes write events while a loader loads them. The loader is killed right after a step of its
commit that matters, another one, which stood by, takes over, and in the end every event that a producer was told
durable must be in the table exactly once. Both loaders start Spark and warm up first, so that what is shown of their
speed is the speed, and the start is shown as what it is.
"""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from pathlib import Path

import click
from rich.text import Text

from buffer.cli.printing import echo, print_json, printable
from buffer.cli.shell import DONE, FAILED, Seconds, json_option, session_options
from buffer.errors import InvalidInput, StoreUnusable
from buffer_delta.cli.demo_run import CALLS, KILL_STEPS, Run
from buffer_delta.cli.demo_show import Story, is_exact, show
from buffer_delta.cli.serve import serve_queue, wait_for_ctrl_c
from buffer_delta.cli.spark import explaining_spark
from buffer_delta.serve.server import DEFAULT_ADDRESS

MARKER = ".buffer-delta-demo"
"""In every folder that the demo made: only such a folder is ever deleted."""


@click.command(short_help="Produce, load, kill -9 in a commit, go on, count.")
@click.option("--folder", type=click.Path(path_type=Path, file_okay=False), default="demo-data", show_default=True)
@click.option("--producers", type=click.IntRange(1, 16), default=3, show_default=True, help="Producer processes.")
@click.option("--events", type=click.IntRange(CALLS), default=300_000, show_default=True, help="Of each producer.")
@click.option("--seconds", type=Seconds(), default=25.0, show_default=True, help="How long they write.")
@click.option("--kill-at", type=click.Choice(list(KILL_STEPS)), default="appended", show_default=True)
@click.option(
    "--serve", metavar="HOST:PORT", help="Serve the queue's status page while it runs, and then until Ctrl-C."
)
@json_option
@session_options
def demo(
    folder: Path, producers: int, events: int, seconds: float, kill_at: str, serve: str | None, as_json: bool
) -> int:
    """Produce, load, kill the loader with -9 in the middle of a commit, start it again, count.

    Everything happens on local files below --folder, which is made anew by every run and left there for you to
    look at. It ends with 0 only if every event is in the table exactly once.

    \b
    Examples:
      buffer-delta demo
      buffer-delta demo --events 1000000 --kill-at planned
      buffer-delta demo --serve 127.0.0.1:9464       with the status page, which stays up
    """
    with explaining_spark():
        from buffer_delta.spark.session import check_java

        check_java()  # now, not after the producers have begun
    story = Story(quiet=as_json)
    prepare_folder(folder)
    with ExitStack() as stack:
        server = serve_queue(serve, str(folder.resolve() / "queue"), stack) if serve is not None else None
        if server is not None:
            story.tell(f"watch it at {server.url}")
        run = Run(folder.resolve(), story, stack, kill_at)
        result = run.play([f"producer-{number + 1}" for number in range(producers)], events, seconds)
        if as_json:
            print_json(result, default=str)
        else:
            show(story, result, folder)
        if server is not None:
            echo(f"The status page stays at {server.url} until Ctrl-C", err=as_json)
            wait_for_ctrl_c()
        elif not as_json:
            story.console.print(Text(f"Its status page: buffer-delta serve --store {printable(str(folder))}/queue"))
            story.console.print(Text(f"                 then open http://{DEFAULT_ADDRESS}/"))
    return DONE if is_exact(result) else FAILED


def prepare_folder(folder: Path) -> None:
    """An empty folder with our marker. Raises InvalidInput rather than delete one that is not ours."""
    try:
        if folder.exists() and any(folder.iterdir()):
            if not (folder / MARKER).exists():
                raise InvalidInput(
                    f"{str(folder)!r} is not empty and was not made by the demo, so it will not be deleted; move "
                    "it away, or choose another one with --folder"
                )
            shutil.rmtree(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MARKER).write_text("Made by `buffer-delta demo`, which deletes this folder when it runs again.\n")
    except OSError as error:
        raise StoreUnusable(
            f"cannot write to the folder {str(folder)!r}: {error.strerror}; choose another one with --folder",
            location=str(folder),
        ) from error
