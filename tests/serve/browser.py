"""A real browser, where there is one: headless Chromium from the system's packages, told by its own protocol.

By a pipe, not by its command line: there a window has at least 500 pixels, and a phone has 320.
"""

from __future__ import annotations

import base64
import fcntl
import html
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.nets import HANGS_S

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-debugging-pipe"),
)
LAUNCHER = "import os, sys; [os.dup2(int(sys.argv[i]), i + 2) for i in (1, 2)]; os.execv(sys.argv[3], sys.argv[3:])"
"""It listens at 3 and speaks at 4."""
DRAWN = "document.body && document.body.dataset.overflow !== undefined"
"""What the page has done once it has shown a status."""


def find_chromium() -> str | None:
    return next((path for name in PROGRAMS if (path := shutil.which(name))), None)


def chromium() -> str:
    """Its path; skips the test where there is none."""
    found = find_chromium()
    if found is None:
        pytest.skip("no Chromium is installed, so the page was not opened")
    return found


class Browser:
    """One tab."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers = commands, answers
        self._received = b""
        self._number = 0
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.call("Page.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._received:
            ready, _, _ = select.select([self._answers], [], [], HANGS_S)
            assert ready, "the browser does not answer"
            data = os.read(self._answers, 1 << 16)
            assert data, "the browser has ended"
            self._received += data
        line, _, self._received = self._received.partition(b"\0")
        found: dict[str, Any] = json.loads(line)
        return found

    def look(self, url: str, width: int = 1000, height: int = 900, *, dark: bool = False, drawn: str = DRAWN) -> str:
        """Open a page on a screen of that size. Returns what stands there once it is drawn, as HTML."""
        narrow = width < 500
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2 if narrow else 1,
            mobile=narrow,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=url)
        deadline_s = time.monotonic() + HANGS_S
        while not self.asked(drawn):
            assert time.monotonic() < deadline_s, f"{url} was not drawn"
            time.sleep(0.05)
        return str(self.asked("document.documentElement.outerHTML"))

    def asked(self, expression: str) -> Any:
        """What JavaScript says to it."""
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """Of the page that was looked at last: as much of it as the screen shows, or all of it."""
        options: dict[str, Any] = {"format": "png"}
        if whole:
            size = self.call("Page.getLayoutMetrics")["cssContentSize"]
            clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
            options |= {"captureBeyondViewport": True, "clip": clip}
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", **options)["data"]))


@contextmanager
def running_browser() -> Iterator[Browser]:
    program = chromium()
    to_browser, commands = os.pipe()
    answers, from_browser = os.pipe()
    ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (to_browser, from_browser)]  # not 3 or 4 already
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [sys.executable, "-c", LAUNCHER, *map(str, ends), program, *OPTIONS, f"--user-data-dir={profile}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=ends,
            start_new_session=True,
        )
        for end in (to_browser, from_browser, *ends):
            os.close(end)
        try:
            yield Browser(commands, answers)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            os.close(commands)
            os.close(answers)


def shown(page: str, fact: str) -> tuple[str, str]:
    """The raw value and the text that stands at a fact."""
    found = re.search(rf'data-fact="{fact}"(?: data-value="([^"]*)")?>([^<]*)<', page)
    assert found, fact
    return found[1], html.unescape(found[2])
