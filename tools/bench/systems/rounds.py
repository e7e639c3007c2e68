"""The order of turns: A B C A B C, so that what changes on the machine meanwhile changes all systems alike.

All answers must be equal, those of all systems and of all rounds. A system that fails takes no further turn
in that case, and its last words are kept.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from systems.environments import InstallError
from systems.turn import Turn, TurnError, take_turn
from systems.work import QUICK, Work


@dataclass(slots=True)
class Outcome:
    """``turns``: of each system that did all of them. ``failures``: why others did not."""

    turns: dict[str, list[Turn]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)


def compare(work: Work, systems: Sequence[str], rounds: int, quick: bool) -> Outcome:
    """Let the systems do the work in turn."""
    outcome = Outcome({system: [] for system in systems})
    for number in range(rounds):
        for system in systems:
            if system not in outcome.failures:
                _take(outcome, work, system, number, quick)
    for system in outcome.failures:
        del outcome.turns[system]
    return outcome


def _take(outcome: Outcome, work: Work, system: str, number: int, quick: bool) -> None:
    fewer, warm_ups = (QUICK, 0) if quick else (1, work.warm_ups)
    try:
        turn = take_turn(system, work, fewer, warm_ups)
        _check(turn, outcome)
    except (TurnError, InstallError, OSError, ValueError) as error:
        print(error, file=sys.stderr)
        outcome.failures[system] = str(error)
        return
    outcome.turns[system].append(turn)
    warm = " ".join(f"{seconds:.2f}" for seconds in turn.warm_ups)
    print(f"  {number + 1}. {system:<12} {turn.seconds:7.2f} s   (warm-up: {warm or '-'})", flush=True)


def _check(turn: Turn, outcome: Outcome) -> None:
    """Raise `TurnError` if the answer is not that of all turns before."""
    for found in outcome.turns.values():
        for before in found:
            if not _are_equal(turn.answer, before.answer):
                raise TurnError(f"gave {turn.answer}, while a turn before gave {before.answer}")


def _are_equal(answer: Any, other: Any) -> bool:
    """Return whether two answers are equal, as far as both tell something."""
    if isinstance(answer, dict) and isinstance(other, dict):
        return all(answer[name] == other[name] for name in answer.keys() & other.keys())
    return bool(answer == other)
