"""What a report says of an exchange: its figures, samples of its rows, and the advice that follows from both.

Each kind of advice is a function that gives one line or none. A line has the figure that was measured, and
says what to change. The lines are sorted by the time of tasks that they might save. This time is a rough
estimate, so it is not shown.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from sortshuffle.format.encryption import EncryptionKey
from sortshuffle.format.header import Codec, PayloadKind
from sortshuffle.options import MIB, Options, format_size
from sortshuffle.report.application import ApplicationRun
from sortshuffle.report.exchanges import ExchangeFiles
from sortshuffle.report.samples import ColumnSize, HeavyValue, Sampler, column_sizes, heavy_values
from sortshuffle.storage.inspection.contents import Spread

SKEW = (
    5.0  # times the median; as for Spark's skewed joins (spark.sql.adaptive.skewJoin.skewedPartitionFactor)
)
LEAST_SKEW = MIB  # bytes that a large subpartition has more than the median: less takes no time
SMALL = MIB  # bytes of a subpartition that is hardly worth a task: the least of Spark's adaptive execution
GOOD = (
    32 * MIB
)  # bytes of a subpartition that is worth one: as much as a task of a frame joins (`coalescing`)
LEAST_SPILLED = 16 * MIB  # bytes that a stage puts aside: less takes no time
FEW = 8  # subpartitions that are few in any case: a machine's cores should have something to do
WIDE = 2 / 3  # part of an exchange's bytes
INCOMPRESSIBLE = 1.05  # raw bytes by stored bytes, below which the codec's time is wasted
COMPRESSIBLE = 1.5  # the same, above which a codec is worth its time
MOST_ADVICE = 3  # lines

# Costs, in seconds, to sort advice by
TASK = 0.02  # of a task of no rows, and
EXTENT = 0.0001  # of a subpartition in each task that writes or reads it (spark.operators.partition_counts)
BYTE = 10e-9  # of a byte in the task that reads it: the exchange of 10 M rows takes 8 ns (docs/comparison.md)
SMALL_READ = EXTENT / BYTE  # bytes that a task reads in the time that it takes to begin
SPILLED_BYTE = 2 * BYTE  # of a byte that is written and read once more
CODEC_BYTE = 1e-9  # of a byte that LZ4 compresses


@dataclass(frozen=True, slots=True)
class Findings:
    """An exchange and the samples of its rows. ``columns``, ``heavy``: of so many ``sampled`` rows of the
    largest subpartition. ``refusal``: why there are none; empty if there are."""

    files: ExchangeFiles
    columns: tuple[ColumnSize, ...] = ()
    heavy: tuple[HeavyValue, ...] = ()
    sampled: int = 0
    refusal: str = ""

    @staticmethod
    def of(files: ExchangeFiles, key: EncryptionKey | None = None) -> Findings:
        """Take samples. ``key``: decrypts the rows. Raises OSError if files cannot be read."""
        sampler = Sampler(files, key)
        if sampler.refusal:
            return Findings(files, refusal=sampler.refusal)
        findings = Findings(files)
        if not files.totals.records:
            return Findings(files, refusal="there are none")
        wanted = [findings.spread.largest, findings.middling][: 1 + findings.is_skewed]
        largest, *others = sampler.rows(*wanted)
        if largest is None:
            return Findings(files, refusal="those looked at cannot be read; sortshuffle verify says more")
        columns = column_sizes(largest, files.header.codec)
        heavy = heavy_values(largest, others[0]) if others and others[0] is not None else ()
        return Findings(files, columns, heavy, largest.num_rows)

    @property
    def spread(self) -> Spread:
        return Spread.of(self.files.bytes)

    @property
    def typical_bytes(self) -> float:
        """The median of the subpartitions that are not empty; 0 if all are."""
        filled = self.files.bytes[self.files.bytes > 0]
        return float(np.median(filled)) if len(filled) else 0.0

    @property
    def middling(self) -> int:
        """A subpartition of about the typical size."""
        return int(np.abs(self.files.bytes - self.typical_bytes).argmin())

    @property
    def is_skewed(self) -> bool:
        excess = self.spread.most - self.typical_bytes
        return self.spread.most > SKEW * self.typical_bytes and excess >= LEAST_SKEW

    @property
    def raw_ratio(self) -> float:
        """Raw bytes by stored bytes; 1 if there are none."""
        totals = self.files.totals
        return totals.raw_bytes / totals.bytes if totals.bytes else 1.0


@dataclass(frozen=True, slots=True)
class Advice:
    """One line of advice. ``seconds``: what it might save, roughly. ``figure``: what was measured.
    ``remedy``: what to change."""

    seconds: float
    figure: str
    remedy: str


def advice(every: Sequence[Findings], run: ApplicationRun | None = None) -> list[Advice]:
    """Return the lines of advice that matter most, the first one most. ``run``: what the application did."""
    several = len({findings.files.application for findings in every}) > 1
    found: list[Advice] = []
    for findings in every:
        files = findings.files
        name = files.name + (f" of {files.application}" if several else "")
        found += _advice_on(findings, name)
    if run is not None:
        found += [*_on_spilled_runs(run), *_on_spilling_stages(run)]
    return sorted(found, key=lambda each: -each.seconds)[:MOST_ADVICE]


def _advice_on(findings: Findings, name: str) -> Iterator[Advice]:
    """Yield what is to be said of an exchange. ``name``: how to name it."""
    kinds = (
        _on_few_filled,
        _on_skew,
        _on_small_subpartitions,
        _on_small_reads,
        _on_a_wide_column,
        _on_codec,
        _on_retries,
    )
    for kind in kinds:
        found = kind(findings, name) if findings.files.totals.bytes else None
        if found is not None:
            yield found


def _on_few_filled(findings: Findings, name: str) -> Advice | None:
    """The median says nothing of skew where only a few subpartitions have rows."""
    spread, number = findings.spread, findings.files.subpartitions
    filled = number - spread.empty
    fair = findings.files.bytes.sum() / min(number, FEW)
    if 2 * filled > min(number, FEW) or spread.most - fair < LEAST_SKEW:
        return None
    return Advice(
        (spread.most - fair) * BYTE,
        f"All rows of {name} are in {filled:,} of {number:,} subpartitions; the largest, {spread.largest},"
        f" has {format_size(spread.most)}.",
        "The key has too few values: add a second column to it, so that more tasks have something to do.",
    )


def _on_skew(findings: Findings, name: str) -> Advice | None:
    if not findings.is_skewed:
        return None
    spread, typical = findings.spread, findings.typical_bytes
    figure = (
        f"Subpartition {spread.largest} of {name} has {format_size(spread.most)},"
        f" {spread.most / typical:.0f} times the median."
    )
    remedy = "One task reads all of it: add a second column to the key"
    if findings.heavy:
        heaviest = findings.heavy[0]
        figure += (
            f" {heaviest.column} is {heaviest.value} in {heaviest.share:.0%} of the"
            f" {findings.sampled:,} of its rows that were looked at."
        )
        remedy = "One task reads all of it: leave this value out, or add a second column to the key"
    return Advice((spread.most - typical) * BYTE, figure, f"{remedy}{_division(findings)}.")


def _division(findings: Findings) -> str:
    """Return which setting has several tasks read the largest subpartition; empty if none does."""
    if findings.files.header.payload_kind is PayloadKind.RECORD_BYTES:
        return ", or, if this is a join, see that spark.sql.adaptive.skewJoin.enabled is true"
    if findings.spread.most * findings.raw_ratio > Options().skew_threshold:
        return ", or set spark.sortshuffle.skew.factor, if rows of one key need not be together"
    return ""


def _on_small_subpartitions(findings: Findings, name: str) -> Advice | None:
    size, number = int(findings.files.bytes.sum()), findings.files.subpartitions
    enough = max(math.ceil(size / GOOD), FEW)
    if max(size / number, findings.typical_bytes) >= SMALL or number < 2 * enough:
        return None
    return Advice(
        (number - enough) * TASK,
        f"The {number:,} subpartitions of {name} have {format_size(size / number)} each on average.",
        "A task for so little takes longer to start than to run, and tasks do not always join them: ask for"
        f" about {enough}, or for no number.",
    )


def _on_small_reads(findings: Findings, name: str) -> Advice | None:
    files = findings.files
    regions = files.unicast_regions / files.map_outputs
    if regions < 2 or not files.unicast.extents:
        return None
    read = files.unicast.bytes / files.unicast.extents
    if read >= SMALL_READ:
        return None
    return Advice(
        files.unicast.extents * (1 - 1 / regions) * EXTENT,
        f"A map output of {name} has {regions:.0f} regions on average, and a read gets {format_size(read)}.",
        "Tasks that may hold more write fewer and larger ones: raise spark.sortshuffle.memory, for the"
        " manager's rows spark.sortshuffle.manager.memory.",
    )


def _on_a_wide_column(findings: Findings, name: str) -> Advice | None:
    whole = sum(each.stored_bytes for each in findings.columns)
    if len(findings.columns) < 2 or not whole:
        return None
    widest = max(findings.columns, key=lambda each: each.stored_bytes)
    share = widest.stored_bytes / whole
    if share < WIDE:
        return None
    return Advice(
        share * findings.files.totals.bytes * BYTE / 2,  # half: somebody may read it
        f"Column {widest.name} is {share:.0%} of the bytes of {name}.",
        "If nothing reads it behind the exchange, leave it out before with select.",
    )


def _on_codec(findings: Findings, name: str) -> Advice | None:
    totals, codec = findings.files.totals, findings.files.header.codec
    if codec is Codec.NONE:
        raw = sum(each.raw_bytes for each in findings.columns)
        stored = sum(each.stored_bytes for each in findings.columns)
        if not stored or raw / stored < COMPRESSIBLE:
            return None
        return Advice(
            (1 - stored / raw) * totals.bytes * BYTE / 2,  # half: of what is left
            f"The rows of {name} are stored as they are; LZ4 would make them {1 - stored / raw:.0%} smaller.",
            "Set spark.sortshuffle.codec to lz4.",
        )
    if findings.raw_ratio >= INCOMPRESSIBLE:
        return None
    return Advice(
        totals.raw_bytes * CODEC_BYTE,
        f"{codec.name} makes {name} only {max(0.0, 1 - totals.bytes / totals.raw_bytes):.0%} smaller.",
        "Rows that do not compress are written quicker with spark.sortshuffle.codec=none.",
    )


def _on_retries(findings: Findings, name: str) -> Advice | None:
    files = findings.files
    again = files.map_outputs - len(files.maps)
    if not again:
        return None
    return Advice(
        again / files.map_outputs * files.totals.bytes * BYTE,
        f"{again:,} of {files.map_outputs:,} map outputs of {name} were written again by another attempt.",
        "See in Spark's log why tasks were run again: lost executors, or speculation.",
    )


def _on_spilled_runs(run: ApplicationRun) -> Iterator[Advice]:
    """Python stages whose joins, sorts or groups put rows aside."""
    for stage in run.python_stages:
        spilled = stage.metrics.counts["bytes_spilled"]
        if spilled >= LEAST_SPILLED:
            yield Advice(
                spilled * SPILLED_BYTE,
                f"Python stage {stage.number} put {format_size(spilled)} of rows aside in"
                f" {stage.metrics.seconds['spill']:.1f} s of its tasks, because their memory was full.",
                "Raise spark.sortshuffle.memory, or ask for more partitions.",
            )


def _on_spilling_stages(run: ApplicationRun) -> Iterator[Advice]:
    for stage in run.stages:
        if stage.spilled_bytes >= LEAST_SPILLED:
            yield Advice(
                stage.spilled_bytes * SPILLED_BYTE,
                f"Stage {stage.label} spilled {format_size(stage.spilled_bytes)}, because Spark's memory for"
                " its tasks was full.",
                "Raise spark.executor.memory, or ask for more partitions.",
            )
