"""What `ShuffleFrame.explain` prints: the stages in the order of the data, and what they did so far."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sortshuffle.options import format_size
from sortshuffle.spark.plan import Chain, Exchange, ExchangeOrigin
from sortshuffle.spark.reports import StageTotals


def text(chain: Chain, totals: Sequence[StageTotals]) -> str:
    """The plan of a frame, a line for each thing that a stage does, sources first."""
    done = {total.stage: total for total in totals}
    lines: list[str] = []
    for exchange in _exchanges(chain):
        lines += _stage(exchange.upstream, f"Stage {exchange.number}, writes an exchange")
        lines.append(f"    -> {exchange.describe()}")
        if exchange.number in done:
            lines.append(f"    {_figures(done[exchange.number])}")
    lines += _stage(chain, "Result stage")
    lines.append("    -> rows")
    shown = {exchange.number for exchange in _exchanges(chain)}
    first = max(shown, default=0)
    for total in totals:
        if total.stage > first and total.metrics.counts["files"] == 0:
            lines.append(f"    run {total.stage}: {_figures(total)}")
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
    steps = ", ".join(f"{step} {seconds:.2f}" for step, seconds in total.metrics.seconds.most_common() if seconds >= 0.005)
    return "; ".join(parts) + (f"; seconds: {steps}" if steps else "")
