"""How the two sides of a benchmark of whole Spark jobs are measured.

A *pass* is all jobs of a case once, on both sides: A B, then B A, and so on, job by job and pass by pass.

1. The jobs of the verification, once. What these give shows each row, and where it is.
2. Warm-up: passes until both sides have settled. A side has settled when its last pass took as long as the
   best one before, or as the one right before, within `SETTLED`. (The best one alone could be a single pass
   that was quick by chance.) `Effort` says how many at least and at most. A case that has not settled then
   is measured all the same, and its line in the table says so.
3. The timed passes, as many as the case says.
4. One pass in which memory is looked at. It is not timed, because looking disturbs.

All results of all passes are compared: every job must give the same on both sides, every time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from process_tree import peak_memory
from side_session import Ran
from sides import OURS, BenchError, Pair, Request

SETTLED = 0.05  # of the pass that is compared with
LEAST_WARM_UPS = 2

Pass = dict[str, dict[str, Ran]]
"""What each side (by its name) took for each job (by its name)."""


@dataclass(frozen=True, slots=True)
class Effort:
    """``rounds``: timed passes. ``least_warm_ups``: passes before it is asked whether a side has settled;
    ``most_warm_ups``: passes until it is taken as settled. ``is_quick``: one pass of both sides at once
    instead of all that; its figures mean nothing."""

    rounds: int = 5
    least_warm_ups: int = LEAST_WARM_UPS
    most_warm_ups: int = 8
    is_quick: bool = False


@dataclass(slots=True)
class Measured:
    """What came out for a case. ``peaks``: of each side when it had most memory, bytes by program; of so many
    ``looks``. ``verified``: jobs of the verification."""

    passes: list[Pass] = field(default_factory=list)
    warm_ups: list[Pass] = field(default_factory=list)
    settled: bool = False
    peaks: dict[str, Counter[str]] = field(default_factory=dict)
    looks: int = 0
    unquiet: int = 0
    verified: int = 0

    @property
    def other(self) -> str:
        """The name of the side that ours is compared with."""
        return next(name for name in self.passes[0] if name != OURS)

    @property
    def is_unsettled(self) -> bool:
        """It was to settle, and has not."""
        return bool(self.warm_ups) and not self.settled

    def walls(self, side: str, job: str | None = None) -> list[float]:
        """Seconds of each timed pass, of all jobs or of one."""
        return [_sum(each[side], "wall", job) for each in self.passes]

    def cpus(self, side: str, job: str | None = None) -> list[float]:
        return [_sum(each[side], "cpu", job) for each in self.passes]

    def most(self, side: str, what: str) -> float:
        """The largest of a `Ran`'s figures, summed over the jobs of a timed pass."""
        return max(_sum(each[side], what) for each in self.passes)

    def wall_ratio(self, ours: str, other: str, job: str | None = None) -> float:
        return ratio(self.walls(ours, job), self.walls(other, job))

    def cpu_ratio(self, ours: str, other: str, job: str | None = None) -> float:
        return ratio(self.cpus(ours, job), self.cpus(other, job))


def ratio(ours: Sequence[float], other: Sequence[float]) -> float:
    """Of the medians. CPU time may be none at all in a tiny run."""
    return median(ours) / max(median(other), 1e-9)


class Digests:
    """What each job gave the first time. Raises `BenchError` when it gives something else."""

    def __init__(self) -> None:
        self._first: dict[str, str] = {}

    def check(self, job: str, side: str, digest: str) -> None:
        first = self._first.setdefault(job, digest)
        if digest != first:
            raise BenchError(f"{job}: {side} gives {digest}; the first run gave {first}")


def measure(
    pair: Pair,
    requests: Sequence[Request],
    effort: Effort,
    warm_up: Sequence[Request] = (),
    verification: Sequence[Request] = (),
) -> Measured:
    """Measure the jobs of a case. ``warm_up``: other jobs to warm up with, where its own take too long.
    ``verification``: jobs that are not timed."""
    found, digests = Measured(), Digests()
    if effort.is_quick:
        found.passes.append(_quick_pass(pair, requests, digests))
        _quick_pass(pair, verification, digests)
        return found
    one_pass(pair, verification, 0, digests)
    found.verified = len(verification)
    _warm_up(pair, warm_up or requests, effort, found, Digests() if warm_up else digests)
    for number in range(effort.rounds):
        found.passes.append(one_pass(pair, requests, number, digests))
        print(f"    pass {number + 1}: {_shown(found.passes[-1])}", flush=True)
    with peak_memory([side.tree for side in pair.sides]) as peaks:
        one_pass(pair, requests, 0, digests)
    found.peaks = {side.name: peak for side, peak in zip(pair.sides, peaks.most, strict=True)}
    found.looks = peaks.looks
    found.unquiet = pair.unquiet
    return found


def one_pass(pair: Pair, requests: Sequence[Request], number: int, digests: Digests) -> Pass:
    """All jobs once on both sides; which side begins changes with each job and each pass."""
    found: Pass = {side.name: {} for side in pair.sides}
    for at, request in enumerate(requests):
        _add(found, request, pair.in_turn(request, number + at), digests)
    return found


def _quick_pass(pair: Pair, requests: Sequence[Request], digests: Digests) -> Pass:
    found: Pass = {side.name: {} for side in pair.sides}
    for request in requests:
        _add(found, request, pair.both(request), digests)
    return found


def _add(found: Pass, request: Request, ran: dict[str, Ran], digests: Digests) -> None:
    for side, each in ran.items():
        digests.check(request.name, side, each.digest)
        found[side][request.name] = each


def _warm_up(
    pair: Pair, requests: Sequence[Request], effort: Effort, found: Measured, digests: Digests
) -> None:
    for number in range(effort.most_warm_ups):
        found.warm_ups.append(one_pass(pair, requests, number, digests))
        print(f"    warm-up {number + 1}: {_shown(found.warm_ups[-1])}", flush=True)
        if number + 1 >= effort.least_warm_ups and all(
            has_settled([_sum(each[side.name], "wall") for each in found.warm_ups]) for side in pair.sides
        ):
            found.settled = True
            return
    print(f"    not settled after {effort.most_warm_ups} passes", flush=True)


def has_settled(walls: Sequence[float]) -> bool:
    """Whether the last pass took as long as the best one before it, or as the one right before it."""
    *before, last = walls
    return any(abs(last / other - 1) <= SETTLED for other in (min(before), before[-1]))


def _sum(runs: dict[str, Ran], what: str, job: str | None = None) -> float:
    return float(sum(getattr(ran, what) for name, ran in runs.items() if job in (None, name)))


def _shown(one: Pass) -> str:
    return ", ".join(
        f"{side} {_sum(runs, 'wall'):.2f} s (CPU {_sum(runs, 'cpu'):.2f} s)" for side, runs in one.items()
    )
