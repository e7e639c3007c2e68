"""`RemoteReader`: the `ExtentReader` of a map output behind the shuffle service of another host.

`RemoteInputChannel` opens one for some extents. One thread uses it; any other may make it give up. Nothing is
requested before the first read, whose kind decides what is requested:

    read_unverified    whole extents, one after another: all are requested at once (`WholeStream`)
    read_parts         what the parts need, and some data ahead of them (`PartStream`)

Bytes that fail their checksum here may have been changed in transit, so the service is asked to check them.
If it finds them sound, the extent is requested again, a few times. If not, the error names the place as for a
file of this host, and the service has made Spark run the producer again.

Giving up wakes the reading thread whatever it waits for: data, or what the service finds.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa

from sortshuffle.errors import CorruptDataError, MissingDataError, Place, StateError
from sortshuffle.format.encryption import EncryptionKey
from sortshuffle.service.client.client import ServiceClient
from sortshuffle.service.client.client_channel import ClientChannel, RequestSubject
from sortshuffle.service.client.extent_streams import PartStream, WholeStream
from sortshuffle.service.wire.protocol import MapOutputAddress, Verdict
from sortshuffle.storage.files.extents import Extent, ExtentPart, ExtentReader, aligned_memory

MOST_ATTEMPTS = 3  # to get an extent unchanged; the network's own checksums make even one fault rare

AnyChannel = TypeVar("AnyChannel", bound=ClientChannel)


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A map output on another host. ``path``: its data file there. ``path`` and ``writer`` are for errors."""

    output: MapOutputAddress
    host: str
    path: str
    writer: str


class _Suspect(Exception):  # noqa: N818 - bytes failed a check here; the service decides who is at fault
    def __init__(self, error: CorruptDataError) -> None:
        super().__init__(str(error))
        self.error = error


