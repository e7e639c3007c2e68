"""tools/fuzz: see `fuzz`."""

from __future__ import annotations

import argparse
import hashlib
import math
import random
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from fuzz import targets
from fuzz.run import CURRENT

CASES = Path(__file__).resolve().parents[3] / "tests" / "fuzz_cases"
GRACE = 60.0  # seconds that a target may take beside its time, to start and to end
_COUNT = re.compile(r"^(?:stat::number_of_executed_units: *(\d+)|(\d+) cases by chance)$", re.MULTILINE)


def main() -> int:
    names = sorted(targets.TARGETS)
    parser = argparse.ArgumentParser(
        prog="tools/fuzz",
        description="Fuzzes what is read from others. A fault is an error that is none of sortshuffle.errors,"
        " bytes that are understood as something else than they say, memory beyond their size, no end, or the"
        " end of the process. The case is kept in tests/fuzz_cases/TARGET: mend the fault, and commit both.",
    )
    parser.add_argument("--minutes", type=_minutes, default=1.0, help="for each target (default: 1)")
    parser.add_argument("--seed", type=int, help="of the changes (default: another one each time; printed)")
    parser.add_argument("targets", nargs="*", choices=[*names, []], help=f"{', '.join(names)} (default: all)")
    asked = parser.parse_args()
    seed = random.randrange(1 << 31) if asked.seed is None else asked.seed
    print(f"seed {seed}")
    faults = [name for name in asked.targets or names if not _is_sound(name, 60 * asked.minutes, seed)]
    print("faults in: " + ", ".join(faults) if faults else "no fault")
    return 1 if faults else 0


def _minutes(text: str) -> float:
    minutes = float(text)
    if not (math.isfinite(minutes) and minutes > 0):
        raise argparse.ArgumentTypeError(f"{text} is no time to fuzz for")
    return minutes


def _is_sound(name: str, seconds: float, seed: int) -> bool:
    with tempfile.TemporaryDirectory(prefix="sortshuffle-fuzz-") as found:
        command = [sys.executable, "-m", "fuzz.run", name, str(seconds), str(seed), found]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + GRACE)
            output, is_sound = done.stdout + done.stderr, done.returncode == 0
        except subprocess.TimeoutExpired as error:
            output, is_sound = str(error), False
        count = cases_tried(output)
        if is_sound and not count:
            print(f"{name}: no case was tried\n{output[-4000:]}")
            return False
        print(f"{name}: " + (f"no fault in {count} cases" if is_sound else "a fault\n" + output[-4000:]))
        kept = keep(Path(found), CASES / name, is_sound)
        for case in kept:
            print(f"kept: {case}")
    return is_sound and not kept


def cases_tried(output: str) -> int:
    """How many, as a run says at its end; 0 if it says nothing."""
    told = _COUNT.search(output)
    return int(told[1] or told[2]) if told else 0


def keep(found: Path, kept: Path, has_ended_well: bool) -> list[Path]:
    """Copy the cases that a run has found; returns the copies. The one that it was at is one of them if it
    has not ended well, and says no other."""
    current = found / CURRENT
    cases = [case for case in sorted(found.iterdir()) if case.is_file() and case != current]
    names = {case: case.name for case in cases}
    if not cases and not has_ended_well and current.exists():
        names[current] = hashlib.sha256(current.read_bytes()).hexdigest()[:16]
    if names:
        kept.mkdir(parents=True, exist_ok=True)
    return [Path(shutil.copy(case, kept / name)) for case, name in names.items()]


if __name__ == "__main__":
    sys.exit(main())
