"""A fault at a call to the system: what replaces the names of `sortshuffle.calls` in a process of tests.

    with Faults() as seen:                   counts: seen.sites
    with Faults(Fault(site, EIO)) as made:   the call at that site fails; made.happened

A site is where in the package a call is made (`Site`): the lines of the innermost functions, and the
how-many-th call from there. So the same call is found again in the next run, whatever other threads do.

A fault is put where the system would have it:
* a call that fails does nothing, except `close`, which has closed the descriptor all the same;
* what says no, or nothing, where the system gives an error (`isdir`, `glob`) says so;
* a file that `open_file` opened fails when it is read, written or closed, not only when it is opened;
* a short call does half of what it was asked for, at least one byte;
* a slow call is made `SLOW_FOR` seconds later.
EINTR is left out: Python makes the call again by itself, before a caller sees it.
"""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

from engine import ROOT

from sortshuffle import calls

PACKAGE = str(ROOT / "sortshuffle") + os.sep
FRAMES = 3  # of a site: a line that serves several callers is several sites
SHORT = "short"
KILL = "kill"
SLOW = "slow"
SLOW_FOR = 0.1  # seconds; a call takes microseconds, and who waits for a thread or a peer looks more often

DISK = ("ENOSPC", "EIO")
OPENING = ("EMFILE", "EIO")
# What each call can meet; KILL is put at every one. Left out: EMFILE where no descriptor is made, ENOSPC
# where nothing is written, and the errors of wrong arguments
ERRORS: dict[str, tuple[str, ...]] = {
    "open": ("EMFILE", "ENOSPC", "EIO"),
    "open_file": ("EMFILE", "ENOSPC", "EIO"),
    "open_file.read": ("EIO", SHORT),
    "open_file.write": ("ENOSPC", "EIO", SHORT),
    "open_file.close": ("EIO",),
    "close": ("EIO",),
    "pread": ("EIO", SHORT),
    "preadv": ("EIO", SHORT),
    "write": ("ENOSPC", "EIO", SHORT),
    "writev": ("ENOSPC", "EIO", SHORT),
    "lseek": ("EIO",),
    "ftruncate": ("EIO", "ENOSPC"),
    "fstat": ("EIO",),
    "flock": ("ENOLCK",),
    "fcntl": ("EINVAL",),
    "execv": ("ENOMEM",),
    "posix_fallocate": ("ENOSPC",),
    "mmap": ("ENOMEM",),
    "nameless_file": ("EMFILE", "ENOSPC"),
    "memfd_create": ("EMFILE",),
    "rename": DISK,
    "replace": DISK,
    "link": DISK,
    "unlink": ("EIO",),
    "chmod": ("EIO",),
    "utime": ("EIO",),
    "readlink": ("EIO",),
    "stat": ("EIO",),
    "lstat": ("EIO",),
    "statvfs": ("EIO",),
    "access": ("EIO",),
    "exists": ("EIO",),
    "lexists": ("EIO",),
    "isfile": ("EIO",),
    "isdir": ("EIO",),
    "islink": ("EIO",),
    "realpath": ("EIO",),
    "getsize": ("EIO",),
    "samefile": ("EIO",),
    "mkdir": DISK,
    "makedirs": DISK,
    "rmdir": ("EIO",),
    "rmtree": ("EIO",),
    "listdir": OPENING,
    "scandir": OPENING,
    "walk": OPENING,
    "glob": OPENING,
    "Popen": ("EMFILE", "EAGAIN"),
    "new_socket": ("EMFILE",),
    "socketpair": ("EMFILE",),
    "create_connection": ("EMFILE", "ECONNREFUSED"),
    "create_server": ("EMFILE", "EADDRINUSE"),
    "getaddrinfo": ("EMFILE",),
    "gethostbyname": ("EMFILE",),
    "new_selector": ("EMFILE",),
    "select": (),  # it has no error but EINTR and those of a wrong argument
    "poll": (),
    "setsockopt": ("ENOBUFS",),
    "bind": ("EADDRINUSE",),
    "listen": ("EADDRINUSE",),
    "connect": ("ECONNREFUSED",),
    "accept": ("EMFILE", "ECONNABORTED"),
    "shutdown": (),  # it only fails where nobody is connected any more
    "shutdown_tcp": ("ENOTCONN",),
    "getpeername": ("ENOTCONN",),
    "recv": ("ECONNRESET", SHORT),
    "recv_into": ("ECONNRESET", SHORT),
    "send": ("ECONNRESET", SHORT),
    "sendall": ("ECONNRESET",),
    "sendmsg": ("ECONNRESET", SHORT),
    **{f"store.{name}": ("EIO",) for name in ("open", "write", "close", "commit", "discard", "pipe_file")},
    **{f"store.{name}": ("EIO",) for name in ("makedirs", "mv", "rm_file", "cat_file", "size")},
}
# What these say where the system gives an error
INSTEAD: dict[str, Callable[..., Any]] = {
    "access": lambda *_: False,
    "exists": lambda *_: False,
    "lexists": lambda *_: False,
    "isfile": lambda *_: False,
    "isdir": lambda *_: False,
    "islink": lambda *_: False,
    "realpath": lambda path: path,
    "glob": lambda *_, **__: [],
}


