"""Which path gives which view of the one status, and the life of the parts together.

    /             the page                        /healthz   200, or 503 if it needs attention
    /api/status   what `buffer-delta status` says  /livez     503 only if a restart could help
    /api/history  the last hour                   /readyz    503 until it does its work
    /metrics      for Prometheus

The server is made and bound before anything is claimed: a wrong address ends the start, not a running loader. It takes
nothing but GET, changes nothing, and shows nothing of a record unless `show_records` allows what errors quote.
A status is kept for a moment, so what page, health and metrics are asked for at one time is the same value.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from functools import cache
from http import HTTPStatus
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from buffer.clock import Clock, SystemClock
from buffer.config import ConsumerConfig
from buffer.errors import InvalidConfig
from buffer_delta import metrics
from buffer_delta.metrics import Readings
from buffer_delta.serve.http import Answer, HttpServer
from buffer_delta.serve.masking import masked
from buffer_delta.serve.readings import readings_of
from buffer_delta.serve.status import Limits, Status
from buffer_delta.serve.watch import LOOK_S, CanWatch, Watch, Watched

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

DEFAULT_ADDRESS = "127.0.0.1:9464"
STATUS_KEPT_S = 0.25  # a flood of requests costs four statuses a second

ASSETS = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}


class StatusServer:
    """One watched queue, served. `start`, then `close`; both may be called once."""

    def __init__(
        self,
        address: str,
        store: CanWatch,
        config: ConsumerConfig,
        *,
        loader: Watched | None = None,
        limits: Limits | None = None,
        with_objects: bool = True,
        show_records: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._show_records = show_records
        self.watch = Watch(store, config, loader=loader, limits=limits, with_objects=with_objects, clock=clock)
        self._kept: tuple[float, Status] | None = None
        self._http = HttpServer(address, self._answer)  # first: an address that is taken leaves no reader behind
        try:
            self._registry, self._unregister = _prometheus()
        except BaseException:
            self._http.close()
            raise

    @property
    def url(self) -> str:
        return self._http.url

    def start(self, look_s: float = LOOK_S) -> None:
        metrics.watch(self)
        self.watch.start(look_s)
        self._http.start()

    def close(self) -> None:
        metrics.forget(self)
        self.watch.close()
        self._http.close()
        self._unregister()

    def status(self) -> Status:
        """As it is served. Kept for a moment, so that asking often costs little."""
        now_s = self._clock.monotonic_s()
        if self._kept is None or now_s - self._kept[0] >= STATUS_KEPT_S:
            found = self.watch.status()
            self._kept = (now_s, found if self._show_records else masked(found))
        return self._kept[1]

    def readings(self) -> Readings | None:
        return readings_of(self.status())

    # Answering

    def _answer(self, path: str) -> Answer | None:
        if path in ASSETS:
            name, content_type = ASSETS[path]
            return Answer(_asset(name), content_type)
        match path:
            case "/healthz":
                return self._verdict(self.status().is_healthy)
            case "/readyz":
                return self._verdict(self.status().is_ready)
            case "/livez":
                return self._verdict(not self.status().needs_restart)
            case "/api/status":
                return Answer(_json(self.status().to_dict()))
            case "/api/history":
                return Answer(_json([dataclasses.asdict(sample) for sample in self.watch.history()]))
            case "/metrics":
                return Answer(_scrape(self._registry), "text/plain; version=0.0.4; charset=utf-8")
        return None

    def _verdict(self, is_fine: bool) -> Answer:
        status = HTTPStatus.OK if is_fine else HTTPStatus.SERVICE_UNAVAILABLE
        return Answer(_json(self.status().health()), status=status)


@cache
def _asset(name: str) -> bytes:
    return files("buffer_delta.serve").joinpath("assets", name).read_bytes()


def _json(value: Any) -> bytes:
    return (json.dumps(value, ensure_ascii=True) + "\n").encode()


# Prometheus, through OpenTelemetry's own exporter


def _prometheus() -> tuple[CollectorRegistry, Callable[[], None]]:
    """A registry that shows every instrument of this process, and how to take it off again.

    A program that has set up OpenTelemetry keeps its provider, and gets one more reader.
    """
    try:
        from opentelemetry.exporter.prometheus import PrometheusMetricReader
        from opentelemetry.metrics import get_meter_provider, set_meter_provider
        from opentelemetry.sdk.metrics import MeterProvider
        from prometheus_client import CollectorRegistry
    except ModuleNotFoundError as error:
        raise InvalidConfig(
            f"serving needs {error.name}, which is not installed: pip install 'buffer-delta[serve]'", key="serve"
        ) from error
    registry = CollectorRegistry()
    reader = PrometheusMetricReader(registry=registry)
    provider = get_meter_provider()
    if not isinstance(provider, MeterProvider):
        provider = MeterProvider(shutdown_on_exit=False)
        set_meter_provider(provider)
    provider.add_metric_reader(reader)

    def unregister() -> None:
        provider.remove_metric_reader(reader)

    return registry, unregister


def _scrape(registry: CollectorRegistry) -> bytes:
    from prometheus_client import generate_latest

    return generate_latest(registry)
