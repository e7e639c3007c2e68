"""A limit on the memory of one side of a benchmark, as a container has it: its page cache counts, too.

Used by `sides`. A control group is made for the side's first process, before that has started others;
they are born into it. Linux with control groups of version 1 or 2, and a user who may make them.
"""

from __future__ import annotations

import os
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
PATIENCE = 10.0  # seconds until the kernel has let go of processes that have ended


@contextmanager
def container(memory: int) -> Iterator[Callable[[int], None]]:
    """What puts a process, by its pid, into a new control group that may have so many bytes. The group goes
    with the block, in which all of its processes end. Raises OSError where groups cannot be made."""
    is_second_version = (ROOT / "cgroup.controllers").exists()
    parent, limit = (ROOT, "memory.max") if is_second_version else (ROOT / "memory", "memory.limit_in_bytes")
    group = parent / f"sortshuffle-bench-{uuid.uuid4().hex[:8]}"
    group.mkdir()
    try:
        (group / limit).write_text(str(memory))
        yield lambda pid: _add(group, pid)
    finally:
        _remove(group)


def _add(group: Path, pid: int) -> None:
    (group / "cgroup.procs").write_text(str(pid))


def _remove(group: Path) -> None:
    until = time.monotonic() + PATIENCE
    while True:
        try:
            os.rmdir(group)
            return
        except OSError as error:
            if time.monotonic() > until:
                print(f"a control group stays: {error}", file=sys.stderr)
                return
            time.sleep(0.05)
