"""`Limits`: how much one shuffle service does for how many, so that nobody can take it all.

Whoever goes over a limit hears of it (`Fault.TOO_MUCH`) where it speaks the protocol, and loses its
connection where it does not.
"""

from __future__ import annotations

from dataclasses import dataclass

from sortshuffle.service.wire.handshake import GREETING_TIMEOUT


@dataclass(frozen=True, slots=True)
class Limits:
    """Every bound of a server. Times in seconds."""

    # a task has one connection to a host; 10,000 cores that read from one host at once are a large cluster.
    # The process's limit of open files bounds it further
    connections: int = 10_000
    # connections that have not shown yet who they are: peers of ours need milliseconds for that
    strangers: int = 1_000
    # of a connection: a task that reads from all map outputs of a host at once, with room to spare
    channels: int = 10_000
    # segments of one channel: 2 GiB at 512 KiB each. More room than that is an error of the client
    credit: int = 4096
    # of a connection, being answered: reports of damage and searches for outputs, each of which reads disks
    questions: int = 64
    # bytes of answers that a client leaves unread (errors, verdicts, found outputs)
    answers: int = 4 << 20
    # bytes that were read and are kept for clients that take nothing, of all together; each has up to a turn:
    # as much as the service reads into by default
    kept: int = 64 << 20
    greeting: float = GREETING_TIMEOUT
    # in which a client takes nothing that it could have, until what was read for it is given back: long
    # enough for a garbage collection or a busy core, short enough for the others who wait for the memory
    stall: float = 2.0
    # without channels: a task keeps its connection while it computes between two reads
    idle: float = 300.0
    # in which a client takes nothing that it could have, until it counts as gone
    gone: float = 900.0
