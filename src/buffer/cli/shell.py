"""What every command shares: exit codes, one-line errors, options. What it prints goes through `printing`.

    0 done · 1 failed · 2 bad usage · 3 fenced · 4 blocked · 5 gap · 130 Ctrl-C · 141 the pipe's reader is gone

Rules:
- Results go to stdout; errors, warnings and progress to stderr. Progress is drawn on terminals only.
- An error is one line, `error: …`. The traceback is there with `--debug`.
- A command returns its exit code; None is 0. Errors become codes here and nowhere else.
"""

from __future__ import annotations

import logging
import math
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

import click
from click.shell_completion import get_completion_class, shell_complete

from buffer.cli.interrupts import interruptible
from buffer.cli.logs import LogFormat, StderrHandler, write_json
from buffer.cli.printing import echo, escape_what_does_not_fit, one_line
from buffer.clock import SystemClock
from buffer.config import YEAR_S
from buffer.errors import BufferQueueError, Fenced, InvalidInput, StateLost
from buffer.urls import masked

DONE, FAILED, USAGE, FENCED, BLOCKED, GAP = range(6)
INTERRUPTED = 130
READER_GONE = 141

ExitCodes = Sequence[tuple[type[BaseException], int]]
"""The first class that an error is an instance of decides; FAILED if none does."""

CORE_EXIT_CODES: ExitCodes = ((InvalidInput, USAGE), (Fenced, FENCED), (StateLost, GAP))

EXIT_CODE_HELP = "Exit codes: 0 done, 1 failed, 2 bad usage, 3 fenced, 4 blocked, 5 gap or lost state."

F = TypeVar("F", bound=Callable[..., Any])


@dataclass
class Session:
    """One run of a program. Options that may stand on any command leave their values here."""

    debug: bool = False
    verbose: bool = False
    log_format: LogFormat = "text"

    @property
    def log_level(self) -> int:
        return logging.DEBUG if self.debug else logging.INFO if self.verbose else logging.WARNING


# Running


def run(
    command: click.Command, prog_name: str, args: Sequence[str] | None = None, codes: ExitCodes = CORE_EXIT_CODES
) -> int:
    """Run a command line, by default the process's own, and return its exit code. Errors become codes here."""
    session = Session()
    args = sys.argv[1:] if args is None else list(args)
    variable = completion_variable(prog_name)
    if instruction := os.environ.get(variable):
        return shell_complete(command, {"obj": session}, prog_name, variable, instruction)
    if sys.stdout is None:  # and the next file to be opened would stand in its place
        echo("error: stdout is closed, so nothing could be printed: redirect it, to /dev/null at least", err=True)
        return USAGE
    escape_what_does_not_fit()
    with interruptible(), _logging_to_stderr(session):
        try:
            # Not `command.main`: it has codes of its own for a broken pipe and for Ctrl-C.
            with command.make_context(prog_name, args, obj=session) as context:
                result = command.invoke(context)
            sys.stdout.flush()
        except click.exceptions.Exit as wanted:
            return wanted.exit_code
        except BrokenPipeError:
            _forget_stdout()
            return READER_GONE
        except (KeyboardInterrupt, click.Abort):
            return INTERRUPTED
        except click.ClickException as error:
            _show_usage(error)
            return error.exit_code
        except Exception as error:  # noqa: BLE001 - the last line: a person gets a sentence, not a traceback
            return _report(error, session, codes)
        return result if isinstance(result, int) else DONE


def leave(code: int) -> NoReturn:
    """End the program. After Ctrl-C at once: a thread that waits for a store that does not answer is not waited for."""
    if code == INTERRUPTED and any(not t.daemon for t in threading.enumerate() if t is not threading.main_thread()):
        with suppress(OSError, ValueError):
            sys.stdout.flush()
        os._exit(code)
    sys.exit(code)


def exit_code(error: BaseException, codes: ExitCodes = CORE_EXIT_CODES) -> int:
    return next((code for kind, code in codes if isinstance(error, kind)), FAILED)


def describe(error: BaseException) -> str:
    """One line, without keys. Errors of this project say all there is to say; of others, the class belongs to it."""
    return one_line(masked(_described(error)))


def _described(error: BaseException) -> str:
    if isinstance(error, BufferQueueError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}".rstrip(": ")


