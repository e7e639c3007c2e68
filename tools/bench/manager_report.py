"""What the `manager` benchmark prints and records.

A ratio is ours / Spark's, of the medians, so less is better. The spread behind it is the least and the
largest ratio of one pass.
"""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from harness import record
from manager_cases import Aim, Case
from manager_rounds import LEAST_WARM_UPS, SETTLED, Measured, ratio
from manager_sides import ENGINE_MEMORY, MIB, OURS, SPARK, SessionProcess
from tpch_queries import QUERIES

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table: what was found, what was wanted, and what was not reached of it."""

    case: str
    ours: str
    spark: str
    wall: str
    cpu: str
    aim: str
    missed: tuple[str, ...]
    others: str  # what the machine did beside the timed runs, of all that its cores could do
    peaks: tuple[Counter[str], Counter[str]] | None = None  # of ours, of Spark's side; bytes by program


def compared(case: Case, measured: Measured) -> Row:
    """The line of a case that compares the two sides."""
    wall, cpu = measured.wall_ratio(OURS, SPARK), measured.cpu_ratio(OURS, SPARK)
    missed = [
        *_above("wall", wall, case.aim.wall),
        *_above("CPU", cpu, case.aim.cpu),
        *(
            name
            for query in (QUERIES if case.aim.query else ())
            for name in _above(query, measured.wall_ratio(OURS, SPARK, query), case.aim.query)
        ),
    ]
    ours, spark = measured.walls(OURS), measured.walls(SPARK)
    return Row(
        case.about,
        f"{median(ours):.2f} s",
        f"{median(spark):.2f} s",
        f"{wall:.2f} ({_spread(ours, spark)})",
        f"{cpu:.2f} ({_spread(measured.cpus(OURS), measured.cpus(SPARK))})",
        _aim_text(case.aim),
        tuple(missed),
        others_share(measured),
        (measured.peaks[OURS], measured.peaks[SPARK]) if measured.peaks else None,
    )


def others_share(measured: Measured) -> str:
    """CPU time of other processes during the timed runs. Figures are of use where there is next to none."""
    runs = [ran for each in measured.passes for jobs in each.values() for ran in jobs.values()]
    could = sum(ran.wall for ran in runs) * (os.cpu_count() or 1)
    return f"{sum(ran.foreign + ran.stolen for ran in runs) / could:.0%}"


def _above(name: str, found: float, most: float | None) -> list[str]:
    return [f"{name} {found:.2f}"] if most is not None and found > most else []


def _aim_text(aim: Aim) -> str:
    """The aims that `compared` looks at."""
    texts = [("wall", aim.wall), ("CPU", aim.cpu), ("any query", aim.query)]
    return ", ".join(f"{what} {most:g}" for what, most in texts if most is not None)


def _spread(ours: Sequence[float], other: Sequence[float]) -> str:
    found = [one / max(two, 1e-9) for one, two in zip(ours, other, strict=True)]
    return f"{min(found):.2f}-{max(found):.2f}"


# ---- the table ------------------------------------------------------------------------------------------


def print_table(rows: Sequence[Row], ours_off: bool) -> None:
    head = ("case", "ours", "Spark", "wall, ours/Spark", "CPU, ours/Spark", "aim, at most", "reached")
    lines = [
        (row.case, row.ours, row.spark, row.wall, row.cpu, row.aim, _reached(row.missed), row.others)
        for row in rows
    ]
    print("\nmanager" + (", both sides with Spark's own shuffle" if ours_off else ""))
    _print_aligned([(*head, "others' CPU"), *lines])
    memory = [_memory_line(row) for row in rows if row.peaks is not None]
    if memory:
        more = ENGINE_MEMORY // MIB
        print(
            f"\npeak memory (PSS of all processes), aim: at most {more} MiB more than Spark's,"
            f" whose heap may grow {more} MiB larger"
        )
        _print_aligned(
            [("case", "ours", "Spark", "more", "reached", "MiB of ours", "MiB of Spark's"), *memory]
        )


def _memory_line(row: Row) -> tuple[str, ...]:
    assert row.peaks is not None
    ours, spark = (peak.total() for peak in row.peaks)
    reached = "yes" if ours - spark <= ENGINE_MEMORY else "no"
    parts = [", ".join(f"{name} {size / MIB:.0f}" for name, size in peak.most_common()) for peak in row.peaks]
    return (
        row.case,
        f"{ours / MIB:.0f} MiB",
        f"{spark / MIB:.0f} MiB",
        f"{(ours - spark) / MIB:+.0f} MiB",
        reached,
        *parts,
    )


def _reached(missed: Sequence[str]) -> str:
    return "no: " + ", ".join(missed) if missed else "yes"


def print_queries(measured: Measured) -> None:
    """Each query by itself: it shows where the total comes from."""
    lines = [("query", "ours", "Spark", "wall, ours/Spark", "CPU, ours/Spark", "written")]
    for query in measured.passes[0][OURS]:
        ours, spark = measured.walls(OURS, query), measured.walls(SPARK, query)
        cpus = measured.cpus(OURS, query), measured.cpus(SPARK, query)
        lines.append(
            (
                query,
                f"{median(ours):.2f} s",
                f"{median(spark):.2f} s",
                f"{ratio(ours, spark):.2f} ({_spread(ours, spark)})",
                f"{ratio(*cpus):.2f} ({_spread(*cpus)})",
                f"{measured.passes[0][SPARK][query].written / 1e6:.0f} MB",
            )
        )
    _print_aligned(lines)


def _print_aligned(lines: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = [text.ljust(width) for text, width in zip(line, widths, strict=True)]
        print("  " + "  ".join(cells).rstrip())


# ---- the record -----------------------------------------------------------------------------------------


def start_facts() -> dict[str, Any]:
    """What is to be known of the moment when a case starts."""
    return {"load": [round(each, 2) for each in os.getloadavg()], **_commit()}


def record_case(
    case: Case, measured: Measured, sides: Sequence[SessionProcess], facts: dict[str, Any], ours_off: bool
) -> None:
    """One line in the file of results. ``facts``: those of the start, and what else is to be told."""
    record(
        f"manager null {case.name}" if ours_off else f"manager {case.name}",
        about=case.about,
        ours_off=ours_off,
        aim={key: value for key, value in asdict(case.aim).items() if value is not None},
        warm_up={
            "passes": len(measured.warm_ups),
            "settled": measured.settled,
            "rule": f"at least {LEAST_WARM_UPS}, until one is at most {SETTLED:.0%} quicker than the best",
        },
        runs_not_in_quiet=measured.unquiet,
        sides=[_side(measured, side) for side in sides],
        **facts,
    )


def _side(measured: Measured, side: SessionProcess) -> dict[str, Any]:
    name = side.name
    runs = [each[name] for each in measured.passes]
    jobs = list(runs[0])
    sums = ("removing", "foreign", "stolen", "written", "read", "memory_spilled", "disk_spilled")
    found: dict[str, Any] = {
        "name": name,
        "manager": side.about["manager"],
        "settings": side.about["settings"],
        "java": side.about["java"],
        "seconds": _rounded(measured.walls(name)),
        "cpu_seconds": _rounded(measured.cpus(name)),
        **{
            what: _rounded([sum(getattr(ran, what) for ran in run.values()) for run in runs]) for what in sums
        },
        "peak_pss": measured.peaks[name].total() if name in measured.peaks else None,
        "peak_pss_of": measured.peaks.get(name),
    }
    if len(jobs) > 1:
        found["jobs"] = {
            job: {
                "seconds": _rounded(measured.walls(name, job)),
                "cpu_seconds": _rounded(measured.cpus(name, job)),
            }
            for job in jobs
        }
    return found


def _rounded(values: Sequence[float]) -> list[float]:
    return [round(value, 4) for value in values]


def _commit() -> dict[str, Any]:
    """The commit of the checkout, and whether it has been changed since, but for the results."""
    try:
        head = _git("rev-parse", "HEAD")
        changed = _git("status", "--porcelain", "--", ".", ":!tools/bench/results.jsonl")
    except (OSError, subprocess.CalledProcessError):
        return {"commit": "unknown"}
    return {"commit": head, "dirty": bool(changed)}


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", str(ROOT), *arguments], check=True, capture_output=True, text=True
    ).stdout.strip()
