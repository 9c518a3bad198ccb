"""Starts and drives `loader_process.py`. Every process is ended by the test that started it, by its id."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from buffer_delta.config import LoaderConfig
from tests.nets import HANGS_S
from tests.spark.loader_process import SESSION


class LoaderProcess:
    """One loader process. `start` it with a command, `wait_for` what it says, `freeze`, `thaw` or `kill` it."""

    PROGRAM = "loader_process.py"

    def __init__(
        self, folder: Path, *, loads: dict[str, Any] | None = None, config: dict[str, str] | None = None
    ) -> None:
        """`loads` and `config` are what `spark_session` gets."""
        self.log = folder / f"loader-{os.urandom(3).hex()}.log"
        with self.log.open("w") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name(self.PROGRAM))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                cwd=folder,
                env={**os.environ, SESSION: json.dumps([loads, config or {}])},
                start_new_session=True,  # the JVM goes with it when the group is killed
            )
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._pumping = threading.Thread(target=self._pump, daemon=True)
        self._pumping.start()

    def _pump(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def start(self, config: dict[str, Any], **options: Any) -> None:
        writer = LoaderConfig.__init__.__kwdefaults__["writer"]  # which `--writer` may have set
        self._send(json.dumps({"config": {"writer": writer} | config, **options}))

    def go(self) -> None:
        self._send("go")

    def _send(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """The next thing it says. Raises EOFError when it is dead."""
        line = self._lines.get(timeout=HANGS_S)
        if line is None:
            raise EOFError(f"the loader process ended; its log: {self.log.read_text()[-3000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def wait_for(self, *keys: str, at: str | None = None) -> dict[str, Any]:
        """Skip what it says until one of the keys comes, or the step `at`."""
        while True:
            answer = self.answer()
            if any(key in answer for key in keys) or (at is not None and answer.get("at") == at):
                return answer
            if "error" in answer:
                raise AssertionError(f"the loader failed: {answer}; log: {self.log.read_text()[-3000:]}")

    def finish(self) -> dict[str, Any]:
        return self.wait_for("done", "error")

    def wait_dead(self) -> None:
        """Until it has killed itself at its `die_at` step."""
        while True:
            try:
                answer = self.answer()
            except EOFError:
                self._process.wait(timeout=HANGS_S)
                assert self._process.returncode == -signal.SIGKILL
                self.kill()
                return
            assert "done" not in answer, f"it was to die, but it finished: {answer}"
            assert "error" not in answer, f"it was to die, but it failed: {answer}"

    def freeze(self) -> None:
        os.kill(self._process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self._process.pid, signal.SIGCONT)

    def signal(self, number: int) -> None:
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        """The whole group, so that no JVM stays behind."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return  # it is gone already, and its JVM with it
        finally:
            self._process.wait(timeout=HANGS_S)
            self._pumping.join(timeout=HANGS_S)  # before its pipe is closed under it
            for stream in (self._process.stdin, self._process.stdout):
                if stream:
                    stream.close()