def _report(error: Exception, session: Session, codes: ExitCodes) -> int:
    if session.log_format == "json":
        facts: dict[str, Any] = {"event": "error", "error": type(error).__name__, "exit_code": exit_code(error, codes)}
        if session.debug:
            facts["traceback"] = masked("".join(traceback.format_exception(error)))
        at_s = SystemClock().now_ms() / 1000
        write_json("error", describe(error), logger=__name__, at_s=at_s, facts=facts)
        return exit_code(error, codes)
    if session.debug:
        for line in "".join(traceback.format_exception(error)).splitlines():
            echo(masked(line), err=True)
    echo(f"error: {describe(error)}", err=True)
    for note in getattr(error, "__notes__", []):
        echo(f"       {one_line(masked(note))}", err=True)
    if not isinstance(error, BufferQueueError | OSError) and not session.debug:
        echo("       run it again with --debug to see where that came from", err=True)
    return exit_code(error, codes)


def _show_usage(error: click.ClickException) -> None:
    if isinstance(error, click.UsageError) and error.message == (error.ctx.get_help() if error.ctx else None):
        error.show()  # a group without a command shows its help
        return
    message = error.format_message()
    if message.startswith("Got unexpected extra argument"):  # it may be a key that got apart from its option
        message = message.partition("(")[0].strip() + ": an option's value with spaces needs quotes"
    echo(f"error: {one_line(masked(message))}", err=True)
    context = error.ctx if isinstance(error, click.UsageError) else None
    if context is not None:
        echo(f"       `{context.command_path} --help` tells more", err=True)


def _forget_stdout() -> None:
    """Nobody reads any more: what is still buffered must not fail once more when the interpreter flushes it."""
    try:
        descriptor = sys.stdout.fileno()
    except (AttributeError, OSError, ValueError):  # not a real file
        return
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, descriptor)
    os.close(devnull)


@contextmanager
def _logging_to_stderr(session: Session) -> Iterator[None]:
    """The libraries' warnings, while the command runs. The level follows `-v` and `--debug` as they are parsed."""
    handler = StderrHandler(session)
    loggers = [logging.getLogger("buffer"), logging.getLogger("buffer_delta")]
    earlier = [(logger, logger.level, logger.propagate) for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(logging.DEBUG)
        logger.propagate = False
    try:
        yield
    finally:
        for logger, level, propagate in earlier:
            logger.removeHandler(handler)
            logger.setLevel(level)
            logger.propagate = propagate


def session_options(command: F) -> F:
    """`--debug`, `-v` and `--log-format`, wherever on the command line they stand."""

    def remember(ctx: click.Context, param: click.Parameter, value: bool | str | None) -> None:
        session = ctx.find_object(Session)
        if value and session is not None and param.name is not None:
            setattr(session, param.name, value)

    formats = click.Choice(["text", "json"])
    text = "Of what goes to stderr: lines for people, or JSON lines. [default: text]"
    command = click.option("--log-format", type=formats, expose_value=False, callback=remember, help=text)(command)

    for names, text in (
        (("--debug",), "Show tracebacks and debug logs."),
        (("-v", "--verbose"), "Show info logs."),
    ):
        command = click.option(*names, is_flag=True, expose_value=False, callback=remember, help=text)(command)
    return command


class Seconds(click.FloatRange):
    """A time to wait. `nan` passes every comparison of a range, and would make a loop that never waits or ends."""

    name = "seconds"

    def __init__(self, low: float = 0.0) -> None:
        super().__init__(min=low, max=YEAR_S)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        seconds = super().convert(value, param, ctx)
        if math.isnan(seconds):
            self.fail(f"{value} is not a number of seconds", param, ctx)
        return seconds


INTERVAL = Seconds(0.001)
"""Between two looks: a loop must not spin."""

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")


class OrderedGroup(click.Group):
    """Lists its commands in the order in which they were added: the usual ones first."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(self.commands)


# Completion


def completion_variable(program: str) -> str:
    return f"_{program.replace('-', '_').upper()}_COMPLETE"


def completion_command(program: str) -> click.Command:
    """The command that prints the script which makes a shell complete the program's command line."""

    @click.command(
        "completion",
        help=f"""Print the script that makes your shell complete commands and options.

        \b
        bash   eval "$({program} completion bash)"     in ~/.bashrc
        zsh    eval "$({program} completion zsh)"      in ~/.zshrc
        fish   {program} completion fish > ~/.config/fish/completions/{program}.fish
        """,
    )
    @click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
    @click.pass_context
    def completion(ctx: click.Context, shell: str) -> None:
        kind = get_completion_class(shell)
        assert kind is not None, "click knows the three"
        click.echo(kind(ctx.find_root().command, {}, program, completion_variable(program)).source())

    return completion
