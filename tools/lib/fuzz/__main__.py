"""tools/fuzz: see `fuzz`."""

from __future__ import annotations

import argparse
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from fuzz import targets

CASES = Path(__file__).resolve().parents[3] / "tests" / "fuzz_cases"
GRACE = 60.0  # seconds that a target may take beside its time, to start and to end


def main() -> int:
    names = sorted(targets.TARGETS)
    parser = argparse.ArgumentParser(
        prog="tools/fuzz",
        description="Fuzzes what is read from others. A fault is an error that is none of sortshuffle.errors,"
        " bytes that are understood as something else than they say, memory beyond their size, or no end."
        " The case is kept in tests/fuzz_cases/TARGET: mend the fault, and commit both.",
    )
    parser.add_argument("--minutes", type=float, default=1.0, help="for each target (default: 1)")
    parser.add_argument("--seed", type=int, help="of the changes (default: another one each time; printed)")
    parser.add_argument("targets", nargs="*", choices=[*names, []], help=f"{', '.join(names)} (default: all)")
    asked = parser.parse_args()
    seed = random.randrange(1 << 31) if asked.seed is None else asked.seed
    print(f"seed {seed}")
    faults = [name for name in asked.targets or names if not _is_sound(name, 60 * asked.minutes, seed)]
    print("faults in: " + ", ".join(faults) if faults else "no fault")
    return 1 if faults else 0


def _is_sound(name: str, seconds: float, seed: int) -> bool:
    with tempfile.TemporaryDirectory(prefix="sortshuffle-fuzz-") as found:
        command = [sys.executable, "-m", "fuzz.run", name, str(seconds), str(seed), found]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + GRACE)
            output, is_sound = done.stdout + done.stderr, done.returncode == 0
        except subprocess.TimeoutExpired as error:
            output, is_sound = str(error), False
        print(f"{name}: " + ("no fault" if is_sound else "a fault\n" + output[-4000:]))
        for case in Path(found).iterdir():
            if case.is_file():
                (CASES / name).mkdir(parents=True, exist_ok=True)
                print(f"kept: {shutil.copy(case, CASES / name / case.name)}")
                is_sound = False
    return is_sound


if __name__ == "__main__":
    sys.exit(main())
