"""`PendingWork`: what a connection owes its client: answers to send, and disk jobs to do.

`Conversation` and `Channels`, which do no I/O, add to it; `Connection` sends the answers and starts the
disk jobs.

Rules
* Answers (errors, verdicts, found map outputs) are sent before data. A client that does not read them breaks
  the protocol.
* Disk jobs count as open until they are done, even if the client has cancelled the channel meanwhile.
* After the end of the connection nothing is owed: the answers of disk jobs under way are dropped.
"""

from __future__ import annotations

import logging
from collections import deque

from sortshuffle.errors import BufferTimeoutError, DataLossError, MissingDataError, ProtocolError, UsageError
from sortshuffle.service.server.counts import Counts
from sortshuffle.service.server.disk_jobs import DiskJob
from sortshuffle.service.server.limits import Limits
from sortshuffle.service.wire.protocol import ErrorResponse, Fault

_log = logging.getLogger(__name__)


class PendingWork:
    """What one connection has to do. ``answers``: frames to send. ``disk_jobs``: those not started yet; the
    connection removes each one that it starts. ``open_disk_jobs``: the number not done, started or not."""

    def __init__(self, limits: Limits, counts: Counts) -> None:
        self.answers = bytearray()
        self.disk_jobs: deque[DiskJob] = deque()
        self.open_disk_jobs = 0
        self._limits = limits
        self._counts = counts
        self._is_ended = False

    def answer(self, frame: bytes) -> None:
        """Queue a frame to send. Raises `ProtocolError` if the client leaves too much unread."""
        if self._is_ended:
            return
        self.answers += frame
        if len(self.answers) > self._limits.answers:
            raise ProtocolError(f"it leaves {len(self.answers)} bytes of answers unread")

    def refuse(self, channel: int, what: str) -> None:
        """Tell the client that it asked for too much."""
        self._counts.errors += 1
        self.answer(ErrorResponse(channel, Fault.TOO_MUCH, what).pack())

    def fail(self, channel: int, error: BaseException) -> None:
        """Tell the client the error that its request failed with."""
        self._counts.errors += 1
        self.answer(_response_to(channel, error).pack())

    def add_disk_job(self, disk_job: DiskJob) -> None:
        """Queue a disk job. When it is done, call `disk_job_done`."""
        self.open_disk_jobs += 1
        self.disk_jobs.append(disk_job)

    def disk_job_done(self) -> None:
        """Count one open disk job as done."""
        self.open_disk_jobs -= 1

    def take_answers(self) -> bytes:
        """Remove and return all answers."""
        answers = bytes(self.answers)
        self.answers.clear()
        return answers

    def end(self) -> None:
        """Drop all answers, present and future: the client is gone."""
        self._is_ended = True
        self.answers.clear()


def _response_to(channel: int, error: BaseException) -> ErrorResponse:
    if isinstance(error, DataLossError):
        fault = Fault.MISSING if isinstance(error, MissingDataError) else Fault.DAMAGED
        expected, found = (None if each is None else str(each) for each in (error.expected, error.found))
        return ErrorResponse(channel, fault, error.what, error.place, expected, found)
    if isinstance(error, UsageError):
        return ErrorResponse(channel, Fault.BAD_REQUEST, str(error))
    if isinstance(error, BufferTimeoutError):
        return ErrorResponse(channel, Fault.TIMEOUT, str(error))
    _log.error("a fault of the shuffle service", exc_info=error)
    return ErrorResponse(channel, Fault.INTERNAL, f"{type(error).__name__}: {error}")
