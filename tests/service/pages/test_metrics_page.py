"""`/metrics`: every figure under its name, kind and unit, as Prometheus' own parser reads it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as prometheus
from service_figures import IDLE, SMALL, STATUS

from sortshuffle.service.pages.metrics_page import metrics_page

GAUGES = {
    "uptime_seconds": 3725.5,
    "authenticated": 1,
    "encrypted": 0,
    "connections": 2,
    "channels": 3 + 4,
    "backlog_bytes": 2_048,
    "stalled_seconds": 61.5,
    "pool_segments": 2_000,
    "pool_segments_in_use": 250,
    "segment_bytes": 32_768,
    "partitions_open": 21,
    "readers": 22,
    "reads_waiting": 23,
}
COUNTERS = {
    "connections_accepted": 101,
    "connections_refused": 102,
    "requests": 103,
    "errors": 104,
    "sent_bytes": 3 << 30,
    "sent_buffers": 106,
    "reads": 107,
    "read_bytes": 107 << 20,
}
OF_APPLICATIONS = {
    "homes": {"app-small": 1, "app-large": 2},
    "map_outputs": {"app-small": 5, "app-large": 30},
    "map_output_bytes": {"app-small": 1_000, "app-large": 70_000},
}
PREFIX = "sortshuffle_service_"


def page(status=STATUS, accept: str = "") -> str:  # type: ignore[no-untyped-def]
    return metrics_page(status, accept)[0].decode()


def test_every_figure_has_its_name_kind_and_value() -> None:
    found = {family.name.removeprefix(PREFIX): family for family in prometheus(page())}

    assert {n: f.samples[0].value for n, f in found.items() if f.type == "gauge" and n in GAUGES} == GAUGES
    assert {n: f.samples[0].value for n, f in found.items() if f.type == "counter"} == COUNTERS
    assert {f.samples[0].name for f in found.values() if f.type == "counter"} == {
        f"{PREFIX}{name}_total" for name in COUNTERS
    }
    of_applications = {
        name: {sample.labels["application"]: sample.value for sample in found[name].samples}
        for name in OF_APPLICATIONS
    }
    assert of_applications == OF_APPLICATIONS
    assert found["build_info"].samples[0].labels == {"address": "10.0.0.1:7448", "version": "1.2.3"}
    assert set(found) == {*GAUGES, *COUNTERS, *OF_APPLICATIONS, "build_info"}
    assert all(family.documentation.endswith(".") for family in found.values())


def test_openmetrics_where_it_is_asked_for() -> None:
    body, kind = metrics_page(STATUS, "application/openmetrics-text; version=1.0.0")
    assert kind.startswith("application/openmetrics-text")
    families = {family.name.removeprefix(PREFIX): family for family in openmetrics(body.decode())}
    assert families["sent_bytes"].unit == "bytes"
    assert families["stalled_seconds"].unit == "seconds"
    assert families["sent_bytes"].samples[0].value == 3 << 30
    assert metrics_page(STATUS, "")[1].startswith("text/plain")


def test_a_service_without_clients_has_all_figures_too() -> None:
    found = {family.name.removeprefix(PREFIX): family for family in prometheus(page(IDLE))}
    for name in ("connections", "channels", "backlog_bytes", "stalled_seconds", "pool_segments_in_use"):
        assert [sample.value for sample in found[name].samples] == [0]
    assert found["map_outputs"].samples == []


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\nb", "a{b}", "ä€"], ids=repr)
def test_any_name_of_an_application_can_be_read_back(name: str) -> None:
    text = page(replace(STATUS, applications=(replace(SMALL, application=name),)))
    outputs = next(f for f in prometheus(text) if f.name == f"{PREFIX}map_outputs")
    assert [(sample.labels, sample.value) for sample in outputs.samples] == [({"application": name}, 5)]
