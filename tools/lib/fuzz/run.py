"""One target for some time, in this process: `python -m fuzz.run TARGET SECONDS SEED CASES`.

Exits with status 0 if there was no fault in the time. Else the case lies in the directory CASES, and standard
error says what is wrong. A case has `CASE_SECONDS` and `MEMORY`. One that ends the process, or never comes
back from C, lies in CASES as `CURRENT`.
"""

from __future__ import annotations

import hashlib
import os
import random
import resource
import signal
import sys
import time
from types import FrameType

try:
    import atheris
except ImportError:
    atheris = None
else:
    with atheris.instrument_imports(include=["sortshuffle"]):  # all that is loaded would take half a minute
        import fuzz.targets  # noqa: F401

from fuzz.targets import TARGETS, Target

CASE_SECONDS = 10  # of one case; the longest takes some ms
MEMORY = 1 << 30  # bytes of address space beside what the process has when it begins
MOST_CHANGES = 6  # of a case that is made by chance
CURRENT = "current"  # the case that is tried
MOST_BYTES = 4096  # of a case that atheris makes


def main(name: str, seconds: float, seed: int, cases: str) -> None:
    target = TARGETS[name]
    for data in target.seeds():
        target.check(data)
    limit_memory()
    if atheris is None:
        _by_chance(target, seconds, seed, cases)
    else:
        _by_coverage(name, seconds, seed, cases)


def _by_chance(target: Target, seconds: float, seed: int, cases: str) -> None:
    chance, seeds, end = random.Random(seed), target.seeds(), time.monotonic() + seconds
    signal.signal(signal.SIGALRM, _too_long)
    tried = 0
    with _Current(cases) as current:
        while time.monotonic() < end:
            data = _changed(chance, chance.choice(seeds))
            current.write(data)
            signal.alarm(CASE_SECONDS)
            try:
                target.check(data)
            except BaseException:
                _keep(data, cases)
                raise
            finally:
                signal.alarm(0)
            tried += 1
    print(f"{tried} cases by chance", file=sys.stderr)


def _changed(chance: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.randint(1, MOST_CHANGES)):
        at = chance.randrange(len(changed) + 1)
        match chance.randrange(5):
            case 0:
                changed[at : at + 1] = bytes([chance.randrange(256)])
            case 1:
                value = chance.choice((0, 1, 2, 255, 1 << 16, (1 << 31) - 1, (1 << 32) - 1))
                changed[at : at + 4] = value.to_bytes(4, "little")
            case 2:
                del changed[at : at + chance.randint(1, 16)]
            case 3:
                changed[at:at] = chance.randbytes(chance.randint(1, 16))
            case _:
                start = chance.randrange(len(changed) + 1)
                changed[at:at] = changed[start : start + chance.randint(1, 64)]
    return bytes(changed)


class _Current:
    """The case that is tried, in a file: whatever ends the process leaves it there. It is written in place,
    which takes much less time than most cases."""

    def __init__(self, cases: str) -> None:
        self._path = os.path.join(cases, CURRENT)
        self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)

    def __enter__(self) -> _Current:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)
        os.unlink(self._path)

    def write(self, data: bytes) -> None:
        os.ftruncate(self._file, len(data))
        os.pwrite(self._file, data, 0)


class TooLongError(BaseException):
    """Of a case. No Exception: what is tried may catch those, and go on."""


def _too_long(number: int, frame: FrameType | None) -> None:
    raise TooLongError(f"a case takes more than {CASE_SECONDS} s")


def _keep(data: bytes, cases: str) -> None:
    with open(os.path.join(cases, hashlib.sha256(data).hexdigest()[:16]), "wb") as opened:
        opened.write(data)


def _by_coverage(name: str, seconds: float, seed: int, cases: str) -> None:
    corpus = os.path.join(cases, "corpus")
    os.makedirs(corpus, exist_ok=True)
    for number, data in enumerate(TARGETS[name].seeds()):
        with open(os.path.join(corpus, str(number)), "wb") as opened:
            opened.write(data)
    options = [
        f"-max_total_time={max(1, int(seconds))}",
        f"-seed={seed}",
        f"-timeout={CASE_SECONDS}",
        f"-max_len={MOST_BYTES}",
        f"-artifact_prefix={cases}/",
        "-rss_limit_mb=0",  # `limit_memory` has it
        "-verbosity=0",
        "-print_final_stats=1",
    ]
    current = _Current(cases)  # which stays; it counts only where the process has not ended well

    def check(data: bytes) -> None:
        current.write(data)
        TARGETS[name].check(data)

    atheris.Setup([sys.argv[0], *options, corpus], check)
    atheris.Fuzz()  # ends the process


def limit_memory() -> None:
    with open("/proc/self/statm") as opened:
        pages = int(opened.read().split()[0])
    most = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
