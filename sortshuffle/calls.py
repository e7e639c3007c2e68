"""All system calls that the package makes on files, directories, sockets, shared memory and new processes.

    from sortshuffle import calls
    calls.pread(descriptor, size, offset)

Because they all pass through this module, a test can make any call fail, come up short, run slowly, or be the
last one before the process is killed (`tests/faults.py`). Most names here are the system's functions
themselves, so a call costs what ``os.pread`` costs. Socket methods are wrapped in short functions, which cost
some 40 ns: an encrypted socket overrides the methods, so the plain ones cannot be named here.

Rules
* This module takes no decisions: it translates no errors and retries nothing.
* Callers write ``calls.pread`` and never ``from calls import pread``: tests replace the module's attributes.
* Left out are functions on text (``os.path.join``), functions on this process (``os.getpid``), closing a
  socket, which reports no error, and stores, whose file system objects tests replace.

`tests/test_layers.py` finds system calls made elsewhere. Import only small modules of the standard library
here: supervisors and janitors load this module.
"""

from __future__ import annotations

import builtins
import fcntl as _fcntl
import glob as _glob
import io
import mmap as _mmap
import os
import select as _select
import selectors
import shutil
import socket
import subprocess
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

# ---- files -------------------------------------------------------------------------------------------------

open = os.open
open_file = builtins.open
close = os.close
pread = os.pread
preadv = os.preadv
write = os.write
writev = os.writev
lseek = os.lseek
ftruncate = os.ftruncate
fstat = os.fstat
flock = _fcntl.flock
fcntl = _fcntl.fcntl
posix_fallocate = os.posix_fallocate
mmap = _mmap.mmap


def nameless_file(directory: str) -> io.FileIO:
    """Open a new unnamed file for reading and writing. The system frees it when it is closed."""
    import tempfile  # not at the top: it imports the modules that make random names

    return tempfile.TemporaryFile(dir=directory, prefix="sortshuffle-", buffering=0)


if hasattr(os, "memfd_create"):  # Linux
    memfd_create = os.memfd_create

# ---- names -------------------------------------------------------------------------------------------------

rename = os.rename
replace = os.replace
link = os.link
unlink = os.unlink
chmod = os.chmod
utime = os.utime
readlink = os.readlink
stat = os.stat
access = os.access
lstat = os.lstat
statvfs = os.statvfs
# These raise no error of the system: they return False, or the path as far as it resolves
exists = os.path.exists
lexists = os.path.lexists
isfile = os.path.isfile
isdir = os.path.isdir
islink = os.path.islink
realpath = os.path.realpath
# These do raise OSError
getsize = os.path.getsize
samefile = os.path.samefile

# ---- directories -------------------------------------------------------------------------------------------

mkdir = os.mkdir
makedirs = os.makedirs
rmdir = os.rmdir
rmtree = shutil.rmtree
listdir = os.listdir
scandir = os.scandir
walk = os.walk
glob = _glob.glob

# ---- processes ---------------------------------------------------------------------------------------------

Popen = subprocess.Popen
execv = os.execv

# ---- sockets -----------------------------------------------------------------------------------------------

new_socket = socket.socket
socketpair = socket.socketpair
create_connection = socket.create_connection
create_server = socket.create_server
getaddrinfo = socket.getaddrinfo
gethostbyname = socket.gethostbyname
new_selector = selectors.DefaultSelector


def select(selector: selectors.BaseSelector, seconds: float) -> list[tuple[selectors.SelectorKey, int]]:
    return selector.select(seconds)


def poll(descriptor: int, event: int, milliseconds: int) -> bool:
    """Wait until the descriptor has the event. Return False if the time runs out first."""
    waiting = _select.poll()
    waiting.register(descriptor, event)
    return bool(waiting.poll(milliseconds))


def setsockopt(one: socket.socket, level: int, name: int, value: int | bytes) -> None:
    one.setsockopt(level, name, value)


def bind(one: socket.socket, address: Any) -> None:
    one.bind(address)


def listen(one: socket.socket, backlog: int) -> None:
    one.listen(backlog)


def connect(one: socket.socket, address: Any) -> None:
    one.connect(address)


def accept(listening: socket.socket) -> tuple[socket.socket, Any]:
    return listening.accept()


def shutdown(one: socket.socket, how: int) -> None:
    one.shutdown(how)


# Shuts down the TCP connection itself: an encrypted socket's own method would drop the encryption
shutdown_tcp = socket.socket.shutdown


def getpeername(one: socket.socket) -> Any:
    return one.getpeername()


def recv(one: socket.socket, size: int) -> bytes:
    return one.recv(size)


def recv_into(one: socket.socket, view: WriteableBuffer, size: int, flags: int = 0) -> int:
    return one.recv_into(view, size, flags)


def send(one: socket.socket, data: ReadableBuffer, flags: int = 0) -> int:
    return one.send(data, flags)


def sendall(one: socket.socket, data: ReadableBuffer) -> None:
    one.sendall(data)


def sendmsg(one: socket.socket, pieces: Iterable[ReadableBuffer]) -> int:
    return one.sendmsg(pieces)
