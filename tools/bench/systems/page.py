"""`write_page`: the tables and plots of docs/comparison.md, from the records.

A case's table and plot stand between two marks, ``<!-- exchange -->`` and ``<!-- /exchange -->``. They are
those of its latest record that counts: of a commit without changes, with several turns of each system that
knows the case. All other text of the page is written by people.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

from harness import RESULTS, ROOT

from sortshuffle.report.plots import ACCENT, OTHER, drawing
from systems.results import disk_reads
from systems.turn import CORES
from systems.work import OURS, WORKS

PAGE = ROOT / "docs" / "comparison.md"
LEAST_TURNS = 3
NAMES = {"dask": "Dask", "ray": "Ray", "flink": "Flink", "duckdb": "DuckDB", "polars": "Polars"}
PACKAGES = {"dask": "dask", "ray": "ray", "flink": "apache-flink", "duckdb": "duckdb", "polars": "polars"}
SHARED = ("pyarrow", "pandas")  # packages that all contestants but Flink work with
MEGA = 1e6

Record: TypeAlias = Mapping[str, Any]
Turns: TypeAlias = Sequence[Mapping[str, Any]]


def write_page(page: Path = PAGE) -> list[str]:
    """Write the tables and plots of the cases that the page has marks for. Return their names."""
    found = records(RESULTS.read_text().splitlines())
    text, written = page.read_text(), []
    for case, record in found.items():
        text, count = re.subn(
            rf"(<!-- {case} -->\n).*?(<!-- /{case} -->)",
            lambda marks, case=case, record=record: f"{marks[1]}{section_of(case, record)}{marks[2]}",
            text,
            flags=re.DOTALL,
        )
        if count:
            plots = page.with_suffix("")
            plots.mkdir(exist_ok=True)
            plot(record, plots / f"{case}.svg")
            written.append(case)
    page.write_text(text)
    return written


def records(lines: Sequence[str]) -> dict[str, Record]:
    """Return the latest record that counts of each case, from the lines of the file of records."""
    found = {}
    for line in lines:
        record = json.loads(line)
        kind, _, case = record["case"].partition(" ")
        if kind == "compare" and case and _counts(case, record):
            found[case] = record
    return found


def _counts(case: str, record: Record) -> bool:
    able = {system for work in WORKS if work.name == case for system in work.systems}
    are_all = able == {*record["systems"], *record["failures"]}
    has_ours = not {*OURS, "spark"}.isdisjoint(record["systems"])
    return are_all and has_ours and not record.get("dirty", True) and _turns(record) >= LEAST_TURNS


def _turns(record: Record) -> int:
    return min(map(len, record["systems"].values()), default=0)


def section_of(case: str, record: Record) -> str:
    """Return the plot, the table and the origin of a case's record, as Markdown."""
    lines = [
        f"![Times of {record['about']}](comparison/{case}.svg)",
        "",
        "| | time | | peak | CPU | written | read | files | lines |",
        "|---|---:|---|---:|---:|---:|---:|---:|---:|",
        *(f"| {' | '.join(_cells(system, turns))} |" for system, turns in by_time(record)),
        "",
        _origin(record),
    ]
    return "\n".join(lines) + "\n"


def by_time(record: Record) -> list[tuple[str, Turns]]:
    """Return the systems and their turns, the quickest first."""
    return sorted(record["systems"].items(), key=lambda each: median(_seconds(each[1])))


def _seconds(turns: Turns) -> list[float]:
    return [turn["seconds"] for turn in turns]


def _cells(system: str, turns: Turns) -> Iterator[str]:
    seconds, usages = _seconds(turns), [turn["usage"] for turn in turns]
    read, each = disk_reads(usages)
    yield f"**{system}**" if system in OURS else system
    yield f"{median(seconds):.2f} s"
    yield f"{min(seconds):.2f} to {max(seconds):.2f}"
    yield f"{max(turn['peak'] for turn in turns) / MEGA:,.0f} MB"
    yield f"{median(usage['cpu'] for usage in usages):.1f} s"
    yield f"{median(usage['written'] for usage in usages) / MEGA:,.0f} MB"
    yield read if each == "-" else f"{read}, {each} each"
    yield f"{max(turn['files'] for turn in turns):,}"
    yield str(turns[0]["lines"])


def _origin(record: Record) -> str:
    """Return the sentence on where and with what the record was made."""
    systems = record["systems"]
    ours = next(systems[name][0]["versions"] for name in (*OURS, "spark") if name in systems)
    versions = {"PySpark": ours["pyspark"], **{name: ours[name] for name in SHARED}}
    for system, turns in record["systems"].items():
        if system in PACKAGES:
            found = turns[0]["versions"]
            versions[NAMES[system]] = found[PACKAGES[system]] + _with_differing(found, ours)
    used = ", ".join(f"{name} {version}" for name, version in versions.items())
    failed = f" Failed: {', '.join(record['failures'])}." if record["failures"] else ""
    return (
        f"{record['time'][:10]}, commit {record['commit'][:7]}, {_turns(record)} turns each;"
        f" {record['machine']}; Python {record['python']}, {used}.{_disturbed(record)}{failed}"
    )


def _with_differing(versions: Mapping[str, str], ours: Mapping[str, str]) -> str:
    """Return the versions of shared packages that are not ours, in brackets."""
    found = {name: versions[name] for name in SHARED if name in versions}
    differing = [f"{name} {version}" for name, version in found.items() if version != ours[name]]
    return f" ({', '.join(differing)})" if differing else ""


def _disturbed(record: Record) -> str:
    """Return how much of a turn's cores went to others at most; empty if the record does not tell it."""
    usages = [(turn["usage"], turn["seconds"]) for turns in record["systems"].values() for turn in turns]
    if not all("stolen" in usage for usage, _ in usages):
        return ""
    most = max((usage["foreign"] + usage["stolen"]) / seconds / CORES for usage, seconds in usages)
    return f" Others took at most {most:.1%} of the cores' time in a timed run."


def plot(record: Record, path: Path) -> None:
    """Draw the median times as bars, with the least and the largest, the quickest first."""
    systems = by_time(record)
    middles = [median(_seconds(turns)) for _, turns in systems]
    below = [middle - min(_seconds(turns)) for middle, (_, turns) in zip(middles, systems, strict=True)]
    above = [max(_seconds(turns)) - middle for middle, (_, turns) in zip(middles, systems, strict=True)]
    colors = [ACCENT if system in OURS else OTHER for system, _ in systems]
    with drawing("black", "white") as figure_of:
        figure = figure_of(figsize=(7, 0.6 + 0.3 * len(systems)))
        axes = figure.subplots()
        bars = axes.barh([system for system, _ in systems], middles, xerr=(below, above), color=colors)
        axes.bar_label(bars, [f"{middle:.2f} s" for middle in middles], padding=6)
        axes.invert_yaxis()
        axes.margins(x=0.12)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_xlabel("seconds, median; the lines go from the least to the largest")
        figure.savefig(path, metadata={"Date": None})