@dataclass(frozen=True, slots=True, order=True)
class Site:
    """``name``: of the call. ``lines``: file:line of the innermost functions of the package, the innermost
    first. ``number``: the how-many-th from there, from 0."""

    name: str
    lines: tuple[str, ...]
    number: int = 0

    def __str__(self) -> str:
        return f"{self.name}[{self.number}] at {' < '.join(self.lines)}"


@dataclass(frozen=True, slots=True)
class Fault:
    """``what``: an errno's name, `SHORT`, `SLOW` or `KILL`."""

    site: Site
    what: str

    def __str__(self) -> str:
        return f"{self.what} of {self.site}"


def all_faults(sites: Iterable[Site], kinds: Iterable[str] = ()) -> Iterator[Fault]:
    """Every fault (or of these ``kinds``) that the first call at each place can meet. A kill at the last one,
    too, when there is more that can be left behind. Slow ones must be asked for: they take their time."""
    numbers: dict[tuple[str, tuple[str, ...]], list[int]] = {}
    for site in sites:
        numbers.setdefault((site.name, site.lines), []).append(site.number)
    wanted = set(kinds)
    for (name, lines), found in numbers.items():
        first, last = Site(name, lines, min(found)), Site(name, lines, max(found))
        faults = [Fault(first, what) for what in (*ERRORS[name], KILL, *wanted.intersection([SLOW]))]
        faults += [Fault(last, KILL)] if last != first else []
        yield from (fault for fault in faults if not wanted or fault.what in wanted)


class Faults:
    """Replaces the names while it is entered. Used by any threads. Without a fault it only counts."""

    def __init__(self, fault: Fault | None = None) -> None:
        self.fault = fault
        self.sites: list[Site] = []
        self.happened = False
        self._numbers: Counter[tuple[str, tuple[str, ...]]] = Counter()
        self._lock = threading.Lock()
        self._before: dict[str, Any] = {}

    def __enter__(self) -> Faults:
        global _active
        _active = self
        for name in ERRORS:
            if "." not in name:
                self._before[name] = getattr(calls, name)
                setattr(calls, name, self._wrapped(name, self._before[name]))
        return self

    def __exit__(self, *_: object) -> None:
        for name, real in self._before.items():
            setattr(calls, name, real)

    def end(self) -> None:
        """From now on nothing fails."""
        self.fault = None

    def reached(self, name: str, lines: tuple[str, ...]) -> str:
        """Count a call; the fault that it is to meet, if any. Does not return if that is to be killed."""
        with self._lock:
            site = Site(name, lines, self._numbers[name, lines])
            self._numbers[name, lines] += 1
            self.sites.append(site)
        if self.fault is None or self.fault.site != site:
            return ""
        self.happened = True
        if self.fault.what == KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fault.what == SLOW:
            time.sleep(SLOW_FOR)
            return ""
        return self.fault.what

    def _wrapped(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        if name == "open_file":
            return self._open_file
        if name == "walk":
            return self._walk

        def call(*arguments: Any, **how: Any) -> Any:
            what = self.reached(name, _lines(sys._getframe(1)))
            if not what:
                return real(*arguments, **how)
            if what == SHORT:
                return _short(name, real, arguments)
            if name in INSTEAD:
                return INSTEAD[name](*arguments)
            if name == "rmtree" and how.get("ignore_errors"):
                return None
            if name == "close":
                real(*arguments)
            raise failure(what, *(each for each in arguments[:2] if isinstance(each, str)))

        return call

    def _walk(self, directory: str, onerror: Callable[[OSError], None] | None = None) -> Iterator[Any]:
        what = self.reached("walk", _lines(sys._getframe(1)))
        if not what:
            return self._before["walk"](directory, onerror=onerror)
        if onerror is not None:
            onerror(failure(what, directory))
        return iter(())

    def _open_file(self, file: str | int, mode: str = "r", buffering: int = -1, **text: Any) -> Any:
        lines = _lines(sys._getframe(1))
        if what := self.reached("open_file", lines):
            raise failure(what, *([file] if isinstance(file, str) else []))
        raw = _FaultyFile(self, lines, file, mode.replace("b", "").replace("t", ""))
        if buffering == 0:
            return raw
        buffered = io.BufferedReader(raw) if "r" in mode else io.BufferedWriter(raw)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, **text)


