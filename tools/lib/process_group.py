"""Groups of processes, such as a driver with its JVM and executors: whether any still runs."""

from __future__ import annotations

import os
import time
from contextlib import suppress

POLL_SECONDS = 0.02  # seconds between looks


def wait_until_ended(group: int, patience: float) -> bool:
    """Whether all of it has ended within so many seconds."""
    until = time.monotonic() + patience
    while runs(group):
        if time.monotonic() > until:
            return False
        time.sleep(POLL_SECONDS)
    return True


def runs(group: int) -> bool:
    """Whether a process of this group runs. One that nobody has waited for yet does not."""
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError), open(f"/proc/{entry}/stat", "rb") as opened:
            state, _, of_group = opened.read().rpartition(b")")[2].split()[:3]
            if int(of_group) == group and state not in (b"Z", b"X"):
                return True
    return False
