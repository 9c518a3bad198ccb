"""Processes to torment: started with a JSON argument, heard line by line, frozen, woken and killed by their id."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from tests.nets import HANGS_S

ROOT = Path(__file__).parents[2]


def await_true(condition: Callable[[], bool], timeout_s: float, what: str = "") -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, f"not within {timeout_s:g} s: {what or condition}"
        time.sleep(0.01)


def _path() -> str:
    """For a process that works elsewhere: it must find the tests, and the sources that these run with."""
    return os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])


class Worker:
    """`python -m module '{…}'` in a session of its own, so that a kill takes along whatever it started.

    It must end when its standard input does: then nothing is left running when whoever started it dies.
    """

    def __init__(
        self, module: str, options: dict[str, Any], log: Path, environment: dict[str, str] | None = None
    ) -> None:
        """Its standard error is appended to `log`, and the log's folder is where it works."""
        self.log = log
        with log.open("ab") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, json.dumps(options)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                cwd=log.parent,
                env={**os.environ, "PYTHONPATH": _path(), **(environment or {})},
                start_new_session=True,
            )
        self.frozen = False
        self._closed = False
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._pump = threading.Thread(target=self._read, name=f"pump of {module}", daemon=True)
        self._pump.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):  # a JVM that it starts has the same output, and may complain there
                self._lines.put(line)
        self._lines.put(None)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def send(self, line: str) -> None:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # dead already: it will be noticed
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()

    def heard(self) -> list[dict[str, Any]]:
        """What it has said since the last call."""
        messages = []
        with suppress(queue.Empty):
            while (line := self._lines.get_nowait()) is not None:
                messages.append(json.loads(line))
        return messages

    def wait_for(self, key: str, timeout_s: float = HANGS_S) -> dict[str, Any]:
        """Skip what it says until it says that. Raises EOFError when it is dead, queue.Empty when it is silent."""
        while True:
            line = self._lines.get(timeout=timeout_s)
            if line is None:
                raise EOFError(f"it ended before it said {key!r}: {self.last_words()}")
            message: dict[str, Any] = json.loads(line)
            if key in message:
                return message

    def last_words(self, size: int = 3000) -> str:
        return self.log.read_text(errors="replace")[-size:]

    # Tormenting

    def freeze(self, *, group: bool = False) -> None:
        self._signal(signal.SIGSTOP, group)
        self.frozen = True

    def thaw(self) -> None:
        self._signal(signal.SIGCONT, True)
        self.frozen = False

    def terminate(self) -> None:
        self._signal(signal.SIGTERM, False)

    def kill(self, *, group: bool = True) -> None:
        """kill -9: it and all that it started, or, without `group`, what it started goes on without it."""
        if self._closed:
            return
        self._signal(signal.SIGKILL, group)
        self.process.wait(HANGS_S)
        if group:
            self._close()

    def end(self, timeout_s: float = HANGS_S) -> int:
        """Close its standard input and wait for it to end by itself. Returns its exit code."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        code = self.process.wait(timeout_s)
        self._close()
        return code

    def end_by_itself(self, timeout_s: float = HANGS_S) -> int:
        """Wait for it to end, with its standard input open. Returns its exit code."""
        code = self.process.wait(timeout_s)
        self._close()
        return code

    def _signal(self, number: int, group: bool) -> None:
        if self._closed:
            return  # by now its pid may be somebody else's
        with suppress(ProcessLookupError):  # it has ended by itself
            if group:
                os.killpg(self.pid, number)
            elif self.is_alive:
                os.kill(self.pid, number)

    def _close(self) -> None:
        self._closed = True
        self._pump.join()
        for stream in (self.process.stdin, self.process.stdout):
            if stream:
                with suppress(BrokenPipeError):  # it died before it read what was written last
                    stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.kill()


def say(**message: Any) -> None:
    """A worker's way to speak: one JSON line on its standard output."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def on_end_of_input(act: Callable[[], None]) -> None:
    """A worker's way to listen: call `act` once whoever started it closes its standard input, or dies."""

    def listen() -> None:
        sys.stdin.read()
        act()

    threading.Thread(target=listen, name="until the end of input", daemon=True).start()
