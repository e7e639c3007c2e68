"""The text of `ShuffleRDD.explain`: the stages in the order of the data, and their figures so far."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from sortshuffle.options import format_size
from sortshuffle.spark.rdds.plan import PassedInput, RecordChain
from sortshuffle.spark.worker.reports import StageTotals

SHOWN_SECONDS = 0.005  # steps that took less would print as 0.00


def text(chain: RecordChain, run: int, totals: Sequence[StageTotals]) -> str:
    """Return the plan of an RDD, a line for each step of a stage, sources first.

    ``run``: the number of the RDD's own result stage. ``totals``: the figures of all stages that ran.
    """
    done = {total.stage: total for total in totals}
    lines: list[str] = []
    for stage in chain.stages():
        does = "passes records on" if isinstance(stage, PassedInput) else "writes an exchange"
        lines += [f"Stage {stage.number}, {does}", *_chain_lines(stage.upstream)]
        lines += [f"    -> {stage.describe()}", *_figure_lines(done, stage.number)]
    lines += [f"Result stage {run}", *_chain_lines(chain), "    -> records", *_figure_lines(done, run)]
    return "\n".join(lines)


def _chain_lines(chain: RecordChain) -> Iterator[str]:
    yield f"    {chain.origin.describe()}"
    yield from (f"    {step.describe()}" for step in chain.steps)


def _figure_lines(done: Mapping[int, StageTotals], stage: int) -> Iterator[str]:
    total = done.get(stage)
    if total is None:
        return
    counts = total.metrics.counts
    yield (
        f"    {total.tasks} tasks, {total.wall:.2f} s of task time; {counts['rows_in']:,} records in,"
        f" {counts['rows_out']:,} out; at most {format_size(counts['memory_peak'])} held by a task"
    )
    if counts["extents_read"]:
        yield f"    read {format_size(counts['bytes_read'])} in {counts['extents_read']:,} extents"
    if counts["rows_combined"]:
        yield f"    combined {counts['rows_combined']:,} records into others of their keys"
    if counts["bytes_spilled"]:
        yield f"    put aside {format_size(counts['bytes_spilled'])} in {counts['merge_passes']:,} passes"
    if counts["files"]:
        yield (
            f"    wrote {format_size(counts['bytes_written'])} in {counts['buffers_written']:,} buffers,"
            f" {counts['regions']:,} regions, {counts['spills']:,} spills, {counts['files']:,} files"
        )
    steps = [f"{step} {took:.2f}" for step, took in total.metrics.slowest() if took >= SHOWN_SECONDS]
    if steps:
        yield f"    seconds: {', '.join(steps)}"
