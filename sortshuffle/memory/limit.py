"""How much memory a task may use, given its options and Spark's limit on its process.

Spark turns ``spark.executor.pyspark.memory`` into an address-space limit of every Python worker (RLIMIT_AS).
Mapped libraries and thread stacks count towards it too. The budget is the smaller of the option and what the
limit leaves after a reserve for the interpreter, its libraries and the user's own data.
"""

from __future__ import annotations

import resource

from sortshuffle.errors import OptionError
from sortshuffle.options import MIB, Options, format_size

# A worker with pyarrow, NumPy and pandas imported and four reading threads uses 1.1 GiB of address space, of
# which each thread's stack takes 8 MiB and its arena 64 MiB; measured as VmSize on Python 3.11
INTERPRETER_RESERVE = 1152 * MIB
LEAST_BUDGET = 16 * MIB


def task_memory(options: Options, address_space_limit: int | None = None) -> int:
    """Return the bytes that a task may hold. ``address_space_limit``: bytes, None for the process's limit.

    Raises `OptionError` if the limit leaves less than 16 MiB.
    """
    limit = _own_limit() if address_space_limit is None else address_space_limit
    if limit is None:
        return options.memory
    left = limit - INTERPRETER_RESERVE
    if left < LEAST_BUDGET:
        raise OptionError(
            f"spark.executor.pyspark.memory allows each Python worker {format_size(limit)}, of which"
            f" {format_size(INTERPRETER_RESERVE)} are taken by the interpreter and its libraries: give at"
            f" least {format_size(INTERPRETER_RESERVE + LEAST_BUDGET)} for each task slot"
        )
    return min(options.memory, left)


def _own_limit() -> int | None:
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if soft == resource.RLIM_INFINITY else soft
