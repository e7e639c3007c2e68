"""What benchmarks of whole Spark jobs print and record.

A ratio is ours / the other side's (mostly Spark's), of the medians, so less is better. The spread behind it
is the least and the largest ratio of one pass.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from cases import Aim, Case
from harness import commit, record
from rounds import SETTLED, Measured, ratio
from sides import ENGINE_MEMORY, MIB, OURS, Door, SessionProcess
from tpch_queries import QUERIES

LEAST_STEP = 0.005  # seconds; less is not shown


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table: what was found, what was wanted, and what was not reached of it."""

    case: str
    ours: str
    other: str
    wall: str
    cpu: str
    aim: str
    missed: tuple[str, ...]
    foreign: str  # what the machine did beside the timed runs, of all that its cores could do
    peaks: tuple[Counter[str], Counter[str]] | None = None  # of ours, of the other side; bytes by program
    more_memory: int | None = None  # bytes that ours may have beyond the other's peak; None without an aim


def compared(case: Case, measured: Measured) -> Row:
    """The line of a case that compares the two sides."""
    theirs = measured.other
    wall, cpu = measured.wall_ratio(OURS, theirs), measured.cpu_ratio(OURS, theirs)
    missed = [
        *_above("wall", wall, case.aim.wall),
        *_above("CPU", cpu, case.aim.cpu),
        *(
            name
            for query in (QUERIES if case.aim.query else ())
            for name in _above(query, measured.wall_ratio(OURS, theirs, query), case.aim.query)
        ),
    ]
    ours, other = measured.walls(OURS), measured.walls(theirs)
    return Row(
        titled(case.about, measured),
        f"{median(ours):.2f} s",
        f"{median(other):.2f} s",
        f"{wall:.2f} ({_spread(ours, other)})",
        f"{cpu:.2f} ({_spread(measured.cpus(OURS), measured.cpus(theirs))})",
        _aim_text(case.aim),
        tuple(missed),
        others_share(measured),
        (measured.peaks[OURS], measured.peaks[theirs]) if measured.peaks else None,
        ENGINE_MEMORY if case.setup.door is Door.MANAGER else None,
    )


def titled(about: str, measured: Measured) -> str:
    """What a line of the table begins with."""
    return f"{about} (NOT SETTLED)" if measured.is_unsettled else about


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


def print_table(suite: str, rows: Sequence[Row], other: str, ours_off: bool) -> None:
    """``other``: the side that ours is compared with."""
    head = ("case", "ours", other, f"wall, ours/{other}", f"CPU, ours/{other}", "aim, at most", "reached")
    lines = [
        (row.case, row.ours, row.other, row.wall, row.cpu, row.aim, _reached(row.missed), row.foreign)
        for row in rows
    ]
    print(f"\n{suite}" + (", both sides with Spark's own shuffle" if ours_off else ""))
    _print_aligned([(*head, "others' CPU"), *lines])
    memory = [_memory_line(row) for row in rows if row.peaks is not None]
    if memory:
        print("\npeak memory (PSS of all processes); the manager's aim: at most what Spark's heap has more")
        _print_aligned(
            [("case", "ours", other, "more", "aim", "reached", "MiB of ours", f"MiB of {other}"), *memory]
        )


def _memory_line(row: Row) -> tuple[str, ...]:
    assert row.peaks is not None
    ours, other = (peak.total() for peak in row.peaks)
    aim = row.more_memory
    reached = "" if aim is None else "yes" if ours - other <= aim else "no"
    parts = [", ".join(f"{name} {size / MIB:.0f}" for name, size in peak.most_common()) for peak in row.peaks]
    return (
        row.case,
        f"{ours / MIB:.0f} MiB",
        f"{other / MIB:.0f} MiB",
        f"{(ours - other) / MIB:+.0f} MiB",
        "none" if aim is None else f"{aim // MIB} MiB",
        reached,
        *parts,
    )


def _reached(missed: Sequence[str]) -> str:
    return "no: " + ", ".join(missed) if missed else "yes"


def print_queries(measured: Measured) -> None:
    """Each query by itself: it shows where the total comes from."""
    if len(measured.passes[0][OURS]) == 1:
        return
    theirs = measured.other
    lines = [("query", "ours", theirs, f"wall, ours/{theirs}", f"CPU, ours/{theirs}", "written")]
    for query in measured.passes[0][OURS]:
        ours, other = measured.walls(OURS, query), measured.walls(theirs, query)
        cpus = measured.cpus(OURS, query), measured.cpus(theirs, query)
        lines.append(
            (
                query,
                f"{median(ours):.2f} s",
                f"{median(other):.2f} s",
                f"{ratio(ours, other):.2f} ({_spread(ours, other)})",
                f"{ratio(*cpus):.2f} ({_spread(*cpus)})",
                f"{measured.passes[0][theirs][query].written / 1e6:.0f} MB",
            )
        )
    _print_aligned(lines)


def print_steps(measured: Measured) -> None:
    """Where the tasks of ours spent their time, of frames and RDDs."""
    found = steps_of(measured, OURS)
    if found:
        shown = ", ".join(f"{step} {seconds:.2f}" for step, seconds in found.items())
        print(f"  ours, task seconds by step: {shown}")


def steps_of(measured: Measured, side: str) -> dict[str, float]:
    """Of the last timed pass, the longest step first."""
    found: Counter[str] = Counter()
    for ran in measured.passes[-1][side].values():
        found.update(ran.steps)
    return {step: round(seconds, 4) for step, seconds in found.most_common() if seconds >= LEAST_STEP}


def _print_aligned(lines: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = [text.ljust(width) for text, width in zip(line, widths, strict=True)]
        print("  " + "  ".join(cells).rstrip())


# ---- the record -----------------------------------------------------------------------------------------


def start_facts() -> dict[str, Any]:
    """What is to be known of the moment when a case starts."""
    return {"load": [round(each, 2) for each in os.getloadavg()], **commit()}


def record_case(
    suite: str,
    case: Case,
    measured: Measured,
    sides: Sequence[SessionProcess],
    facts: dict[str, Any],
    ours_off: bool,
) -> None:
    """One line in the file of results. ``facts``: those of the start, and what else is to be told."""
    if facts.get("dirty"):
        print("  WARNING: the checkout has been changed since its commit; the record says dirty", flush=True)
    record(
        f"{suite} null {case.name}" if ours_off else f"{suite} {case.name}",
        about=case.about,
        ours_off=ours_off,
        aim={key: value for key, value in asdict(case.aim).items() if value is not None},
        warm_up={
            "passes": len(measured.warm_ups),
            "settled": measured.settled,
            "rule": f"at least {case.effort.least_warm_ups}, until one is within {SETTLED:.0%} of the best or"
            " the last",
        },
        peak_looks=measured.looks,
        runs_not_in_quiet=measured.unquiet,
        verified=measured.verified,
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
    steps = steps_of(measured, name)
    if steps:
        found["steps"] = steps
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
