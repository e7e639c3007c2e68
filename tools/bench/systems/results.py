"""What came out: a line for each system, the record, and the table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

import harness
from rich.console import Console
from rich.table import Table

from systems.turn import Turn
from systems.work import Work

MEGA = 1e6


def write_record(
    work: Work, turns: Mapping[str, Sequence[Turn]], failures: Mapping[str, str], commit: Mapping[str, Any]
) -> bool:
    """Append what all systems took. ``commit``: of the checkout when the jar was built. If it is another one
    now, the turns were not all of one code, and the record counts as one of a changed checkout. Return
    whether it is the same."""
    is_same = harness.commit() == commit
    found = {system: [asdict(turn) for turn in each] for system, each in turns.items()}
    about = {"about": work.about, "memory": work.memory}
    of_commit = commit if is_same else {**commit, "dirty": True}
    # logs name files of the checkout, wherever it is
    relative = {system: words.replace(f"{harness.ROOT}/", "") for system, words in failures.items()}
    harness.record(f"compare {work.name}", **about, systems=found, failures=relative, **of_commit)
    return is_same


def table_of(work: Work, turns: Mapping[str, Sequence[Turn]], failures: Iterable[str]) -> Table:
    """Return the table of a case. The quickest system comes first."""
    table = Table(title=f"{work.name}: {work.about}", title_justify="left", box=None, pad_edge=False)
    table.add_column("system")
    for name in ("time", "spread", "peak", "CPU", "written", "read", "a read", "files", "lines"):
        table.add_column(name, justify="right")
    for system in sorted(turns, key=lambda name: median(each.seconds for each in turns[name])):
        table.add_row(system, *_cells(turns[system]))
    if failures:
        table.caption = f"failed: {', '.join(failures)}"
    return table


def print_table(table: Table) -> None:
    Console(width=110).print(table)


def _cells(turns: Sequence[Turn]) -> list[str]:
    seconds = [turn.seconds for turn in turns]
    usages = [turn.usage for turn in turns]
    return [
        f"{median(seconds):.2f} s",
        f"{min(seconds):.2f}-{max(seconds):.2f}",
        f"{max(turn.peak for turn in turns) / MEGA:,.0f} MB",
        f"{median(usage.cpu for usage in usages):.1f} s",
        f"{median(usage.written for usage in usages) / MEGA:,.0f} MB",
        *disk_reads(list(map(asdict, usages))),
        f"{max(turn.files for turn in turns):,}",
        str(turns[0].lines),
    ]


def disk_reads(usages: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """Return how many bytes came from the disk, and how many at a time, "-" if that is not known. ``usages``:
    as they are recorded; older records do not tell it, nor those of file systems without a disk."""
    known = [usage for usage in usages if usage.get("disk_read") is not None]
    each = [usage["disk_read"] / usage["disk_reads"] for usage in known if usage["disk_reads"]]
    return (
        f"{median(usage['disk_read'] for usage in known) / MEGA:,.0f} MB" if known else "-",
        f"{median(each) / 1024:,.0f} KiB" if each else "-",
    )
