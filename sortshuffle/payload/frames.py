"""Opaque frames as payloads: any bytes, one record each, cut over the buffers of their extent.

`payload.pickled` is made of them. No door writes opaque frames: the shuffle manager's records are
`payload.record_bytes`. `sortshuffle dump` counts and shows them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import pyarrow as pa

from sortshuffle.format.buffer import DataType, SealedBuffer, StoredBuffer, seal_compressed
from sortshuffle.format.header import Codec, PayloadKind
from sortshuffle.format.malformed import Malformed
from sortshuffle.metrics import Seconds
from sortshuffle.options import Options
from sortshuffle.payload.compression import Compression, copy_to_fit
from sortshuffle.payload.events import Event, unpack_event
from sortshuffle.payload.spanning import SpanningDeserializer, Spill

Frames: TypeAlias = "list[memoryview]"
"""The frames that end in one buffer, read-only; none if a longer frame goes on."""


class FramesPayload:
    """Frames as they are. Thread-safe; `decoder` makes what keeps state."""

    kind: ClassVar[PayloadKind] = PayloadKind.FRAMES

    def __init__(self, codec: Codec, level: int | None = None) -> None:
        self.codec = codec
        self._compression = Compression(codec, level)

    @classmethod
    def of(cls, options: Options) -> FramesPayload:
        """The payload that these options choose."""
        return cls(Codec[options.codec.upper()], options.codec_level)

    def count(self, frame: memoryview) -> int:
        """Records in a frame: one. Raises `Malformed` for what cannot be a frame of this kind."""
        return 1

    def records(self, frame: memoryview) -> Any:
        """The records of one frame: itself. Raises `Malformed`."""
        return (frame,)

    def compress(
        self,
        payload: memoryview,
        records: int,
        seconds: Seconds,
        keep: Callable[[pa.Buffer], Any] = copy_to_fit,
    ) -> SealedBuffer | None:
        """A compressed buffer of this part of the stream, in which ``records`` end; None where that saves too
        little. ``keep`` copies the block to where it stays (by default memory of its own); the payload may be
        overwritten then. Adds to the steps compress and checksum."""
        if self.codec is Codec.NONE:
            return None
        started = time.perf_counter()
        raw_bytes = len(payload)
        block = self._compression.block(payload)
        stored = None if block is None else keep(block)
        compressed = time.perf_counter()
        seconds["compress"] += compressed - started
        if stored is None:
            return None
        sealed = seal_compressed(stored, len(stored), records=records, raw_bytes=raw_bytes)
        seconds["checksum"] += time.perf_counter() - compressed
        return sealed

    def decompress(self, memory: pa.Buffer, buffer: StoredBuffer) -> memoryview:
        """The part of the stream in a verified data buffer. Raises `Malformed`."""
        payload = self._compression.payload(memory, buffer)
        return memoryview(payload).cast("B").toreadonly()


@dataclass(frozen=True, slots=True)
class FrameDecoding:
    """How the frames of an extent are found. ``new_spill``: makes the file of a cut frame above
    `SPILL_BYTES`."""

    payload: FramesPayload
    new_spill: Callable[[], Spill]

    def copied(self, raw_bytes: int) -> int:
        """Bytes that are in memory twice: all, at worst. Cut frames are copied out of decompressed buffers,
        which the whole frames in them keep alive. Without a codec the copies take the decompressed buffers'
        place."""
        return 0 if self.payload.codec is Codec.NONE else raw_bytes

    def decoder(self, seconds: Seconds) -> FrameDecoder:
        """For one extent. Adds to the steps decompress and decode."""
        return FrameDecoder(self.payload, SpanningDeserializer(self.new_spill), seconds)


class FrameDecoder:
    """Decodes the buffers of one extent in order: each into the frames that end in it, or an event.

    ``records``: decoded so far. The caller closes it.
    """

    def __init__(self, payload: FramesPayload, spanning: SpanningDeserializer, seconds: Seconds) -> None:
        self.records = 0
        self._payload = payload
        self._spanning = spanning
        self._seconds = seconds

    def decode(self, memory: pa.Buffer, buffer: StoredBuffer) -> Frames | Event:
        """What a verified buffer holds. Raises `Malformed`."""
        if buffer.compressed and buffer.data_type is not DataType.DATA:
            raise Malformed("an event is compressed", 0)
        started = time.perf_counter()
        payload = self._payload.decompress(memory, buffer)
        decompressed = time.perf_counter()
        if buffer.compressed:
            self._seconds["decompress"] += decompressed - started
        if buffer.data_type is not DataType.DATA:
            self._spanning.finish()  # an event stands between records, not in one
            return unpack_event(buffer.data_type, payload)
        frames = self._spanning.records(payload)
        self.records += sum(map(self._payload.count, frames))
        self._seconds["decode"] += time.perf_counter() - decompressed
        return frames

    def finish(self) -> None:
        """The extent ends here. Raises `Malformed` if it ends within a frame."""
        self._spanning.finish()

    def close(self) -> None:
        self._spanning.close()
