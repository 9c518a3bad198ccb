"""A real browser, where there is one: headless Chromium from the system's packages."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
TIMEOUT_S = 240.0


def chromium() -> str:
    """Its path; skips the test where there is none."""
    found = next((path for name in PROGRAMS if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("no Chromium is installed, so the page was not opened")
    return found


def run(url: str, *options: str, wait_ms: int = 4000) -> str:
    """Open a page, let its scripts run for `wait_ms` of its own time, and return what the options print."""
    program = chromium()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [
                *(program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
                *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
                *("--hide-scrollbars", f"--user-data-dir={profile}", f"--virtual-time-budget={wait_ms}"),
                *(*options, url),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            out, _ = process.communicate(timeout=TIMEOUT_S)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    return out.decode()


def dom(url: str, *options: str) -> str:
    return run(url, "--dump-dom", *options)


def screenshot(url: str, path: Path, width: int, height: int, *, dark: bool = False) -> None:
    scheme = "--blink-settings=preferredColorScheme=0" if dark else "--blink-settings=preferredColorScheme=1"
    run(url, f"--screenshot={path}", f"--window-size={width},{height}", scheme)
