"""Runs benchmark cases by name: `tools/bench/run [--quick] [CASE ...]`."""

from __future__ import annotations

import os
import warnings
from functools import partial

from sortshuffle.storage.environment import ALLOCATOR_DELAY, ALLOCATOR_VARIABLE

os.environ[ALLOCATOR_VARIABLE] = ALLOCATOR_DELAY  # as in the workers; read when pyarrow is loaded
warnings.filterwarnings("ignore", category=FutureWarning)

import click  # noqa: E402
import cluster_exchange  # noqa: E402
import engine  # noqa: E402
import exchange  # noqa: E402
import frames  # noqa: E402
import growth  # noqa: E402
import harness  # noqa: E402
import manager  # noqa: E402
import partitioners  # noqa: E402
import rdd  # noqa: E402
import readers  # noqa: E402
import scale  # noqa: E402
import service  # noqa: E402
import sort  # noqa: E402
import tpch  # noqa: E402

CASES = {
    "engine": engine.main,
    "frames": frames.main,
    "partitioners": partitioners.main,
    "readers": readers.main,
    "service": service.main,
    "scale": scale.main,
    "growth": growth.main,
    "exchange": exchange.main,
    "cluster": cluster_exchange.main,
    "sort": sort.main,
    "rdd": rdd.main,
    "tpch": tpch.main,
    "manager": manager.main,
}


@click.command()
@click.argument("cases", nargs=-1, type=click.Choice(list(CASES)))
@click.option("--quick", is_flag=True, help="Little data: that every case works, not how fast it is.")
@click.option("--no-record", is_flag=True, help="Print results, but do not append them.")
@click.option(
    "--case",
    "selected",
    multiple=True,
    type=click.Choice(manager.NAMES),
    help="Of manager: only this one; may be given several times.",
)
@click.option("--ours-off", is_flag=True, help="Of manager: both sides with Spark's own shuffle.")
def main(
    cases: tuple[str, ...], quick: bool, no_record: bool, selected: tuple[str, ...], ours_off: bool
) -> None:
    """Run benchmark cases (all, if none is named) and append their results to results.jsonl."""
    if (selected or ours_off) and cases != ("manager",):
        raise click.UsageError("--case and --ours-off are for manager: tools/bench/run manager --case NAME")
    harness.recording = not quick and not no_record
    runs = CASES | {"manager": partial(manager.main, selected=selected, ours_off=ours_off)}
    for name in cases or runs:
        runs[name](quick)


if __name__ == "__main__":
    main()
