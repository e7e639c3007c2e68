"""The order of turns: A B C A B C, so that what changes on the machine meanwhile changes all systems alike.

The answer of each turn must be the one that the input has (`systems.expected`). A system that fails takes no
further turn in that case, and its last words are kept.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from systems.expected import expected_answer
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
    expected = expected_answer(work, QUICK if quick else 1)
    for number in range(rounds):
        for system in systems:
            if system not in outcome.failures:
                _take(outcome, work, system, number, quick, expected)
    for system in outcome.failures:
        del outcome.turns[system]
    return outcome


def _take(outcome: Outcome, work: Work, system: str, number: int, quick: bool, expected: Any) -> None:
    fewer, warm_ups = (QUICK, 0) if quick else (1, work.warm_ups)
    try:
        turn = take_turn(system, work, fewer, warm_ups)
        _check(system, work, turn, expected)
    except (TurnError, OSError, ValueError) as error:
        print(error, file=sys.stderr)
        outcome.failures[system] = str(error)
        return
    outcome.turns[system].append(turn)
    warm = " ".join(f"{seconds:.2f}" for seconds in turn.warm_ups)
    others = turn.usage.foreign + turn.usage.stolen
    about = f"(warm-up: {warm or '-'}; {others:.1f} s of CPU went to others)"
    print(f"  {number + 1}. {system:<12} {turn.seconds:7.2f} s   {about}", flush=True)


def _check(system: str, work: Work, turn: Turn, expected: Any) -> None:
    """Raise `TurnError` if the answer is wrong."""
    if not _is_right(turn.answer, expected):
        raise TurnError(f"{system}: {work.name} gave {turn.answer}, while the input has {expected}")


def _is_right(answer: Any, expected: Any) -> bool:
    """Return whether an answer is the expected one, or at least some of it, if it has names."""
    if isinstance(answer, dict) and answer:
        return answer.items() <= expected.items()
    return bool(answer == expected)
