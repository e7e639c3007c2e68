"""The pages of the site that are made of the code."""

from __future__ import annotations

import inspect
from collections.abc import Iterable

import click
from prometheus_client.parser import text_string_to_metric_families

from sortshuffle.cli.main import main
from sortshuffle.service.pages.metrics_page import metrics_page
from sortshuffle.service.pages.status import ApplicationStatus, ServiceStatus


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def commands() -> str:
    """What `--help` of each command says."""
    group = click.Context(main, info_name="sortshuffle")
    found = {name: main.get_command(group, name) for name in main.list_commands(group)}
    pages = [_command(click.Context(each, group, name)) for name, each in found.items() if each]
    return "\n".join(["# Commands", "", _text(main), "", *pages])


def _command(context: click.Context) -> str:
    command = context.command
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    options = [each for each in command.params if isinstance(each, click.Option)]  # without --help
    records = filter(None, (each.get_help_record(context) for each in options))
    described = table(("option", "what it does"), [(f"`{names}`", text) for names, text in records])
    return f"## {context.command_path}\n\n```console\n$ {usage}\n```\n\n{_text(command)}\n\n{described}"


def _text(command: click.Command) -> str:
    return inspect.cleandoc(command.help or "").replace("*", "\\*")


def metrics() -> str:
    """What `/metrics` of a shuffle service has."""
    families = list(text_string_to_metric_families(metrics_page(_idle())[0].decode()))
    rows = [
        (f"`{sample.name}`", family.type, ", ".join(sample.labels), family.documentation)
        for family in families
        for sample in family.samples
    ]
    return (
        "# Metrics of a shuffle service\n\n"
        "Each shuffle service shows these figures at `/metrics`, for Prometheus."
        " [Where that is, and what to look at](../cluster.md#the-status-of-a-service), is on another page."
        " So are [the figures of a job](../operations.md#what-a-job-did), which no service knows.\n\n"
        + table(("name", "kind", "labels", "meaning"), rows)
    )


def _idle() -> ServiceStatus:
    """A service of one application that has done nothing: each metric is there."""
    return ServiceStatus(
        address="",
        version="",
        pid=0,
        uptime=0.0,
        authenticated=True,
        encrypted=True,
        roots=(),
        connections=(),
        applications=(ApplicationStatus("", 0, 0, 0),),
        pool_segments=0,
        pool_segments_free=0,
        segment_bytes=0,
        partitions_open=0,
        readers=0,
        reads_waiting=0,
        connections_total=0,
        connections_refused_total=0,
        requests_total=0,
        errors_total=0,
        bytes_sent_total=0,
        buffers_sent_total=0,
        reads_total=0,
        bytes_read_total=0,
    )


def python_module(module: str) -> str:
    """A page of what a module exports; the docstrings are read when the page is made."""
    return f"# `{module}`\n\n::: {module}\n"
