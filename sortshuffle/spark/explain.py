"""What `ShuffleFrame.explain` prints: the stages in the order of the data, and what they did so far."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sortshuffle.options import format_size
from sortshuffle.spark.plan import Chain, Exchange, ExchangeOrigin
from sortshuffle.spark.reports import StageTotals

SHOWN_SECONDS = 0.005  # steps that took less would print as 0.00


def text(chain: Chain, totals: Sequence[StageTotals], runs: Sequence[int]) -> str:
    """The plan of a frame, a line for each thing that a stage does, sources first.

    ``totals``: of all stages that ran; ``runs``: numbers of the frame's own result stages.
    """
    done = {total.stage: total for total in totals}
    lines: list[str] = []
    for exchange in _exchanges(chain):
        lines += _stage(exchange.upstream, f"Stage {exchange.number}, writes an exchange")
        lines.append(f"    -> {exchange.describe()}")
        if exchange.number in done:
            lines.append(f"    {_figures(done[exchange.number])}")
    lines += _stage(chain, "Result stage")
    lines.append("    -> rows")
    lines += [f"    run {run}: {_figures(done[run])}" for run in runs if run in done]
    return "\n".join(lines)


def _exchanges(chain: Chain) -> Iterator[Exchange]:
    origin = chain.origin
    if isinstance(origin, ExchangeOrigin):
        yield from _exchanges(origin.exchange.upstream)
        yield origin.exchange


def _stage(chain: Chain, title: str) -> list[str]:
    steps = [f"    {step.describe()}" for step in chain.steps]
    return [title, f"    {chain.origin.describe()}", *steps]


def _figures(total: StageTotals) -> str:
    counts = total.metrics.counts
    parts = [f"{total.tasks} tasks, {total.wall:.2f} s of task time"]
    if counts["files"]:
        parts.append(
            f"wrote {counts['rows_written']:,} rows, {format_size(counts['bytes_written'])}"
            f" in {counts['regions']} regions"
        )
    if counts["extents_read"]:
        parts.append(
            f"read {counts['rows_read']:,} rows, {format_size(counts['bytes_read'])}"
            f" in {counts['extents_read']} extents"
        )
    parts.append(f"at most {format_size(counts['memory_peak'])} held by a task")
    seconds = total.metrics.slowest()
    steps = ", ".join(f"{step} {taken:.2f}" for step, taken in seconds if taken >= SHOWN_SECONDS)
    return "; ".join(parts) + (f"; seconds: {steps}" if steps else "")
