"""The part of a report's page on what an application did (`report.application`)."""

from __future__ import annotations

from xml.etree.ElementTree import Element

from sortshuffle.html_page import add, add_figure, add_table, format_time
from sortshuffle.options import format_size
from sortshuffle.report.application import ApplicationRun, PythonStage, SparkStage
from sortshuffle.report.plots import MOST_STAGES, longest, steps_plot, timeline_plot

SHOWN_STEPS = 3  # of a stage, in a table
LEAST_SECONDS = 0.05  # of a step there: shorter ones would print as 0.0 s


def add_run(body: Element, run: ApplicationRun) -> None:
    """Add the stages of Spark's, the steps of Python's, and where rows crossed between them."""
    add(body, "h2", "chapter", "What ran")
    _stages(body, run)
    _python_stages(body, run)
    _crossings(body, run)


def _stages(body: Element, run: ApplicationRun) -> None:
    if not run.stages:
        add(body, "p", "soft", "No stage ran.")
        return
    shown = longest(run.stages)
    label = f"{len(run.stages):,} stage{'s' * (len(run.stages) > 1)} in {format_time(run.seconds)}"
    if len(shown) < len(run.stages):
        label += f"; the {MOST_STAGES} that took longest are shown"
    if run.skipped:
        label += (
            f"; {run.skipped:,} more did not run: their results were there, or a stage before them failed"
        )
    add_figure(body, timeline_plot("timeline", run), "When each stage ran", label)
    names = ["stage", "began", "took", "tasks", "task time", "read", "written", "spilled", "status"]
    add(body, "h3", text="Spark's stages, the longest first")
    rows = sorted(run.stages, key=lambda stage: stage.begin - stage.end)
    add_table(body, names, [(stage.failed_tasks > 0, _stage_cells(stage)) for stage in rows])
    add(
        body,
        "p",
        "soft",
        "Read and written are Spark's figures: input, output, and what went through Spark's shuffle or the"
        " shuffle manager. Stages of frames and RDDs write only control rows there.",
    )


def _stage_cells(stage: SparkStage) -> list[str]:
    failed = f", {stage.failed_tasks:,} failed" if stage.failed_tasks else ""
    return [
        f"{stage.label}: {stage.name}",
        format_time(stage.begin),
        format_time(stage.end - stage.begin),
        f"{stage.tasks:,}{failed}",
        format_time(stage.task_seconds),
        format_size(stage.read_bytes),
        format_size(stage.written_bytes),
        format_size(stage.spilled_bytes),
        stage.status,
    ]


def _python_stages(body: Element, run: ApplicationRun) -> None:
    if not run.python_stages:
        return
    if run.steps:
        whole = sum(seconds for _, seconds in run.steps)
        name, most = run.steps[0]
        label = f"{format_time(whole)} in all, of which {name} took {most / whole:.0%}"
        add_figure(
            body, steps_plot("steps", run.steps), "Seconds of tasks in each step of Python stages", label
        )
    add(body, "h3", text="Python stages, those with most task time first")
    names = ["stage", "tasks", "task time", "rows in", "rows out", "read", "spilled", "most memory", "steps"]
    longest_first = sorted(run.python_stages, key=lambda stage: -stage.wall)
    add_table(body, names, [(False, _python_cells(stage)) for stage in longest_first], texts={8})
    written = [
        (False, _written_cells(stage, number))
        for stage in run.python_stages
        for number in sorted(stage.outputs)
    ]
    if written:
        add(body, "h3", text="What they wrote")
        names = ["exchange", "of stage", "rows", "stored", "before compression", "regions", "memory was full"]
        add_table(body, names, written)


def _python_cells(stage: PythonStage) -> list[str]:
    counts = stage.metrics.counts
    slowest = [each for each in stage.metrics.slowest()[:SHOWN_STEPS] if each[1] >= LEAST_SECONDS]
    steps = ", ".join(f"{step} {format_time(took)}" for step, took in slowest)
    return [
        str(stage.number),
        f"{stage.tasks:,}",
        format_time(stage.wall),
        f"{counts['rows_in']:,}",
        f"{counts['rows_out']:,}",
        format_size(counts["bytes_read"]),
        format_size(counts["bytes_spilled"]),
        format_size(counts["memory_peak"]),
        steps,
    ]


def _written_cells(stage: PythonStage, exchange: int) -> list[str]:
    counts = stage.outputs[exchange].counts
    return [
        str(exchange),
        str(stage.number),
        f"{counts['rows_written']:,}",
        format_size(counts["bytes_written"]),
        format_size(counts["raw_bytes_written"]),
        f"{counts['regions']:,}",
        f"{counts['spills']:,} times",
    ]


def _crossings(body: Element, run: ApplicationRun) -> None:
    if not run.python_stages:
        return
    add(body, "h3", text="Where rows crossed between Spark and Python")
    if not run.crossings:
        add(body, "p", "soft", "Nowhere but where they began and ended.")
        return
    listed = add(body, "ul")
    for line in run.crossings:
        add(listed, "li", text=line)
