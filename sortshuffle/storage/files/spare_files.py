"""Spare files: the data files of dead map outputs, which new map outputs are written over.

A new file gets its memory from the system page by page, and a deleted file gives it back. That takes longer
than the copy into a page that is there already: docs/decisions/storage.md has the figures.

    data file of a dead output --keep (janitor)--> DIRECTORY/spares/NAME.spare --reuse (a writer)--> .partial
                                                                               --trim (janitor)--> deleted

Rules
* A file becomes a spare only if nobody can still read it under its old identity. First it loses its old name,
  so a reader that opens it later finds the name gone (`storage.files.reader`). Then it must have no other
  hard link, and the kernel must grant a write lease, which it does only if no other process has the file
  open.
* A writer takes one if its first append after the header is large. It locks the spare, looks whether the file
  still has the spare's name, writes its header to it, and then puts it in the place of its own ``.partial``.
  Of two writers, one gets it.
* `LocalPair.commit` cuts off what is left behind the new end.
* Spares take little of the disk and of memory (`_most_bytes`), and are deleted if nobody wants them
  (`UNUSED_FOR`), if a writer has no space for what it appends, and when the executor has ended. Only the
  janitor adds them.
* Only on file systems on which it was tried (`FILE_SYSTEMS`).

Only the standard library is imported here: the janitor must stay small.
"""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from sortshuffle import calls
from sortshuffle.storage.files.descriptors import close_after_reading
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.files.presence import is_gone
from sortshuffle.storage.files.private import MODE

DIRECTORY = "spares"  # in a home
SUFFIX = ".spare"
MOVED = ".moved"  # of a file that has lost its old name, and is not yet known to be unshared
# Not XFS: there, cutting a file off waits until its new bytes are on the disk (80 MB took 20 to 40 ms, and
# were written; ext4 wrote nothing). Not tmpfs: its files are memory that cannot be taken back. Network file
# systems may not know what other hosts have open
FILE_SYSTEMS = ("ext4",)
# bytes, of a spare and of a writer's first append; a smaller file costs as much to write over as to make
SMALLEST = 1 << 20
# The spares of a home may take this part of the free disk, so that they never fill it; and this part of the
# machine's memory, because a file that has left the page cache is slower to write over than a new one: 60 MB
# in 630 appends took 50 ms, in a new file 34, in a cached one 16
PART_OF_FREE = 8
PART_OF_MEMORY = 8
UNUSED_FOR = 60.0  # seconds until a spare is deleted: the next job of a session has usually come by then
# in a home: all are looked at every second, and listed by a writer. A look at 1000 took 11 ms, a listing 1 ms
MOST_SPARES = 200
TRIES = 4  # spares that a writer tries: other writers may get them first


@dataclass(frozen=True, slots=True)
class _Spare:
    """``since``: when it became a spare, in seconds since 1970."""

    path: str
    bytes: int
    since: float


class SpareKeeper:
    """Keeps the data files of one home's dead outputs, as far as there is room. For one sweep: it looks only
    once how much room there is."""

    def __init__(self, home: str) -> None:
        self._home = home
        self._room: int | None = None  # bytes; not known before the first file
        self._left = 0  # how many spares may be added

    def keep(self, file: PartitionedFile) -> None:
        """Remove a dead pair, and keep its data file as a spare if that is possible. Raises OSError for what
        cannot be removed."""
        size = _size(file.data_path)
        if size >= SMALLEST and self._room_left() >= size:
            # the index first, as in `PartitionedFile.delete`: half a pair never looks complete
            with suppress(OSError):
                calls.unlink(file.index_path)
            if is_gone(file.index_path) and self._is_kept(file):
                self._room = self._room_left() - size
                self._left -= 1
        file.delete()

    def _room_left(self) -> int:
        if self._room is None:
            try:
                spares = list(_spares(self._home))
                self._room = _room_in(self._home) - sum(spare.bytes for spare in spares)
                self._left = MOST_SPARES - len(spares)
            except OSError:
                self._room = 0
        return self._room if self._left > 0 else 0

    def _is_kept(self, file: PartitionedFile) -> bool:
        """Move a data file out of its readers' sight, and make it a spare if none of them has it open."""
        directory = os.path.join(self._home, DIRECTORY)
        name = os.path.join(directory, os.path.basename(file.base))
        place = name + MOVED
        try:
            with suppress(FileExistsError):
                calls.mkdir(directory, MODE)
            if calls.islink(directory):
                return False
            calls.rename(file.data_path, place)
        except OSError:
            return False
        try:
            if _is_unshared(place):
                calls.rename(place, name + SUFFIX)
                return True
            calls.unlink(place)
        except OSError:
            pass  # `trim` deletes it
        return False


def bytes_of(home: str) -> int:
    """Return the bytes of a home's spares. Raises OSError."""
    return sum(spare.bytes for spare in _spares(home))


