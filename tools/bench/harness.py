"""Running two sides against each other and writing down what came out.

Rules of the cases that `compare` runs: both sides in one process, on the same data, with the same settings.
Each side runs once to warm up, which is not counted, then they run in turn, A B A B. The figure is the median
of each side's runs and the ratio of the two; the spread is shown. A result names commit, machine, versions,
data and page-cache state. (Whole Spark jobs are compared in sessions of their own: `rounds`.)

Results are appended to `RESULTS`. Nothing is ever removed from it.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from watching import watching

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).parent / "results.jsonl"
DATA = Path(__file__).parent / "data"
JOBS = str(Path(__file__).parent)  # the directory of the modules that workers import
SAMPLE_SECONDS = 0.02
ROUNDS = 5  # of each side
recording = True  # off in quick runs, whose figures mean nothing
MEGA = 1e6


@dataclass(slots=True)
class Side:
    """One side of a comparison. ``run`` returns how many bytes of rows and how many rows it moved."""

    name: str
    run: Callable[[], tuple[int, int]]
    seconds: list[float] = field(default_factory=list)
    peaks: list[int] = field(default_factory=list)
    moved: tuple[int, int] = (0, 0)

    def once(self, watched: bool) -> None:
        with peak_memory() if watched else nullcontext([0]) as peak:
            started = time.perf_counter()
            self.moved = self.run()
            self.seconds.append(time.perf_counter() - started)
        self.peaks.append(peak[0])

    @property
    def median(self) -> float:
        return median(self.seconds)

    def forget(self) -> None:
        """What ran so far was the warm-up."""
        self.seconds.clear()
        self.peaks.clear()


@contextmanager
def peak_memory() -> Iterator[list[int]]:
    """The largest resident size of any one Python process of this tree while the block runs, in bytes.

    In a Spark case those are the workers; the JVM and the driver's own process are left out if there are
    workers.
    """
    peak, own = [0], psutil.Process()

    def look() -> None:
        workers = [p for p in own.children(recursive=True) if is_worker(p)]
        for process in workers or [own]:
            peak[0] = max(peak[0], _resident(process))

    with watching(look, SAMPLE_SECONDS):
        yield peak


def is_worker(process: psutil.Process) -> bool:
    try:
        return " ".join(process.cmdline()).endswith("daemon pyspark.worker")  # Spark's or ours
    except psutil.Error:
        return False


def _resident(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0


def compare(
    case: str,
    about: str,
    ours: Side,
    other: Side,
    *,
    rounds: int = ROUNDS,
    before: Callable[[], None] = lambda: None,
    watched: bool = True,
    **facts: Any,
) -> None:
    """Warm both sides up, run A B A B, print the ratio, append the result. One round is a quick run, without
    a warm-up. ``before``: prepares the machine for either side's run, and is not timed. ``watched``: sample
    memory meanwhile, which takes some percent of one core. ``facts``: what else the reader must know."""
    sides = (ours, other)
    for number in range(rounds if rounds == 1 else rounds + 1):
        if number == 1:
            for side in sides:
                side.forget()
        for side in sides:
            before()
            side.once(watched)
    ratio = other.median / ours.median
    print(f"\n{case}: {about}")
    for side in sides:
        size, rows = side.moved
        shown = ", ".join(f"{seconds:.2f}" for seconds in side.seconds)
        print(
            f"  {side.name:<22} {side.median:7.2f} s  ({shown})  {rows / side.median / MEGA:7.2f} Mrows/s"
            f"  {size / side.median / MEGA:8.0f} MB/s"
            + (f"  peak {max(side.peaks) / MEGA:5.0f} MB" if watched else "")
        )
    print(f"  {ours.name} is {ratio:.2f} times as fast as {other.name}")
    record(case, about=about, ratio=round(ratio, 3), sides=[_result(ours), _result(other)], **facts)


def _result(side: Side) -> dict[str, Any]:
    found = asdict(side)
    del found["run"]
    return found | {"median": side.median}


def record(case: str, **facts: Any) -> None:
    """Append one result with everything that is needed to read it later."""
    if not recording:
        return
    entry = {
        "case": case,
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        **commit(),
        "machine": machine(),
        "versions": {
            name: version(name) for name in ("sortshuffle", "pyspark", "pyarrow", "numpy", "xxhash")
        },
        "python": sys.version.split()[0],
        **facts,
    }
    with RESULTS.open("a") as results:
        results.write(json.dumps(entry) + "\n")


def commit() -> dict[str, Any]:
    """The commit of the checkout, and whether it has been changed since, but for the results."""
    try:
        head = _git("rev-parse", "HEAD")
        changed = _git("status", "--porcelain", "--", ".", f":!{RESULTS.relative_to(ROOT)}")
    except (OSError, subprocess.CalledProcessError):
        return {"commit": "unknown"}
    return {"commit": head, "dirty": bool(changed)}


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", str(ROOT), *arguments], check=True, capture_output=True, text=True
    ).stdout.strip()


def machine() -> str:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{_processor()}, {os.cpu_count()} cores, {memory:.0f} GiB, Linux {platform.release()}"


def _processor() -> str:
    with open("/proc/cpuinfo") as opened:
        names = [line.split(":", 1)[1].strip() for line in opened if line.startswith("model name")]
    return names[0] if names else platform.machine()


def build_jar() -> None:
    """What is measured is the sources of this checkout: the jar is built anew if they are newer."""
    built = subprocess.run([str(ROOT / "tools" / "jar")], stdin=subprocess.DEVNULL)
    if built.returncode:
        sys.exit("the shuffle manager's jar cannot be built, see above")


@contextmanager
def on_one_core() -> Iterator[None]:
    """Keep this process, threads included, on one core."""
    import pyarrow as pa

    allowed = os.sched_getaffinity(0)
    threads = pa.cpu_count()
    os.sched_setaffinity(0, {max(allowed)})
    pa.set_cpu_count(1)
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)
        pa.set_cpu_count(threads)
