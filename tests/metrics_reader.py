"""Read the real instruments in tests. OpenTelemetry takes one provider per process, so there is one reader."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opentelemetry.metrics import get_meter_provider, set_meter_provider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader


def _connected() -> InMemoryMetricReader:
    """The process's reader, connected to every instrument of `buffer.metrics`."""
    memory = InMemoryMetricReader()
    provider = get_meter_provider()
    if isinstance(provider, MeterProvider):  # a server was here first
        provider.add_metric_reader(memory)
    else:
        set_meter_provider(MeterProvider([memory], shutdown_on_exit=False))
    return memory


READER = _connected()  # when it is imported: what an instrument was told before that is gone


def value(name: str, attributes: Mapping[str, str] | None = None) -> float:
    """What a counter has counted so far, a gauge shows, or how many values a histogram holds; 0 if none."""
    return next((p.count if hasattr(p, "count") else p.value for p in points(name, attributes)), 0)


def points(name: str, attributes: Mapping[str, str] | None = None) -> list[Any]:
    data = READER.get_metrics_data()
    return [
        point
        for resource in (data.resource_metrics if data else [])
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.name == name
        for point in metric.data.data_points
        if attributes is None or dict(point.attributes) == dict(attributes)
    ]
