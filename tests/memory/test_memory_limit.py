"""How much a task may hold: its option, or what is left of the address space that Spark allows a worker."""

from __future__ import annotations

import pytest
from engine import printed

from sortshuffle.errors import OptionError
from sortshuffle.memory.limit import INTERPRETER_RESERVE, LEAST_BUDGET, task_memory
from sortshuffle.options import GIB, MIB, Options


@pytest.mark.parametrize(
    ("limit", "memory"),
    [
        (INTERPRETER_RESERVE + 16 * MIB, 16 * MIB),
        (INTERPRETER_RESERVE + 100 * MIB, 100 * MIB),
        (INTERPRETER_RESERVE + 255 * MIB, 255 * MIB),
        (INTERPRETER_RESERVE + 256 * MIB, 256 * MIB),
        (100 * GIB, 256 * MIB),
    ],
)
def test_the_smaller_of_the_option_and_what_the_limit_leaves_counts(limit: int, memory: int) -> None:
    assert task_memory(Options(memory=256 * MIB), limit) == memory


def test_a_small_option_is_not_raised() -> None:
    assert task_memory(Options(memory=MIB), INTERPRETER_RESERVE + GIB) == MIB


@pytest.mark.parametrize("limit", [0, GIB, INTERPRETER_RESERVE, INTERPRETER_RESERVE + LEAST_BUDGET - 1])
def test_a_limit_that_leaves_too_little_is_refused_with_what_to_give(limit: int) -> None:
    with pytest.raises(
        OptionError, match=r"spark\.executor\.pyspark\.memory allows each Python worker"
    ) as caught:
        task_memory(Options(), limit)
    assert "of which 1.1 GiB are taken by the interpreter" in str(caught.value)
    assert "give at least 1.1 GiB for each task slot" in str(caught.value)


def test_the_process_is_asked_for_its_own_limit() -> None:
    program = """
import resource, sys
from sortshuffle.memory.limit import task_memory
from sortshuffle.options import Options
unlimited = resource.RLIM_INFINITY
for soft in (unlimited, int(sys.argv[1])):
    resource.setrlimit(resource.RLIMIT_AS, (soft, unlimited))
    print(task_memory(Options(memory=1 << 40)))
"""
    limit = INTERPRETER_RESERVE + 300 * MIB
    assert printed(program, str(limit)) == [str(1 << 40), str(300 * MIB)]
