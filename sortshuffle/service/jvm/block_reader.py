"""`BlockReader`: answers one request of a reduce task with the record bytes of ranges of subpartitions.

    blocks of this host     index walk, one read for neighbouring extents, verify, decompress
    blocks of other hosts   by credit, through the shuffle service of each (`RemoteBlocks`)
    blocks at a URL         by ranges of objects, whichever host wrote them (`StoredBlocks`)

`BlockReader.locate` looks for all map outputs before any byte is sent, and names all that are lost: Spark
gives up after four attempts of a stage, so it must learn of all losses at once. `BlockReader.pieces` then
yields the bytes, in large pieces.

Rules
* No bytes leave before their checksum has been verified.
* A request holds a few MiB, however large a block is, and reads blocks elsewhere ahead in the memory that all
  requests share. Of each index it holds its block's entries alone (`IndexPart`), and of files one at a time;
  the cache has its own limits. Small map outputs are held whole.
* Order: first the blocks of this host, then the others, each in the order of the request; in a block by
  region, in a region by subpartition.

Single-threaded: each connection has its own reader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sortshuffle.errors import DataLossError
from sortshuffle.format.buffer import DataType, StoredBuffer, scan_extent
from sortshuffle.format.checksum import BytesLike
from sortshuffle.format.header import Codec
from sortshuffle.format.malformed import Malformed
from sortshuffle.options import MIB
from sortshuffle.payload.record_bytes import RecordBytesPayload
from sortshuffle.service.jvm.index_part import IndexPart, check_range, entries_of
from sortshuffle.service.jvm.lost_blocks import (
    PROBLEMS,
    LostBlocksError,
    joined,
    warn_of,
    with_all_lost,
    without_frames,
)
from sortshuffle.service.jvm.nonlocal_blocks import NonLocalBlocks, NonLocalSource
from sortshuffle.service.jvm.outputs import IndexedMapOutput, MapOutput, MapOutputs, SmallMapOutput
from sortshuffle.service.jvm.protocol import Block, ReadRequest, ReadTotals
from sortshuffle.storage.files.extents import Extent, aligned_memory, extent_of
from sortshuffle.storage.files.grouping import in_groups
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.files.reader import PartitionedFileReader

# Most bytes of neighbouring extents that are read together, and of one extent that are held at a time
READ_BYTES = 4 * MIB


@dataclass(frozen=True, slots=True)
class _Findings:
    """What a look for map outputs has found. ``lost``: why they are lost, by the number of the block.
    ``problems``: errors that say nothing about map outputs, such as a lack of descriptors. A disk that
    fails is a loss instead: the storage reader makes a `DataLossError` of its error."""

    lost: dict[int, str] = field(default_factory=dict)
    problems: list[Exception] = field(default_factory=list)

    def note(self, number: int, error: Exception) -> None:
        """Note an error of the look for this block's map output."""
        if isinstance(error, DataLossError):
            self.lost[number] = str(error)
        else:  # its frames have the files of the look
            self.problems.append(without_frames(error))


@dataclass(frozen=True, slots=True)
class _LocalPart:
    """What a request holds of a map output of this host that is read extent by extent."""

    file: PartitionedFile
    file_id: bytes
    part: IndexPart

    @staticmethod
    def of(output: IndexedMapOutput, block: Block) -> _LocalPart:
        entries = entries_of(output.entries, block)
        part = IndexPart(output.codec, output.writer, output.data_bytes, block.first, entries)
        return _LocalPart(output.file, output.file_id, part)


def _held(output: MapOutput, block: Block) -> SmallMapOutput | _LocalPart:
    """Return what a request for this block holds of a map output. Raises `UsageError`."""
    check_range(block, output.subpartitions)
    return output if isinstance(output, SmallMapOutput) else _LocalPart.of(output, block)


