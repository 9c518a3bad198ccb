"""An S3 server that can be killed and started again on its data, behind proxies whose addresses stay the same."""

from __future__ import annotations

import signal
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import psutil

from tests.fault_proxy import FaultProxy
from tests.servers import S3Server, StoreAddress, run_s3_server


def through(proxy: FaultProxy, address: StoreAddress, **client_options: Any) -> StoreAddress:
    """The same store, reached through the proxy."""
    client = {**address.options["client_options"], **client_options}
    return StoreAddress(address.url, {**address.options, "endpoint": proxy.endpoint, "client_options": client})


class MortalS3:
    """Use it in `with`. Its clients must go through one of its proxies: each new life is on other ports."""

    def __init__(self, folder: Path, *proxies: FaultProxy) -> None:
        self.lives = 0
        self.server: S3Server | None = None
        self._folder = folder
        self._proxies = proxies
        self._life = ExitStack()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._life.close()

    def start(self) -> float:
        """Start it on the data it left; clients reach it once it answers. Returns how many seconds that took."""
        assert self.server is None, "it runs"
        started_s = time.monotonic()
        self.server = self._life.enter_context(run_s3_server(self._folder))
        self.lives += 1
        for proxy in self._proxies:
            proxy.upstream = self.server.endpoint
        return time.monotonic() - started_s

    def kill(self) -> None:
        """kill -9, in the middle of whatever it does."""
        assert self.server is not None, "it is dead"
        victims = [child for child in psutil.Process().children(recursive=True) if self._is_it(child)]
        assert victims, f"no process serves {self._folder}"
        for victim in victims:
            victim.send_signal(signal.SIGKILL)
        for proxy in self._proxies:
            proxy.upstream = None
        self.server = None
        self._life.close()  # waits for the process beside it
        self._life = ExitStack()

    def _is_it(self, process: psutil.Process) -> bool:
        try:
            command = process.cmdline()
        except psutil.Error:  # another child, ended meanwhile
            return False
        return bool(command) and Path(command[0]).name == "weed" and f"-dir={self._folder}" in command
