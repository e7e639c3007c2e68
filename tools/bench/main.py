"""Runs benchmark cases by name: `tools/bench/run [--quick] [CASE ...]`."""

from __future__ import annotations

import os
import sys
import warnings

from sortshuffle.homes.environment import ALLOCATOR_DELAY, ALLOCATOR_VARIABLE

os.environ[ALLOCATOR_VARIABLE] = ALLOCATOR_DELAY  # as in the workers; read when pyarrow is loaded
warnings.filterwarnings("ignore", category=FutureWarning)

import calls  # noqa: E402
import click  # noqa: E402
import cluster_exchange  # noqa: E402
import comparison  # noqa: E402
import engine  # noqa: E402
import frames  # noqa: E402
import growth  # noqa: E402
import harness  # noqa: E402
import manager  # noqa: E402
import merges  # noqa: E402
import partitioners  # noqa: E402
import python_cases  # noqa: E402
import readers  # noqa: E402
import scale  # noqa: E402
import service  # noqa: E402
import worker_memory  # noqa: E402

# cases that run both sides in one process
CASES = {
    "engine": engine.main,
    "frames": frames.main,
    "merges": merges.main,
    "partitioners": partitioners.main,
    "readers": readers.main,
    "service": service.main,
    "scale": scale.main,
    "workers": worker_memory.main,
    "growth": growth.main,
    "calls": calls.main,
    "cluster": cluster_exchange.main,
}
# suites of whole Spark jobs; those of the manager and these
SUITES = {
    "exchange": python_cases.EXCHANGE,
    "sort": python_cases.SORT,
    "rdd": python_cases.RDD,
    "tpch": python_cases.TPCH,
    "sessions": python_cases.SESSIONS,
    "small": python_cases.SMALL,
}
NAMES = {suite: [case.name for case in cases] for suite, cases in SUITES.items()} | {
    manager.SUITE: manager.NAMES
}


@click.command()
@click.argument("cases", nargs=-1, type=click.Choice([*CASES, *NAMES]))
@click.option("--quick", is_flag=True, help="Little data: that every case works, not how fast it is.")
@click.option("--no-record", is_flag=True, help="Print results, but do not append them.")
@click.option(
    "--case",
    "selected",
    multiple=True,
    help=f"Of {', '.join(NAMES)}: only this one; may be given several times.",
)
@click.option("--ours-off", is_flag=True, help="Of the same: both sides are Spark's.")
def main(
    cases: tuple[str, ...], quick: bool, no_record: bool, selected: tuple[str, ...], ours_off: bool
) -> None:
    """Run benchmark cases (all, if none is named) and append their results to results.jsonl."""
    known = [name for suite in cases for name in NAMES.get(suite, ())]
    if unknown := [name for name in selected if name not in known]:
        names = ", ".join(known) or "the cases of a suite that is named before it"
        raise click.BadParameter(f"{unknown[0]} is none of: {names}", param_hint="--case")
    if ours_off and not known:
        raise click.UsageError(f"--ours-off is for {', '.join(NAMES)}")
    harness.recording = not quick and not no_record
    named = cases or (*CASES, *NAMES)
    failed: list[str] = []
    for name in named:
        if name in CASES:
            CASES[name](quick)
    suites = {
        name: [case for case in SUITES[name] if not selected or case.name in selected]
        for name in named
        if name in SUITES
    }
    if quick:
        failed += comparison.run_quickly(suites, ours_off)
    else:
        for name, members in suites.items():
            failed += comparison.run_cases(name, members, ours_off)
    if manager.SUITE in named:
        failed += manager.main(quick, selected, ours_off)
    if failed:
        sys.exit("failed: " + ", ".join(failed))


if __name__ == "__main__":
    main()
