"""What a case of whole Spark jobs is: its jobs, the settings of its sessions, and its aims.

Every case can be made tiny (`quick`): that it works, not how fast it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from rounds import Effort, Measured
from sides import MIB, Request, Setup

# An option of JVMs. Without the optimising compiler a JVM would reserve 48 MB for code instead of 240. One
# session that runs every case may fill that.
ONE_COMPILER = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
# Code that runs once is not worth compiling well: with this, 22 queries take 22 CPU seconds instead of 42.
QUICK_JAVA = (("spark.driver.extraJavaOptions", f"{ONE_COMPILER} -XX:+UseSerialGC"),)
QUICK_SETUP = Setup(memory=1024 * MIB, settings=QUICK_JAVA)
QUICK_EFFORT = Effort(is_quick=True)
MOST_QUICK_PARTITIONS = 24  # each is a task of Python on both sides: with 100 the whole takes 30 s more


def quick_partitions(number: int) -> int:
    """Return how many partitions a case has in its tiny form, if it has ``number`` of them in full."""
    return min(max(2, number // 8), MOST_QUICK_PARTITIONS)


@dataclass(frozen=True, slots=True)
class Aim:
    """The most that ours may take, as a ratio to the other side. ``query``: in wall time of any one job.
    ``seconds``: how much longer it may take. ``cpu_per_byte``: 4 tasks at once to 1 task, of ours."""

    wall: float | None = None
    cpu: float | None = None
    query: float | None = None
    seconds: float | None = None
    cpu_per_byte: float | None = None


def _no_requests(quick: bool) -> list[Request]:
    return []


@dataclass(frozen=True, slots=True)
class Case:
    """``requests``: its jobs, full or tiny; makes the data that they need. ``warm_up``: other jobs for the
    warm-up. ``verification``: jobs that are run once, and not timed: what they give is looked at row by row.
    ``check``: raises `BenchError` where a figure shows that the case is not what its name says."""

    name: str
    about: str
    requests: Callable[[bool], list[Request]]
    aim: Aim
    setup: Setup = field(default_factory=Setup)
    effort: Effort = field(default_factory=Effort)
    warm_up: Callable[[], list[Request]] | None = None
    verification: Callable[[bool], list[Request]] = _no_requests
    check: Callable[[Measured], None] = lambda measured: None

    @property
    def quick_setup(self) -> Setup:
        """Of the sessions that run it tiny."""
        return replace(QUICK_SETUP, door=self.setup.door, against=self.setup.against)
