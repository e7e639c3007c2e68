"""Runs cases of whole Spark jobs: each in sessions of its own, or all of them tiny in the same sessions."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain

from cases import QUICK_EFFORT, Case
from report import Row, compared, print_queries, print_steps, print_table, record_case, start_facts
from rounds import measure
from sides import SPARK, BenchError, Setup, started

Step = Callable[[], list[Row]]
"""What makes some lines of the table. Raises `BenchError`."""


def run_cases(suite: str, cases: Sequence[Case], ours_off: bool = False) -> list[str]:
    """Compare the two sides in these cases; what failed."""
    other = cases[0].setup.other if cases else SPARK
    rows, failed = run_steps(suite, comparisons(suite, cases, ours_off))
    print_table(suite, rows, other, ours_off)
    return failed


def run_quickly(suites: Mapping[str, Sequence[Case]], ours_off: bool = False) -> list[str]:
    """Compare the two sides in these suites' cases, all tiny; what failed. Suites whose sessions have the
    same settings share them: to start two sessions takes longer than the jobs of a suite."""
    groups: dict[Setup, dict[str, Sequence[Case]]] = {}
    for suite, cases in suites.items():
        if cases:
            groups.setdefault(cases[0].quick_setup, {})[suite] = cases
    return [
        each
        for group in groups.values()
        for each in run_steps(", ".join(group), quick_comparison(group, ours_off))[1]
    ]


def comparisons(suite: str, cases: Sequence[Case], ours_off: bool) -> list[tuple[str, Step]]:
    return [(case.name, partial(_compare, suite, case, ours_off)) for case in cases]


def quick_comparison(suites: Mapping[str, Sequence[Case]], ours_off: bool) -> list[tuple[str, Step]]:
    """Return the step for suites whose quick sessions have the same settings; none, if no case runs tiny.
    Prints which cases do not."""
    plain = {suite: [case for case in cases if case.setup.is_plain] for suite, cases in suites.items()}
    for case in chain.from_iterable(suites.values()):
        if not case.setup.is_plain:
            print(f"{case.name}: not run tiny, it needs a cluster or a container")
    return [("quick", partial(_compare_quickly, plain, ours_off))] if any(plain.values()) else []


def run_steps(suite: str, steps: Sequence[tuple[str, Step]]) -> tuple[list[Row], list[str]]:
    """Take them one behind the other. Returns the lines of the table, and what failed: a step that fails does
    not stop the others."""
    rows: list[Row] = []
    failed: list[str] = []
    for name, step in steps:
        try:
            rows += step()
        except BenchError as error:
            print(f"{name} failed: {error}", file=sys.stderr)
            failed.append(f"{suite} {name}")
    return rows, failed


def _compare(suite: str, case: Case, ours_off: bool) -> list[Row]:
    """A case in sessions of its own."""
    print(f"\n{suite} {case.name}: {case.about}", flush=True)
    requests, verification = case.requests(False), case.verification(False)
    warm_up = case.warm_up() if case.warm_up else ()
    facts = start_facts()
    with started(case.setup, ours_off) as pair:
        measured = measure(pair, requests, case.effort, warm_up, verification)
    case.check(measured)
    print_queries(measured)
    print_steps(measured)
    record_case(suite, case, measured, pair.sides, facts, ours_off)
    return [compared(case, measured)]


def _compare_quickly(suites: Mapping[str, Sequence[Case]], ours_off: bool) -> list[Row]:
    """Tiny cases, all in the same sessions."""
    print(f"\n{', '.join(suites)}: every case tiny, both sides at once", flush=True)
    cases = [case for members in suites.values() for case in members]
    jobs = [(case, case.requests(True), case.verification(True)) for case in cases]
    rows = []
    with started(cases[0].quick_setup, ours_off) as pair:
        for case, requests, verification in jobs:
            try:
                measured = measure(pair, requests, QUICK_EFFORT, verification=verification)
            except BenchError as error:
                raise BenchError(f"{case.name}: {error}") from error
            shown = f"{len(requests) + len(verification)} jobs"
            print(f"  {case.name}: {shown}, both sides give the same", flush=True)
            rows.append(compared(case, measured))
    return rows