def trim(home: str, now: float) -> None:
    """Delete the spares of a home that nobody has wanted for long, and the oldest if there is not enough
    room. ``now``: seconds since 1970. Raises OSError if they cannot be looked at; one that cannot be deleted
    keeps no other."""
    newest_first = sorted(_spares(home), key=lambda spare: -spare.since)
    room = _most_bytes(home) if newest_first else 0
    for spare in newest_first:
        room -= spare.bytes
        if room < 0 or now - spare.since > UNUSED_FOR:
            _is_deleted(spare)


def delete_all(home: str) -> bool:
    """Delete the spares of a home. Return whether there was any that could be deleted. Raises no error."""
    try:
        return sum(map(_is_deleted, _spares(home))) > 0  # each, not only the first
    except OSError:
        return False


def _is_deleted(spare: _Spare) -> bool:
    try:
        calls.unlink(spare.path)
    except OSError:
        return False  # a writer has it now, or the next look tries again
    return True


def reuse(home: str, path: str, head: bytes, turn: int) -> int | None:
    """Put a spare of a home in the place of a writer's own file ``path``. Return a descriptor that holds its
    lock, for writing behind ``head``, the bytes in that file; None if no spare can be had. ``turn``: any
    number, so that writers which begin together try different ones."""
    try:
        spares = [each for each in _paths(home) if each.endswith(SUFFIX)]
    except OSError:
        return None
    start = turn % len(spares) if spares else 0
    for spare in [*spares[start:], *spares[:start]][:TRIES]:
        descriptor = _opened(spare)
        if descriptor is not None and _is_taken_over(descriptor, spare, path, head):
            return descriptor
    return None


def _opened(spare: str) -> int | None:
    try:
        return calls.open(spare, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None


def _is_taken_over(descriptor: int, spare: str, path: str, head: bytes) -> bool:
    """Make an opened spare the writer's own file. Otherwise close it and leave it as it is."""
    is_taken = False
    try:
        calls.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Not before the lock: another writer may have taken the spare after it was opened here, and its map
        # output may be finished. Under the lock, nobody else takes it
        if _is_still(descriptor, spare) and calls.write(descriptor, head) == len(head):
            calls.rename(spare, path)
            is_taken = True
    except OSError:
        pass
    finally:
        if not is_taken:
            close_after_reading(descriptor)
    return is_taken


def _is_still(descriptor: int, spare: str) -> bool:
    """Return whether the file has the spare's name and no other one. Raises OSError."""
    found = calls.fstat(descriptor)
    return found.st_nlink == 1 and os.path.samestat(found, calls.lstat(spare))


def _is_unshared(path: str) -> bool:
    """Return whether the file has one name, and no process has it open; False on an error."""
    try:
        descriptor = calls.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        if calls.fstat(descriptor).st_nlink > 1:
            return False
        # A process that opened the file now would make the kernel send a signal: name one that is ignored
        calls.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        calls.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)  # fails if another process has it open
        calls.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError:
        return False
    finally:
        close_after_reading(descriptor)
    return True


def _spares(home: str) -> Iterator[_Spare]:
    """Yield the spares of a home, and what an interrupted `SpareKeeper` left there. Raises OSError."""
    for path in _paths(home):
        try:
            found = calls.lstat(path)
        except OSError:
            continue  # a writer has it now, or the next look tries again
        yield _Spare(path, found.st_size, found.st_ctime)  # a rename changes the ctime


def _paths(home: str) -> list[str]:
    """Return the paths of the same. A link in the place of the directory is not followed. Raises OSError."""
    directory = os.path.join(home, DIRECTORY)
    if calls.islink(directory):
        return []
    try:
        names = calls.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [os.path.join(directory, name) for name in names if name.endswith((SUFFIX, MOVED))]


def _size(path: str) -> int:
    """Return a file's bytes; 0 if the system gives an error."""
    try:
        return calls.lstat(path).st_size
    except OSError:
        return 0


def _room_in(home: str) -> int:
    """Return how many bytes spares may take in a home on its file system. Raises OSError."""
    has_leases = hasattr(fcntl, "F_SETLEASE")  # Linux
    return _most_bytes(home) if has_leases and _file_system_of(home) in FILE_SYSTEMS else 0


def _most_bytes(home: str) -> int:
    """Return how many bytes a home's spares may take now. Raises OSError."""
    space = calls.statvfs(home)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(space.f_bavail * space.f_frsize // PART_OF_FREE, memory // PART_OF_MEMORY)


def _file_system_of(directory: str) -> str:
    """Return the kind of file system; "" if the system does not tell. Raises OSError. Linux only."""
    device = calls.stat(directory).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    with calls.open_file("/proc/self/mountinfo", encoding="utf-8", errors="replace") as opened:
        for line in opened:
            # id, parent, device, root, mount point, options, any others, "-", kind, source, options
            mount, _, kind = line.partition(" - ")
            if mount.split()[2] == wanted:
                return kind.split()[0]
    return ""