class RemoteReader(ExtentReader):
    """Reads extents of a service. ``extents``: consecutive, of one subpartition or one region, as read."""

    def __init__(
        self,
        client: ServiceClient,
        file: RemoteFile,
        extents: Sequence[Extent],
        key: EncryptionKey | None = None,
    ) -> None:
        super().__init__(file.path, file.writer, key, file.output.file_id)
        self._client = client
        self._link = client.link
        self._file = file
        self._extents = tuple(extents)
        self._whole: WholeStream | None = None
        self._parts: PartStream | None = None
        self._lock = threading.Lock()  # guards the next two: another thread may give up
        self._channels: list[ClientChannel] = []  # open ones
        self._given_up = False

    def read_unverified(self, extent: Extent) -> pa.Buffer:
        stream = self._whole
        if stream is None or stream.next != extent:
            stream = self._whole_from(extent)
        with self._naming(extent):
            self._link.wait(stream, lambda: stream.has_next)
        return stream.take()

    def checked(self, memory: pa.Buffer, extent: Extent) -> ExtentPart:
        for _ in range(MOST_ATTEMPTS - 1):
            try:
                return super().checked(memory, extent)
            except _Suspect as suspect:
                error = suspect.error
            # not in the handler: what else goes wrong here must not have the suspicion as its context
            self._expect_sound(error, extent)
            del error, memory  # the error keeps what was read, too
            memory = self._fetch_alone(extent)
        try:
            return super().checked(memory, extent)
        except _Suspect as suspect:
            raise self._transit_error(suspect.error) from None

    def checked_parts(self, extent: Extent, part_bytes: int) -> Iterator[ExtentPart]:
        delivered = attempt = 0
        while True:
            attempt += 1
            try:
                # each attempt cuts the bytes in the same way: skip the parts that were delivered
                for number, part in enumerate(self._parts_of(extent, part_bytes)):
                    if number == delivered:
                        delivered += 1
                        yield part
                return
            except _Suspect as suspect:
                if attempt == MOST_ATTEMPTS:
                    raise self._transit_error(suspect.error) from None
                error = suspect.error
            self._expect_sound(error, extent)  # not in the handler, as above
            del error  # it keeps the part that was read
            self._release(self._parts)
            self._parts = None

    def fetch(self, size: int, extent: Extent, position: int = 0) -> pa.Buffer:
        memory, view = aligned_memory(size)
        stream = self._part_stream(extent, position, view)
        with self._naming(extent):
            self._link.wait(stream, lambda: stream.has_wanted)
        self._link.change(stream.taken)
        self._link.consumed(stream)
        return memory

    def give_up(self) -> None:
        with self._lock:
            self._given_up = True
            channels = list(self._channels)
        for channel in channels:
            self._link.give_up(channel)

    def close(self) -> None:
        while self._channels:
            self._release(self._channels[-1])

    @contextmanager
    def damage(self, offset: int, extent: Extent | None = None) -> Iterator[None]:
        try:
            with super().damage(offset, extent):
                yield
        except CorruptDataError as error:
            raise _Suspect(error) from None

    # Streams

    def _whole_from(self, extent: Extent) -> WholeStream:
        self._release(self._whole)
        extents = self._extents_from(extent)
        self._whole = self._open(WholeStream(self._asked(extent), self._file.output, extents))
        return self._whole

    def _fetch_alone(self, extent: Extent) -> pa.Buffer:
        stream = WholeStream(self._asked(extent), self._file.output, (extent,))
        with self._opened(stream):
            with self._naming(extent):
                self._link.wait(stream, lambda: stream.has_next)
            return stream.take()

    def _part_stream(self, extent: Extent, position: int, view: memoryview) -> PartStream:
        """Return the part stream, which fills the view from this position of the extent on."""
        stream = self._parts
        if stream is not None and stream.can_give(extent, position):
            start = stream.start_of(extent) + position
            self._link.change(lambda: stream.want(start, view))
            return stream
        self._release(stream)
        new = PartStream(
            self._asked(extent),
            self._file.output,
            self._extents_from(extent),
            self._link.floating,
            self._link.lent,
            position,
        )
        new.want(position, view)  # before the request, which then has credit for the view
        self._parts = self._open(new)
        return new

    def _parts_of(self, extent: Extent, part_bytes: int) -> Iterator[ExtentPart]:
        """Yield the parts. Of each, the stream keeps only the bytes that will be wanted again."""
        position = 0
        for part in super().checked_parts(extent, part_bytes):
            position += part.bytes
            self._keep_from(extent, position)
            yield part

    def _keep_from(self, extent: Extent, position: int) -> None:
        stream = self._parts
        if stream is not None:
            at = stream.start_of(extent) + position
            self._link.change(lambda: stream.forget_up_to(at))

    @contextmanager
    def _opened(self, channel: ClientChannel) -> Iterator[None]:
        """Keep the channel open while the block runs."""
        self._open(channel)
        try:
            yield
        finally:
            self._release(channel)

    def _open(self, channel: AnyChannel) -> AnyChannel:
        with self._lock:
            if self._given_up:
                raise StateError(f"the reader was closed: {channel.asked.what}")
            self._channels.append(channel)
        self._link.open(channel)
        return channel

    def _release(self, channel: ClientChannel | None) -> None:
        if channel is None:
            return
        with self._lock:
            if channel not in self._channels:
                return
            self._channels.remove(channel)
        self._link.release(channel)

    def _extents_from(self, extent: Extent) -> tuple[Extent, ...]:
        try:
            return self._extents[self._extents.index(extent) :]
        except ValueError:
            raise StateError(f"the reader was not opened for the extent of region {extent.region}") from None

    # Errors

    def _asked(self, extent: Extent) -> RequestSubject:
        file = self._file
        what = f"subpartition {extent.subpartition} of {file.output} on host {file.host} ({file.path})"
        return RequestSubject(
            what, Place(file.path, subpartition=extent.subpartition, writer=file.writer), file.host
        )

    @contextmanager
    def _naming(self, extent: Extent) -> Iterator[None]:
        """Name this extent's place in errors that name no region: the whole map output is lost."""
        try:
            yield
        except (MissingDataError, CorruptDataError) as error:
            if error.place.region is not None:
                raise
            place = self.place(extent.offset, extent)
            raise type(error)(place, error.what, expected=error.expected, found=error.found) from None

    def _expect_sound(self, error: CorruptDataError, extent: Extent) -> None:
        """Ask the service to check these bytes, and raise what it finds unless they are sound in its file."""
        file = self._file
        verdict = self._client.report_damage(
            file.output, file.host, extent.subpartition, extent.region, self._opened
        )
        if verdict is Verdict.MISSING:
            what = f"the map output is gone, says the shuffle service of {file.host}"
            raise MissingDataError(self.place(extent.offset, extent), what)
        if verdict is Verdict.DAMAGED:
            raise self._with_reason(error, f"the shuffle service of {file.host} reads the same")

    def _transit_error(self, error: CorruptDataError) -> CorruptDataError:
        host = self._file.host
        return self._with_reason(
            error,
            f"the network changed it: the shuffle service of {host} finds it sound, and {MOST_ATTEMPTS}"
            " attempts to get it failed",
        )

    def _with_reason(self, error: CorruptDataError, why: str) -> CorruptDataError:
        what = f"{error.what}, and {why}"
        return CorruptDataError(error.place, what, expected=error.expected, found=error.found)
