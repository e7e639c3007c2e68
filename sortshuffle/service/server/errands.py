"""Errands: what is done for a client in the background, because it touches disks.

    Conversation -> an errand -> `Errands`, in a thread that may block -> what came of it -> Conversation

An errand says what is to be done; it is a value without behaviour, so that the core of a connection can be
asked what it wants done. `Errands` does it.
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
"""Deletes the map outputs of an exchange of the engine; whether it is of the application that asks."""


@dataclass(frozen=True, slots=True)
class OpenView:
    """Open the view that the channel waits for."""

    channel: ServerChannel


@dataclass(frozen=True, slots=True)
class TellLoss:
    """See to it that Spark runs a producer again; then the channel's client is told of ``cause``."""

    channel: ServerChannel
    cause: DataLossError


@dataclass(frozen=True, slots=True)
class FindOutput:
    """Question ``channel``: is there a finished map output like that?"""

    channel: int
    output: MapOutputAddress


@dataclass(frozen=True, slots=True)
class RemoveShuffle:
    """Question ``channel``: delete this shuffle."""

    channel: int
    shuffle: MapOutputAddress


Question = FindOutput | DamageReport | RemoveShuffle
"""What is answered with one frame. Each has the number that the client gave it, as ``channel``."""

Errand = OpenView | TellLoss | Question


class Errands:
    """Does them. ``remove``: None where no engine writes anything. Called by threads that may block."""

    def __init__(self, catalog: Catalog, losses: Losses, remove: Remove | None) -> None:
        self._catalog = catalog
        self._losses = losses
        self._remove = remove

    def open_view(self, channel: ServerChannel, on_available: Callable[[object], None]) -> View | None:
        """The view that the channel waits for; None if it waits no more. Raises what the client is to be
        told. Of data that are lost, Spark's next look is seen to before."""
        if channel.state is ChannelState.ENDED:
            return None
        request = channel.request_from_here
        try:
            if request.stream is Stream.INDEX:
                return self._catalog.index_view(request)
            return self._catalog.create_view(request, on_available)
        except DataLossError:
            self._losses.tell(request.output)
            raise

    def answer(self, question: Question) -> bytes:
        """The frame that answers it. Raises what the client is to be told instead."""
        match question:
            case FindOutput(channel, output):
                return pack_find_response(channel, self._catalog.adoptable(output))
            case RemoveShuffle(channel, shuffle):
                return pack_remove_response(channel, self._remove is not None and self._remove(shuffle))
            case DamageReport():
                return pack_damage_verdict(question.channel, self._losses.judge(question))

    def tell_loss(self, output: MapOutputAddress) -> None:
        """See to it that Spark runs its producer again."""
        self._losses.tell(output)
