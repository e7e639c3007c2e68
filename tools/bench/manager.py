"""`manager`: whole Spark jobs with the shuffle manager, against the same jobs with Spark's own shuffle.

Each side is a Spark session in a process of its own (`side_session`), with the same settings but for the
manager and the daemon that forks Python workers, and the same memory in total. They run the same job in turn,
and nothing else runs meanwhile.

| module | what it has |
|---|---|
| `manager_cases` | which cases there are, and their aims |
| `manager_jobs`, `tpch_queries`, `tpch_data` | what they run |
| `comparison`, `cases` | how cases of whole Spark jobs are run, and what they are |
| `rounds` | how they are warmed up and measured |
| `process_tree` | what CPU time and memory are, and what they miss |
| `sides`, `side_session`, `jobs` | the two sides' processes |
| `report` | the table and the record |

Three cases are made otherwise. `first` and `first-function` take a fresh session for each run: they measure
from the session's being ready to the result of its first shuffle. `scaling` compares ours with itself, with 4
and with 1 task at once; the same for Spark's side is printed beside it.

`ours_off` gives both sides Spark's own shuffle. Both must then take the same, within the machine's noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from statistics import median

from cases import QUICK_EFFORT, QUICK_SETUP, Case
from comparison import comparisons, quick_comparison, run_steps
from harness import build_jar
from manager_cases import CASES, FIRST, FIRST_FUNCTION, FOUR_TASKS, FRESH, NAMES, ONE_TASK, SCALING
from report import Row, compared, others_share, print_table, record_case, start_facts, titled
from rounds import Digests, Measured, Pass, measure
from sides import OURS, SPARK, Pair, SessionProcess, Setup, running

SUITE = "manager"
FRESH_SESSIONS = 5  # of each side


def main(quick: bool, selected: Sequence[str] = (), ours_off: bool = False) -> list[str]:
    """Run the cases that are named, or all; what failed."""
    if not ours_off:
        build_jar()
    wanted = set(selected or NAMES)
    chosen = [case for case in CASES if case.name in wanted]
    steps = quick_comparison({SUITE: chosen}, ours_off) if quick else comparisons(SUITE, chosen, ours_off)
    fresh = [case for case in FRESH if case.name in wanted]
    if quick and not selected:
        print(f"  {FIRST.name}: not run tiny, {FIRST_FUNCTION.name} does all that it does")
        fresh = [FIRST_FUNCTION]
    steps += [(case.name, partial(_first, case, quick, ours_off)) for case in fresh]
    if SCALING.name in wanted:
        steps.append((SCALING.name, partial(_scaling, quick, ours_off)))
    rows, failed = run_steps(SUITE, steps)
    if not quick:
        print_table(SUITE, rows, SPARK, ours_off)
    return failed


# ---- the first shuffle of a session ---------------------------------------------------------------------


def _first(case: Case, quick: bool, ours_off: bool) -> list[Row]:
    """Fresh sessions in turn, one at a time; quickly, both at once."""
    print(f"\nmanager {case.name}: {case.about}", flush=True)
    facts, measured, digests = start_facts(), Measured(), Digests()
    ready: dict[str, list[float]] = {OURS: [], SPARK: []}
    latest: dict[str, SessionProcess] = {}
    (request,) = case.requests(quick)
    for number in range(1 if quick else FRESH_SESSIONS):
        names = [OURS, SPARK] if number % 2 == 0 else [SPARK, OURS]
        passed: Pass = {}
        for together in [names] if quick else [[name] for name in names]:
            with running(together, QUICK_SETUP if quick else case.setup, ours_off) as sides:
                ran = Pair(sides).both(request)
            for side in sides:
                latest[side.name] = side
                ready[side.name].append(round(side.about["seconds"], 3))
                passed[side.name] = {request.name: ran[side.name]}
                digests.check(request.name, side.name, ran[side.name].digest)
        measured.passes.append(passed)
    record_case(SUITE, case, measured, list(latest.values()), facts | {"ready": ready}, ours_off)
    for name, seconds in ready.items():
        print(f"  {name}: a session is ready after {median(seconds):.2f} s")
    return [_first_row(case, measured)]


def _first_row(case: Case, measured: Measured) -> Row:
    ours, spark = median(measured.walls(OURS)), median(measured.walls(SPARK))
    most = case.aim.seconds
    assert most is not None
    missed = (f"{ours - spark:+.2f} s",) if ours - spark > most else ()
    return replace(
        compared(case, measured), aim=f"{most:g} s more", missed=missed, wall=f"{ours - spark:+.2f} s"
    )


# ---- many tasks at once ---------------------------------------------------------------------------------


def _scaling(quick: bool, ours_off: bool) -> list[Row]:
    """CPU seconds for a byte written, of ours, and beside it of Spark's side."""
    print(f"\nmanager {SCALING.name}: {SCALING.about}", flush=True)
    requests = SCALING.requests(quick)
    rows = []
    for side in (OURS,) if quick else (OURS, SPARK):
        facts = start_facts()
        names = [side + FOUR_TASKS, side + ONE_TASK]
        setup = _quickened(SCALING.setup) if quick else SCALING.setup
        with running(names, setup, ours_off) as sides:
            measured = measure(Pair(sides), requests, QUICK_EFFORT if quick else SCALING.effort)
        record_case(SUITE, SCALING, measured, sides, facts, ours_off)
        rows.append(_scaling_row(side, measured))
    return rows


def _quickened(setup: Setup) -> Setup:
    return replace(setup, memory=QUICK_SETUP.memory, settings=setup.settings + QUICK_SETUP.settings)


def _scaling_row(side: str, measured: Measured) -> Row:
    four, one = (
        median(measured.cpus(side + tasks)) / (measured.most(side + tasks, "written") / 1e9)
        for tasks in (FOUR_TASKS, ONE_TASK)
    )
    most = SCALING.aim.cpu_per_byte
    assert most is not None
    is_ours = side == OURS
    missed = (f"{four / one:.2f}",) if is_ours and four / one > most else ()
    return Row(
        titled(f"{SCALING.about}, {side}", measured),
        f"4: {four:.1f} s/GB",
        f"1: {one:.1f} s/GB",
        "",
        f"{four / one:.2f}",
        f"CPU {most:g}" if is_ours else "none",
        missed,
        others_share(measured),
    )
