"""`growth`: does a byte cost the same in small and large shuffles? The engine alone, on one core.

From 8 to 4096 subpartitions and from 0.5 to 8 GB. Spark is left out: 4096 of its tasks would measure its own
task latency.
"""

from __future__ import annotations

import time
from statistics import median

from engine import engine_run, scratch, stream
from harness import on_one_core, record

from sortshuffle.format.header import Codec
from sortshuffle.metrics import TaskMetrics

SUBPARTITIONS = (8, 64, 512, 4096)
GIGABYTES = (0.5, 2, 8)
LONG_ENOUGH = 4  # gigabytes; more are run once


def main(quick: bool) -> None:
    sizes = (0.01, 0.04) if quick else GIGABYTES
    print("\ngrowth: ns per byte written and read back, LZ4, one core, page cache warm")
    print(f"  {'subpartitions':>13}" + "".join(f"{size:>9g} GB" for size in sizes) + "   largest/smallest")
    with on_one_core():
        for subpartitions in SUBPARTITIONS:
            costs = [_cost(size, subpartitions) for size in sizes]
            growth = max(costs) / min(costs)
            print(f"  {subpartitions:>13}" + "".join(f"{cost:>12.3f}" for cost in costs) + f"   {growth:.2f}")
            record(
                "growth",
                subpartitions=subpartitions,
                gigabytes=sizes,
                nanoseconds_per_byte=costs,
                spread=growth,
                page_cache="warm",
            )


def _cost(gigabytes: float, subpartitions: int) -> float:
    batches = list(stream(int(gigabytes * 1e9)))
    found = []
    for _ in range(3 if gigabytes > LONG_ENOUGH else 5):
        with scratch() as directory:
            started = time.perf_counter()
            size, _ = engine_run(directory, batches, subpartitions, Codec.LZ4, TaskMetrics())
            found.append((time.perf_counter() - started) / size * 1e9)
    return median(found)
