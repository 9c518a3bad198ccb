"""Runs the command lines: in this process where nothing but arguments and output matters, else as programs."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest

from buffer.cli import cli
from buffer.cli.shell import CORE_EXIT_CODES, ExitCodes, run
from buffer.config import ProducerConfig
from buffer.produce.producer import Producer
from tests.nets import HANGS_S


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


class InProcess:
    """Calls a command line as the program would, and takes its output."""

    def __init__(
        self,
        capfd: pytest.CaptureFixture[str],
        command: click.Command = cli,
        name: str = "buffer",
        codes: ExitCodes = CORE_EXIT_CODES,
    ) -> None:
        self._capfd, self._command, self._name, self._codes = capfd, command, name, codes

    def __call__(self, *args: object) -> Ran:
        self._capfd.readouterr()
        code = run(self._command, self._name, [str(arg) for arg in args], self._codes)
        captured = self._capfd.readouterr()
        return Ran(code, captured.out, captured.err)


class Program:
    """`buffer …` as a program, with pipes. Ended with the block, if it still runs then."""

    def __init__(self, *args: object, environment: dict[str, str] | None = None, **kwargs: Any) -> None:
        self.process = subprocess.Popen(
            [str(Path(sys.executable).with_name("buffer")), *map(str, args)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **(environment or {})},
            **kwargs,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.stdin, self.stdout, self.stderr = self.process.stdin, self.process.stdout, self.process.stderr

    def write(self, data: bytes) -> None:
        self.stdin.write(data)
        self.stdin.flush()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def finish(self, stdin: bytes = b"") -> Ran:
        out, err = self.process.communicate(stdin, timeout=HANGS_S)
        return Ran(self.process.returncode, out.decode(), err.decode())

    def wait(self) -> int:
        return self.process.wait(HANGS_S)

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.stdin, self.stdout, self.stderr):
            stream.close()


def program(*args: object, stdin: bytes = b"", environment: dict[str, str] | None = None) -> Ran:
    """Runs `buffer …` as a program to its end."""
    with Program(*args, environment=environment) as running:
        return running.finish(stdin)


@contextmanager
def small_disk(folder: Path) -> Iterator[Callable[[], None]]:
    """Make a folder that holds 256 kB. Yields what a child must call first: where nothing can be mounted, a limit."""
    folder.mkdir()
    mount = shutil.which("mount")
    command = [mount or "", "-t", "tmpfs", "-o", "size=256k", "none", str(folder)]
    if mount and subprocess.run(command, capture_output=True, check=False).returncode == 0:
        try:
            yield lambda: None
        finally:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)
    else:
        yield lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))


def fill(folder: Path, *batches: list[bytes], metadata: bytes = b"") -> None:
    """One batch per list, in this order."""
    with Producer(ProducerConfig(store=str(folder))) as producer:
        for entries in batches:
            producer.produce(entries, metadata)
            producer.flush()
