"""Disk jobs: work for a client that uses the disks, and so is done in the background.

    Conversation --disk job--> `DiskJobs`, in a thread that may block --result--> Conversation

A disk job is a plain value that describes the work, so tests can inspect what a connection's core asks for.
`DiskJobs` does the work.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sortshuffle.errors import DataLossError
from sortshuffle.service.server.catalog import Catalog
from sortshuffle.service.server.losses import Losses
from sortshuffle.service.server.server_channel import ChannelState, ServerChannel, View
from sortshuffle.service.wire.protocol import (
    DamageReport,
    MapOutputAddress,
    Stream,
    pack_damage_verdict,
    pack_find_response,
    pack_remove_response,
)

Remove = Callable[[MapOutputAddress], bool]
"""Deletes an exchange's map outputs in this process's engine. False if that is another application's."""


@dataclass(frozen=True, slots=True)
class OpenView:
    """Open a view for this channel."""

    channel: ServerChannel


@dataclass(frozen=True, slots=True)
class ReportLoss:
    """Make Spark run the producer of the channel's map output again; then send the client ``cause``."""

    channel: ServerChannel
    cause: DataLossError


@dataclass(frozen=True, slots=True)
class FindOutput:
    """Question number ``channel``: is there such a finished map output that may be adopted?"""

    channel: int
    output: MapOutputAddress


@dataclass(frozen=True, slots=True)
class RemoveShuffle:
    """Question number ``channel``: delete this shuffle."""

    channel: int
    shuffle: MapOutputAddress


Question = FindOutput | DamageReport | RemoveShuffle
"""A request that is answered with one frame. ``channel`` is the number that the client gave it."""

DiskJob = OpenView | ReportLoss | Question


class DiskJobs:
    """Does the disk jobs. ``remove``: None in a process without an engine. For threads that may block."""

    def __init__(self, catalog: Catalog, losses: Losses, remove: Remove | None) -> None:
        self._catalog = catalog
        self._losses = losses
        self._remove = remove

    def open_view(self, channel: ServerChannel, on_available: Callable[[object], None]) -> View | None:
        """Return a view for the channel; None if the channel has ended. Raises the error for the client. If
        data are lost, Spark is made to run their producer again before the error is raised."""
        if channel.state is ChannelState.ENDED:
            return None
        request = channel.request_from_here
        try:
            if request.stream is Stream.INDEX:
                return self._catalog.index_view(request)
            return self._catalog.create_view(request, on_available)
        except DataLossError:
            self._losses.report(request.output)
            raise

    def answer(self, question: Question) -> bytes:
        """Return the frame that answers the question. Raises the error for the client."""
        match question:
            case FindOutput(channel, output):
                return pack_find_response(channel, self._catalog.adoptable(output))
            case RemoveShuffle(channel, shuffle):
                return pack_remove_response(channel, self._remove is not None and self._remove(shuffle))
            case DamageReport():
                return pack_damage_verdict(question.channel, self._losses.judge(question))

    def report_loss(self, output: MapOutputAddress) -> None:
        """Make Spark run the producer of a map output again."""
        self._losses.report(output)