class BlockReader:
    """Reads the blocks of ``request``. ``own_address``: of this host's service, whose blocks are files here;
    empty if no block is. All other blocks come from ``elsewhere``. The caller closes it."""

    def __init__(
        self,
        request: ReadRequest,
        outputs: MapOutputs,
        own_address: str,
        elsewhere: NonLocalSource,
    ) -> None:
        self._request = request
        self._outputs = outputs
        is_local = [service == own_address for service in request.services]
        numbered = list(enumerate(request.blocks))
        self._local_numbers = [(n, block) for n, block in numbered if is_local[block.service]]
        # blocks that `locate` has found
        self._local: list[tuple[int, Block, SmallMapOutput | _LocalPart]] = []
        others = [(n, block) for n, block in numbered if not is_local[block.service]]
        self._elsewhere: NonLocalBlocks | None = elsewhere.blocks(request, others) if others else None
        self._bytes = 0  # of local extents, as far as they were read
        self._blocks = 0  # local blocks that were begun

    def locate(self) -> None:
        """Find all map outputs. Raises `LostBlocksError` with all blocks that are lost, OSError. If a service
        does not answer, the error names all its blocks, and of other blocks only those whose loss is known
        by then."""
        try:
            self._locate()
        except LostBlocksError as error:
            if error.silent:
                raise
            raise with_all_lost(error, self._check_known, self._request.shuffle) from None

    def _locate(self) -> None:
        """Find all map outputs. Those whose index or records were known count as sound."""
        self._look_on_both_sides(self._locate_local, lambda elsewhere: elsewhere.locate())

    def _check_known(self) -> None:
        """Look for the map outputs whose index was known, after `_locate`."""
        self._look_on_both_sides(self._check_local, lambda elsewhere: elsewhere.check_known())

    def _look_on_both_sides(
        self, look_here: Callable[[_Findings], None], look_elsewhere: Callable[[NonLocalBlocks], None]
    ) -> None:
        """Look for map outputs here and elsewhere. Raise `LostBlocksError` with all that are lost. If none is
        known to be lost, raise the first problem that kept a look from telling."""
        found, losses = _Findings(), []
        try:
            look_here(found)
            if self._elsewhere is not None:
                look_elsewhere(self._elsewhere)
        except LostBlocksError as error:
            losses.append(error)
        except PROBLEMS as problem:
            found.problems.append(problem)
        if found.lost:
            losses.append(LostBlocksError(found.lost, found.lost.values()))
        if losses:
            if found.problems:
                warn_of(found.problems[0], self._request.shuffle)
            raise joined(*losses)
        if found.problems:
            raise found.problems[0]

    def _locate_local(self, found: _Findings) -> None:
        """Find the map outputs of this host."""
        held = self._held_of_known()
        for number, block in self._local_numbers:
            try:
                part = held.get(number) or _held(self._open(block), block)
                self._local.append((number, block, part))
            except PROBLEMS as error:  # it hides no loss of others
                found.note(number, error)

    def _held_of_known(self) -> dict[int, SmallMapOutput | _LocalPart]:
        """Return what is held of known map outputs, by the number of the block. What the cache drops while
        others are opened is closed then: nothing here keeps it. A range that there is not is left to
        `_locate_local`, which notes the error."""
        known = self._outputs.known([block.file_id for _, block in self._local_numbers])
        return {
            number: _held(output, block)
            for (number, block), output in zip(self._local_numbers, known, strict=True)
            if output is not None and block.end <= output.subpartitions
        }

    def look(self) -> None:
        """Find all map outputs, also those whose index was known: they may be lost by now. Those whose
        records are in memory count as sound. Raises as `locate`."""
        if self._elsewhere is not None:
            self._elsewhere.forget()
        self._look_here()

    def _check_local(self, found: _Findings) -> None:
        """Look again for the map outputs of this host that `_locate_local` has found."""
        self._outputs.forget_gone([block.file_id for _, block, _ in self._local])
        for number, block, _ in self._local:
            try:
                self._open(block)
            except PROBLEMS as error:
                found.note(number, error)

    def _look_here(self) -> None:
        """`look`, but trust what is known of other hosts."""
        self._local.clear()
        self._outputs.forget_gone([block.file_id for _, block in self._local_numbers])
        self._locate()

    def pieces(self) -> Iterator[BytesLike]:
        """Yield the bytes of records, after `locate`. Raises `LostBlocksError`, OSError."""
        for number, block, output in self._local:
            self._blocks += 1
            if isinstance(output, SmallMapOutput):
                self._bytes += output.small.stored_bytes(block.first, block.end)
                yield output.small.records(block.first, block.end)
                continue
            try:
                yield from self._records(output)
            except DataLossError as error:
                raise self._lost(number, error) from error
        if self._elsewhere is not None:
            yield from self._elsewhere.pieces()

    def totals(self) -> ReadTotals:
        """Return what was read so far."""
        others = self._elsewhere
        return ReadTotals(
            self._bytes,
            self._blocks,
            others.bytes_read if others is not None else 0,
            others.blocks_begun if others is not None else 0,
        )

    def close(self) -> None:
        """Release everything. May be called again."""
        self._local.clear()
        if self._elsewhere is not None:
            self._elsewhere.close()

    def _open(self, block: Block) -> MapOutput:
        return self._outputs.open(self._request.shuffle, block.map_index, block.map_id, block.file_id)

    def _lost(self, number: int, error: DataLossError) -> LostBlocksError:
        """Return an error with this block and all others that are lost. The files of map outputs that were
        known already may have been cut or deleted since: so all are looked for again."""
        known = LostBlocksError([number], [str(error)])
        all_lost = with_all_lost(known, self._look_here, self._request.shuffle)
        # the damaged one is known again, or still, if its index is sound
        self._outputs.forget(self._request.blocks[number].file_id)
        return all_lost

    def _records(self, output: _LocalPart) -> Iterator[pa.Buffer]:
        """Yield the records of a block, from the open file if the cache has one."""
        kept, part = self._outputs.kept(output.file_id), output.part
        if kept is not None:
            yield from self._extents(kept.reader, part)  # `kept` keeps it open
        elif part.entries["bytes"].any():
            opened = self._outputs.reader(output.file, output.file_id, part.writer, part.data_bytes)
            with closing(opened) as reader:
                yield from self._extents(reader, part)

    def _extents(self, reader: PartitionedFileReader, part: IndexPart) -> Iterator[pa.Buffer]:
        """Yield the records of a block, read extent by extent."""
        payload = _payloads[part.codec]
        for region, row in enumerate(part.entries):
            for group in _groups(row["bytes"]):
                extents = [extent_of(row[at], region, part.first + at) for at in group]
                size = sum(extent.bytes for extent in extents)
                if size > READ_BYTES and len(extents) == 1:
                    yield from self._parts(reader, extents[0], payload)
                else:
                    self._bytes += size
                    yield from _neighbours(reader, extents, size, payload)

    def _parts(
        self, reader: PartitionedFileReader, extent: Extent, payload: RecordBytesPayload
    ) -> Iterator[pa.Buffer]:
        for part in reader.read_parts(extent, READ_BYTES):
            self._bytes += part.bytes
            with reader.damage(extent.offset, extent):
                yield from _raw(part.memory, part.buffers, payload)