_active: Faults | None = None


def active() -> Faults:
    """What is entered in this process."""
    assert _active is not None
    return _active


class FaultyStore:
    """fsspec's object of a store, or a file of it that is open, whose methods are calls as others are."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        if not callable(found) or f"store.{name}" not in ERRORS:
            return found

        def call(*arguments: Any, **how: Any) -> Any:
            what = active().reached(f"store.{name}", _lines(sys._getframe(1)))
            if what and name == "close":
                found(*arguments, **how)
            if what:
                raise failure(what)
            answer = found(*arguments, **how)
            return FaultyStore(answer) if name == "open" else answer

        return call


class _FaultyFile(io.FileIO):
    """The calls behind a file object, which count as those of the line that opened it."""

    def __init__(self, faults: Faults, lines: tuple[str, ...], file: str | int, mode: str) -> None:
        self._faults = faults
        self._opened_at = lines
        super().__init__(file, mode)

    def readinto(self, view: Any) -> Any:
        what = self._reached("read")
        return super().readinto(memoryview(view)[: max(1, len(view) // 2)] if what else view)

    def readall(self) -> Any:
        self._reached("read")
        return super().readall()

    def write(self, data: Any) -> Any:
        what = self._reached("write")
        return super().write(memoryview(data)[: max(1, len(data) // 2)] if what else data)

    def close(self) -> None:
        what = "" if self.closed else self._faults.reached("open_file.close", self._opened_at)
        super().close()
        if what:
            raise failure(what)

    def _reached(self, name: str) -> str:
        what = self._faults.reached(f"open_file.{name}", self._opened_at)
        if what not in ("", SHORT):
            raise failure(what)
        return what


def failure(what: str, path: str | None = None, other: str | None = None) -> OSError:
    """As the system functions raise it: those that take paths name them."""
    number: int = getattr(errno, what)
    return OSError(number, os.strerror(number), path, None, other)


def _lines(frame: FrameType | None) -> tuple[str, ...]:
    lines: list[str] = []
    while frame is not None and len(lines) < FRAMES:
        path = frame.f_code.co_filename
        if path.startswith(PACKAGE):
            lines.append(f"{path.removeprefix(PACKAGE)}:{frame.f_lineno}")
        frame = frame.f_back
    return tuple(lines)


def _short(name: str, real: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """The call with half of what it was asked for."""
    first, *rest = arguments
    match name:
        case "pread" | "recv":
            rest[0] = max(1, rest[0] // 2)
        case "preadv" | "writev" | "sendmsg":
            rest[0] = _half(rest[0])
        case "write" | "send":
            rest[0] = memoryview(rest[0])[: max(1, len(rest[0]) // 2)]
        case "recv_into":
            view = memoryview(rest[0])
            return real(first, view[: max(1, len(view) // 2)], max(1, len(view) // 2))
    return real(first, *rest)


def _half(pieces: Iterable[Any]) -> list[memoryview]:
    views = [memoryview(piece).cast("B") for piece in pieces]
    left = max(1, sum(map(len, views)) // 2)
    half: list[memoryview] = []
    for view in views:
        half.append(view[:left])
        left -= len(half[-1])
        if not left:
            break
    return half
