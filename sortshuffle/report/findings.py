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
from sortshuffle.format.header import Codec
from sortshuffle.options import MIB, format_size
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
    """An exchange and the samples of its rows. ``refusal``: why there are none; empty if there are."""

    files: ExchangeFiles
    columns: tuple[ColumnSize, ...] = ()
    heavy: tuple[HeavyValue, ...] = ()
    refusal: str = ""

    @staticmethod
    def of(files: ExchangeFiles, key: EncryptionKey | None = None) -> Findings:
        """Take samples. ``key``: decrypts the rows. Raises OSError if files cannot be read."""
        sampler = Sampler(files, key)
        if sampler.refusal:
            return Findings(files, refusal=sampler.refusal)
        findings = Findings(files)
        largest = sampler.rows(findings.spread.largest)
        if largest is None:
            return Findings(files, refusal="there are none")
        columns = column_sizes(largest, files.header.codec)
        if not findings.is_skewed:
            return Findings(files, columns)
        return Findings(files, columns, heavy_values(largest, sampler.rows(findings.middling)))

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
    def name(self) -> str:
        return f"exchange {self.files.number}"


@dataclass(frozen=True, slots=True)
class Advice:
    """One line of advice. ``seconds``: what it might save, roughly. ``figure``: what was measured.
    ``remedy``: what to change."""

    seconds: float
    figure: str
    remedy: str


def advice(every: Sequence[Findings], run: ApplicationRun | None = None) -> list[Advice]:
    """Return the lines of advice that matter most, the first one most. ``run``: what the application did."""
    found = [each for findings in every for each in _advice_on(findings)]
    if run is not None:
        found += [*_on_spilled_runs(run), *_on_spilling_stages(run)]
    return sorted(found, key=lambda each: -each.seconds)[:MOST_ADVICE]


def _advice_on(findings: Findings) -> Iterator[Advice]:
    kinds = (_on_skew, _on_small_subpartitions, _on_small_reads, _on_a_wide_column, _on_codec, _on_retries)
    for kind in kinds:
        found = kind(findings) if findings.files.totals.bytes else None
        if found is not None:
            yield found


def _on_skew(findings: Findings) -> Advice | None:
    if not findings.is_skewed:
        return None
    spread, typical = findings.spread, findings.typical_bytes
    figure = (
        f"Subpartition {spread.largest} of {findings.name} has {format_size(spread.most)},"
        f" {spread.most / typical:.0f} times the median."
    )
    remedy = "One task reads all of it: spread its keys over several, or set spark.sortshuffle.skew.factor."
    if findings.heavy:
        heaviest = findings.heavy[0]
        figure += f" {heaviest.column} is {heaviest.value} in {heaviest.share:.0%} of its rows."
        remedy = (
            "One task reads all of it: treat this value apart (drop it, or add a second column to the key),"
            " or set spark.sortshuffle.skew.factor."
        )
    return Advice((spread.most - typical) * BYTE, figure, remedy)


def _on_small_subpartitions(findings: Findings) -> Advice | None:
    size, number = int(findings.files.bytes.sum()), findings.files.subpartitions
    enough = max(1, math.ceil(size / GOOD))
    if size / number >= SMALL or number < 2 * max(enough, _FEW):
        return None
    return Advice(
        (number - max(enough, _FEW)) * TASK,
        f"The {number:,} subpartitions of {findings.name} have {format_size(size / number)} each on average.",
        f"A task for so little takes longer to start than to run: ask for about {max(enough, _FEW)}, or for"
        " no number.",
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


_FEW = 8  # subpartitions that are few in any case: a machine's cores should have something to do


def _on_small_reads(findings: Findings) -> Advice | None:
    files = findings.files
    read = files.totals.bytes / files.totals.extents
    regions = files.regions / files.map_outputs
    if regions < 2 or read >= SMALL_READ:
        return None
    return Advice(
        files.totals.extents * (1 - 1 / regions) * EXTENT,
        f"A map output of {findings.name} has {regions:.0f} regions on average, and a read gets"
        f" {format_size(read)}.",
        "Tasks that may hold more write fewer and larger ones: raise spark.sortshuffle.memory, for the"
        " manager's rows spark.sortshuffle.manager.memory.",
    )


def _on_a_wide_column(findings: Findings) -> Advice | None:
    whole = sum(each.stored_bytes for each in findings.columns)
    if len(findings.columns) < 2 or not whole:
        return None
    widest = max(findings.columns, key=lambda each: each.stored_bytes)
    share = widest.stored_bytes / whole
    if share < WIDE:
        return None
    return Advice(
        share * findings.files.totals.bytes * BYTE / 2,  # half: somebody may read it
        f"Column {widest.name} is {share:.0%} of the bytes of {findings.name}.",
        "If nothing reads it behind the exchange, leave it out before with select.",
    )


def _on_codec(findings: Findings) -> Advice | None:
    totals, codec = findings.files.totals, findings.files.header.codec
    if codec is Codec.NONE:
        raw, stored = (
            sum(each.raw_bytes for each in findings.columns),
            sum(each.stored_bytes for each in findings.columns),
        )
        if not stored or raw / stored < COMPRESSIBLE:
            return None
        return Advice(
            (1 - stored / raw) * totals.bytes * BYTE / 2,  # half: of what is left
            f"The rows of {findings.name} are stored as they are; LZ4 makes {stored / raw:.0%} of them.",
            "Set spark.sortshuffle.codec to lz4.",
        )
    if totals.raw_bytes / totals.bytes >= INCOMPRESSIBLE:
        return None
    return Advice(
        totals.raw_bytes * CODEC_BYTE,
        f"{codec.name} saves {max(0.0, 1 - totals.bytes / totals.raw_bytes):.0%} of {findings.name}.",
        "Rows that do not compress are written quicker with spark.sortshuffle.codec=none.",
    )


def _on_retries(findings: Findings) -> Advice | None:
    files = findings.files
    again = files.map_outputs - len(files.maps)
    if not again:
        return None
    return Advice(
        again / files.map_outputs * files.totals.bytes * BYTE,
        f"{again:,} of {files.map_outputs:,} map outputs of {findings.name} were written again by another"
        " attempt.",
        "See in Spark's log why tasks were run again: lost executors, or speculation.",
    )
