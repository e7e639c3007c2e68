"""Opaque frames as payloads: byte strings of any length, one record each, cut over the buffers of an extent.

`payload.pickled` builds on these frames. No entry point writes opaque frames: the shuffle manager's records
are `payload.record_bytes`. `sortshuffle dump` counts and shows opaque frames.
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
"""The frames that end in one buffer, read-only. Empty if no frame ends in it."""


class FramesPayload:
    """Compresses and decompresses streams of opaque frames. Thread-safe: `FrameDecoder` keeps the state."""

    kind: ClassVar[PayloadKind] = PayloadKind.FRAMES

    def __init__(self, codec: Codec, level: int | None = None) -> None:
        self.codec = codec
        self._compression = Compression(codec, level)

    @classmethod
    def of(cls, options: Options) -> FramesPayload:
        """Return the payload that ``options`` choose."""
        return cls(Codec[options.codec.upper()], options.codec_level)

    def count(self, frame: memoryview) -> int:
        """Return the number of records in a frame: one. Subclasses raise `Malformed` for an invalid frame."""
        return 1

    def records(self, frame: memoryview) -> Any:
        """Return the records of one frame: the frame itself. Subclasses raise `Malformed`."""
        return (frame,)

    def compress(
        self,
        payload: memoryview,
        records: int,
        seconds: Seconds,
        keep: Callable[[pa.Buffer], Any] = copy_to_fit,
    ) -> SealedBuffer | None:
        """Compress a part of the stream, in which ``records`` records end, into a buffer; return None if that
        saves too little. ``keep`` copies the block to its final memory (by default, new memory); afterwards
        the payload may be overwritten. Adds to the steps compress and checksum."""
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
        """Return the part of the stream that a verified buffer holds. Raises `Malformed`."""
        payload = self._compression.payload(memory, buffer)
        return memoryview(payload).cast("B").toreadonly()


@dataclass(frozen=True, slots=True)
class FrameDecoding:
    """Makes decoders of frames. ``new_spill``: creates the file for a cut frame of over `SPILL_BYTES`."""

    payload: FramesPayload
    new_spill: Callable[[], Spill]

    def copied(self, raw_bytes: int) -> int:
        """Return how many bytes may be in memory twice: at worst all of them. Cut frames are copied out of
        decompressed buffers, which the whole frames in them keep alive. Without a codec there are no
        decompressed buffers: the copies take the room that is counted for those."""
        return 0 if self.payload.codec is Codec.NONE else raw_bytes

    def decoder(self, seconds: Seconds) -> FrameDecoder:
        """Return a decoder for one extent. It adds to the steps decompress and decode."""
        return FrameDecoder(self.payload, SpanningDeserializer(self.new_spill), seconds)


class FrameDecoder:
    """Decodes the buffers of one extent in order: each into the frames that end in it, or into an event.
    ``records``: number of records decoded so far. The caller closes the decoder."""

    def __init__(self, payload: FramesPayload, spanning: SpanningDeserializer, seconds: Seconds) -> None:
        self.records = 0
        self._payload = payload
        self._spanning = spanning
        self._seconds = seconds

    def decode(self, memory: pa.Buffer, buffer: StoredBuffer) -> Frames | Event:
        """Decode a verified buffer into frames or an event. Raises `Malformed`."""
        if buffer.compressed and buffer.data_type is not DataType.DATA:
            raise Malformed("an event is compressed", 0)
        started = time.perf_counter()
        payload = self._payload.decompress(memory, buffer)
        decompressed = time.perf_counter()
        if buffer.compressed:
            self._seconds["decompress"] += decompressed - started
        if buffer.data_type is not DataType.DATA:
            self._spanning.finish()  # an event must not interrupt a record
            return unpack_event(buffer.data_type, payload)
        frames = self._spanning.records(payload)
        self.records += sum(map(self._payload.count, frames))
        self._seconds["decode"] += time.perf_counter() - decompressed
        return frames

    def finish(self) -> None:
        """Check that the extent ends between frames. Raises `Malformed` if it ends within a frame."""
        self._spanning.finish()

    def close(self) -> None:
        self._spanning.close()