def _groups(sizes: npt.NDArray[np.uint64]) -> Iterator[list[int]]:
    """Yield the places of the extents that are not empty, in groups of neighbours up to `READ_BYTES`.
    ``sizes``: in bytes, of all extents of a region."""
    if len(sizes) == 1:
        if sizes[0]:
            yield [0]
        return
    filled = np.flatnonzero(sizes)
    yield from in_groups(zip(filled.tolist(), sizes[filled].tolist(), strict=True), READ_BYTES)


def _neighbours(
    reader: PartitionedFileReader, extents: list[Extent], size: int, payload: RecordBytesPayload
) -> Iterator[pa.Buffer]:
    """Yield the records of extents that are adjacent in the file, ``size`` bytes in all, with one read."""
    memory = reader.fetch(size, extents[0])
    view = memoryview(memory)
    opened = aligned_memory(size) if reader.decrypts else None  # one for all: allocating takes 10 us
    start = 0
    for extent in extents:
        end = start + extent.bytes
        try:  # verify the whole extent before any of its bytes leave
            buffers = list(scan_extent(view[start:end], extent.checksum, extent.buffers))
            into = None if opened is None else (opened[0].slice(start, extent.bytes), opened[1][start:end])
            part = memory.slice(start, extent.bytes)
            yield from _raw(*reader.plain(part, buffers, extent, into=into), payload)
        except Malformed as problem:
            raise reader.damaged(problem, extent.offset, extent) from None
        start = end


def _raw(memory: pa.Buffer, buffers: list[StoredBuffer], payload: RecordBytesPayload) -> Iterator[pa.Buffer]:
    """Yield decompressed buffers, one at a time: the 4 MiB held of an extent may decompress to gigabytes."""
    for each in buffers:
        if each.data_type is not DataType.DATA:
            raise Malformed("an event among record bytes", 0)
    for each in buffers:
        yield payload.raw(memory, each)


_payloads: dict[Codec, RecordBytesPayload] = {codec: RecordBytesPayload(codec) for codec in Codec}
