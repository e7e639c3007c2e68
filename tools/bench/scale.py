"""`scale`: from 10 to 10,000 subpartitions, and from data that fits the memory to twenty times as much.

The engine alone, one core, 256 MiB for writing and 64 MiB for reading. Per number of subpartitions: bytes per
read call (an extent is one positioned read), time per byte, and peak memory. Then peak memory for data of 1,
4 and 20 times the budget: it must be the budget and a constant. Each run has a process of its own, so that
its peak is its own; what the process held before the run (interpreter, libraries, the input) is taken off.
"""

from __future__ import annotations

import gc
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa
from engine import MEMORY, READ_MEMORY, engine_run, scratch, stream
from harness import MEGA, on_one_core, record

from sortshuffle.format.header import Codec
from sortshuffle.metrics import TaskMetrics

SUBPARTITIONS = (10, 100, 1000, 10_000)
SCALE_BYTES = 8_000_000_000
TIMES_BUDGET = (1, 4, 20)
MEMORY_SUBPARTITIONS = 64


@dataclass(frozen=True, slots=True)
class Run:
    """One run's figures. ``peak``: bytes above what the process held before."""

    subpartitions: int
    size: int
    seconds: float
    read_calls: int
    bytes_per_call: float
    regions: int
    counted_peak: int
    peak: int


def main(quick: bool) -> None:
    size = 40_000_000 if quick else SCALE_BYTES
    print(f"\nscale: {size / 1e9:g} GB, {MEMORY >> 20} MiB of memory, one core, page cache warm")
    print("  subpartitions   regions   KiB per read call   ns per byte   peak MB above the start")
    for subpartitions in SUBPARTITIONS:
        run = in_own_process(subpartitions, size)
        print(
            f"  {subpartitions:>13}{run.regions:>10}{run.bytes_per_call / 1024:>20.0f}"
            f"{run.seconds / run.size * 1e9:>14.2f}{run.peak / MEGA:>26.0f}"
        )
        record("scale", memory=MEMORY, read_memory=READ_MEMORY, page_cache="warm", **asdict(run))
    print(f"\nmemory: {MEMORY_SUBPARTITIONS} subpartitions, {MEMORY >> 20} MiB of memory")
    print("  data / budget   counted peak MB   peak MB above the start")
    for times in TIMES_BUDGET:
        run = in_own_process(MEMORY_SUBPARTITIONS, size // 32 if quick else times * MEMORY)
        print(f"  {times:>13}{run.counted_peak / MEGA:>18.0f}{run.peak / MEGA:>26.0f}")
        record("memory", times_budget=times, memory=MEMORY, read_memory=READ_MEMORY, **asdict(run))


def in_own_process(subpartitions: int, size: int) -> Run:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(measured, subpartitions, size).result()


def measured(subpartitions: int, size: int) -> Run:
    with on_one_core(), scratch() as directory:
        list(stream(1))  # makes the input, which is not counted
        metrics = TaskMetrics()
        before = forget_peak()
        started = time.perf_counter()
        moved, _ = engine_run(directory, stream(size), subpartitions, Codec.NONE, metrics)
        seconds = time.perf_counter() - started
        counts = metrics.counts
        return Run(
            subpartitions,
            moved,
            seconds,
            counts["extents_read"],
            counts["bytes_read"] / counts["extents_read"],
            counts["regions"],
            counts["memory_peak"],
            resident_peak() - before,
        )


def forget_peak() -> int:
    """Give back what is free, begin a new high-water mark of resident memory, and return it, bytes."""
    gc.collect()
    pa.default_memory_pool().release_unused()
    Path("/proc/self/clear_refs").write_text("5")
    return resident_peak()


def resident_peak() -> int:
    """The largest resident size of this process since `forget_peak`, bytes."""
    status = Path("/proc/self/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024
