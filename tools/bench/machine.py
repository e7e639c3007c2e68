"""`machine_seconds`: how busy the machine's cores were, and how much of their time its host took."""

from __future__ import annotations

import os

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def machine_seconds() -> tuple[float, float]:
    """Return the seconds of all cores since boot: busy, and stolen by the host of a virtual machine."""
    with open("/proc/stat") as opened:
        user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, opened.readline().split()[1:9])
    return (user + nice + system + irq + softirq) / TICKS_PER_SECOND, steal / TICKS_PER_SECOND
