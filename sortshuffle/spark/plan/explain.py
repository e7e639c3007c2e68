"""The text of `ShuffleFrame.explain`: the stages in the order of the data, with the figures of past runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from sortshuffle.options import format_size
from sortshuffle.spark.plan import coalescing, skew
from sortshuffle.spark.plan.chain import Chain, ShuffleDependency
from sortshuffle.spark.worker.reports import StageTotals
from sortshuffle.spark.worker.stages import Step

SHOWN_SECONDS = 0.005  # shorter steps would print as 0.00


def text(chain: Chain, totals: Sequence[StageTotals], runs: Sequence[int]) -> str:
    """Return the plan of a frame, sources first, with one line for each thing that a stage does.

    ``totals``: those of all stages that ran. ``runs``: the numbers of the frame's own result stages.
    """
    done = {total.stage: total for total in totals}
    lines: list[str] = []
    writers = {exchange.stage().number: exchange for exchange in chain.exchanges()}
    for _, exchange in sorted(writers.items()):
        lines += _map_stage(exchange, done)
    lines += [
        "Result stage",
        *_inputs(chain, coalescing.ends_of(chain)),
        *_steps(chain.steps, "    "),
        "    -> rows",
    ]
    lines += [f"    run {run}: {_figures(done[run])}" for run in runs if run in done]
    if not chain.context.reports.arrive:
        lines.append("over Spark Connect there are no figures of what ran: tasks have no way to report them")
    return "\n".join(lines)


def _map_stage(exchange: ShuffleDependency, done: Mapping[int, StageTotals]) -> Iterator[str]:
    stage = exchange.stage()
    total = done.get(stage.number)
    count = len(stage.branches)
    yield f"Stage {stage.number}, writes {'an exchange' if count == 1 else f'{count} exchanges in one pass'}"
    yield from _inputs(exchange.upstream, stage.ends)
    yield from _steps(stage.steps, "    ")
    for branch in stage.branches:
        yield from _steps(branch.steps, "        ")
        yield f"    -> {branch.text}"
        if total is not None and branch.exchange in total.outputs:
            yield f"       {_written(total.outputs[branch.exchange].counts)}"
    if total is not None:
        yield f"    {_figures(total)}"


def _inputs(chain: Chain, ends: Sequence[int] | None) -> list[str]:
    """Return the lines on what a stage reads, and on how subpartitions are divided among its tasks.
    ``ends``: those of `coalescing.ends_of`."""
    lines = [*chain.origin.lines(), *skew.lines(chain)]
    if ends is not None:
        lines.append(f"{ends[-1]} small partitions in {len(ends)} tasks")
    return [f"    {line}" for line in lines]


def _steps(steps: Sequence[Step], indent: str) -> list[str]:
    return [f"{indent}{step.describe()}" for step in steps]


def _written(counts: Mapping[str, int]) -> str:
    return (
        f"wrote {counts['rows_written']:,} rows, {format_size(counts['bytes_written'])}"
        f" in {counts['buffers_written']:,} buffers, {counts['regions']:,} regions"
        f", {counts['spills']:,} spills, {counts['files']:,} files"
    )


def _figures(total: StageTotals) -> str:
    counts, seconds = total.metrics.counts, total.metrics.seconds
    waiting = f", {seconds['wait']:.2f} s of it waiting" if "wait" in seconds else ""
    parts = [f"{total.tasks} tasks, {total.wall:.2f} s of task time{waiting}"]
    if counts["extents_read"]:
        parts.append(
            f"read {counts['rows_read']:,} rows, {format_size(counts['bytes_read'])}"
            f" in {counts['extents_read']:,} extents"
        )
    parts.append(f"{_rows(counts, 'in')}, {_rows(counts, 'out')}")
    parts.append(f"at most {format_size(counts['memory_peak'])} held by a task")
    slowest = total.metrics.slowest()
    steps = ", ".join(f"{step} {taken:.2f}" for step, taken in slowest if taken >= SHOWN_SECONDS)
    return "; ".join(parts) + (f"; seconds: {steps}" if steps else "")


def _rows(counts: Mapping[str, int], where: str) -> str:
    return f"{counts[f'rows_{where}']:,} rows {where} ({counts[f'batches_{where}']:,} batches)"
