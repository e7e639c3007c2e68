"""Cases that were found, within the limits that they were found by: `python -m fuzz.replay TARGET/CASE...`.

Exits with status 0 if all are sound. Else the last line on standard output names the case. One that takes too
long ends the process by a signal: so no loop in C escapes.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from fuzz import run
from fuzz.targets import TARGETS


def main(cases: list[Path]) -> None:
    for name in sorted({case.parent.name for case in cases}):
        for data in TARGETS[name].seeds():
            TARGETS[name].check(data)  # what is loaded now takes none of the memory of a case
    run.limit_memory()
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    for case in cases:
        data = case.read_bytes()
        print(f"{case.parent.name}/{case.name}", flush=True)
        signal.alarm(run.CASE_SECONDS)
        TARGETS[case.parent.name].check(data)
        signal.alarm(0)


if __name__ == "__main__":
    main([Path(each) for each in sys.argv[1:]])
