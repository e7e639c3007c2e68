"""`/metrics`: a shuffle service's figures in Prometheus' text format.

A collector makes the page from one `ServiceStatus`. Prometheus' own counters are not used: the service counts
once, and all pages show such snapshots.

A name is ``sortshuffle_service_``, the thing counted, and its unit. Applications are labels: a host has few.
Connections are only summed: each has a new port, and would be a new series.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import choose_encoder

from sortshuffle.service.pages.status import ApplicationStatus, ServiceStatus

PREFIX = "sortshuffle_service_"


def metrics_page(status: ServiceStatus, accept: str = "") -> tuple[bytes, str]:
    """Return the page and its content type: OpenMetrics if ``accept``, the client's Accept header, has it."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Snapshot(status))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


class _Snapshot:
    def __init__(self, status: ServiceStatus) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        yield from _whole(self._status)
        yield from _now(self._status)
        yield from _since_start(self._status)
        yield from _applications(self._status.applications)


def _whole(status: ServiceStatus) -> Iterator[Metric]:
    about = InfoMetricFamily(PREFIX + "build", "The shuffle service that answers.")
    about.add_metric((), {"address": status.address, "version": status.version})
    yield about
    yield _gauge("uptime_seconds", "Time since the service started.", status.uptime, "seconds")
    yield _gauge("authenticated", "1 if clients must know the secret, else 0.", status.authenticated)
    yield _gauge("encrypted", "1 if connections use TLS, else 0.", status.encrypted)


def _now(status: ServiceStatus) -> Iterator[Metric]:
    connections = status.connections
    channels = sum(each.channels for each in connections)
    backlog = sum(each.backlog for each in connections)
    stalled = max((each.stalled for each in connections), default=0.0)
    yield _gauge("connections", "Clients that are connected.", len(connections))
    yield _gauge("channels", "Channels of all connections.", channels)
    yield _gauge("backlog_bytes", "Bytes that wait to be sent to clients.", backlog, "bytes")
    yield _gauge(
        "stalled_seconds", "Time since the slowest client took what waits for it.", stalled, "seconds"
    )
    yield _gauge("pool_segments", "Segments of the read pool.", status.pool_segments)
    yield _gauge(
        "pool_segments_in_use", "Segments of the read pool that hold data.", status.pool_segments_used
    )
    yield _gauge(
        "segment_bytes", "Size of a segment, which is what a credit is worth.", status.segment_bytes, "bytes"
    )
    yield _gauge("partitions_open", "Map outputs whose files are open.", status.partitions_open)
    yield _gauge("readers", "Subpartition ranges that are being read.", status.readers)
    yield _gauge("reads_waiting", "Map outputs that wait for a thread to read them.", status.reads_waiting)


def _since_start(status: ServiceStatus) -> Iterator[Metric]:
    # not "connections", which is the gauge of open ones
    yield _counter("connections_accepted", "Connections that were accepted.", status.connections_total)
    yield _counter("connections_refused", "Connections that were refused.", status.connections_refused_total)
    yield _counter("requests", "Requests of clients for map outputs.", status.requests_total)
    yield _counter("errors", "Channels and connections that ended in an error.", status.errors_total)
    yield _counter("sent_bytes", "Bytes sent to clients.", status.bytes_sent_total, "bytes")
    yield _counter("sent_buffers", "Responses with data sent to clients.", status.buffers_sent_total)
    yield _counter("reads", "Reads from data files.", status.reads_total)
    yield _counter("read_bytes", "Bytes read from data files.", status.bytes_read_total, "bytes")


def _applications(applications: Iterable[ApplicationStatus]) -> Iterator[Metric]:
    homes = GaugeMetricFamily(PREFIX + "homes", "Directories of executors.", labels=("application",))
    outputs = GaugeMetricFamily(
        PREFIX + "map_outputs", "Map outputs that are served.", labels=("application",)
    )
    size = GaugeMetricFamily(
        PREFIX + "map_output_bytes", "Size of their data files.", labels=("application",), unit="bytes"
    )
    for each in applications:
        homes.add_metric((each.application,), each.homes)
        outputs.add_metric((each.application,), each.map_outputs)
        size.add_metric((each.application,), each.bytes)
    yield from (homes, outputs, size)


def _gauge(name: str, meaning: str, value: float, unit: str = "") -> Metric:
    return GaugeMetricFamily(PREFIX + name, meaning, value=float(value), unit=unit)


def _counter(name: str, meaning: str, value: float, unit: str = "") -> Metric:
    return CounterMetricFamily(PREFIX + name, meaning, value=float(value), unit=unit)
