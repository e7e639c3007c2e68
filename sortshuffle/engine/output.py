"""`Output`: one result partition, written by a process of one's own."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any, cast

import pyarrow as pa

from sortshuffle.engine.checks import (
    AS_BATCHES,
    expect_columns,
    expect_keys,
    expect_no_dictionary,
    expect_sendable,
    expect_sequence,
    text_of_schema,
    type_name,
    whole_number,
)
from sortshuffle.engine.home import Home
from sortshuffle.engine.map_output import MapOutput
from sortshuffle.errors import StateError, UsageError
from sortshuffle.format.header import FileHeader
from sortshuffle.format.index import Writer
from sortshuffle.homes.host import host_name
from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.metrics import TaskMetrics
from sortshuffle.options import Options
from sortshuffle.partitioner import ChannelSelector
from sortshuffle.payload.arrow import ArrowPayload
from sortshuffle.payload.events import (
    Event,
)
from sortshuffle.payload.pickled import PickledPayload, pack_chunk
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.writer import PartitionedFileWriter
from sortshuffle.writing.encoders import PartitionLayout
from sortshuffle.writing.frame_encoder import FrameLayout, frame_layout
from sortshuffle.writing.frame_partition import FrameResultPartition
from sortshuffle.writing.record_writer import KeySelector, RecordWriter
from sortshuffle.writing.row_partition import RowResultPartition

_DEFAULTS = Options()


def open_output(
    home: Home,
    selector: KeySelector,
    map_index: int,
    *,
    exchange: int = 0,
    schema: pa.Schema | None = None,
    options: Options = _DEFAULTS,
) -> Output:
    """Begin a producer's map output. The caller finishes or abandons it.

    ``selector``: where records go, and how many subpartitions there are; one for each output, since some
    count. ``map_index``: the producer's number in the exchange, by which consumers order what they read.
    ``exchange``: a number that tells the exchanges of a job apart. ``schema``: of the batches; None for
    records. ``options``: of which memory (bytes that it may hold), codec and codec_level count.

    Raises `UnsupportedError` for a schema with a dictionary in it, `OutOfDiskError`, MemoryError, and OSError
    where the home is gone.
    """
    map_index, exchange = whole_number("map index", map_index), whole_number("exchange", exchange)
    if map_index < 0 or exchange < 0:
        raise UsageError(f"map index and exchange count from 0 on: they are not {map_index} and {exchange}")
    return Output(home, selector, map_index, exchange, schema, options)


class Output:
    """A result partition that is written: `open_output` makes it, and has its parameters.

    Calls after `finish()`, `abandon()` or a call that failed are a `StateError`. Single-threaded.
    """

    def __init__(
        self,
        home: Home,
        selector: KeySelector,
        map_index: int,
        exchange: int,
        schema: pa.Schema | None,
        options: Options,
    ) -> None:
        self._failed = ""  # what finish() raised
        self._home = home
        self._selector = selector
        self._schema = schema
        # random, so that a task that runs again needs no number from whoever runs it
        attempt = secrets.randbits(31)
        self._written_by = Writer(
            home.application, exchange, map_index=map_index, attempt=attempt, host=host_name()
        )
        self._writer: RecordWriter | None = None
        metrics = TaskMetrics()
        with ExitStack() as opened:
            budget = MemoryBudget(options.memory)
            self._partition: RowResultPartition | FrameResultPartition
            if schema is None:
                frames = frame_layout(
                    PickledPayload.of(options), selector.subpartitions, options.memory, opened
                )
                target = FrameResultPartition(self._new_file(frames), frames, budget, metrics)
                self._partition = opened.enter_context(target)
                self._writer = opened.enter_context(RecordWriter(selector, pack_chunk, target, metrics))
            else:
                rows = _row_layout(selector, schema, options)
                self._rows = RowResultPartition(self._new_file(rows), rows, budget, metrics)
                self._partition = opened.enter_context(self._rows)
            self._opened = opened.pop_all()

    def write(self, records: Sequence[Any], keys: Any = None) -> None:
        """Send each record where its key says. ``records``: a list, or another sequence. ``keys``:
        one row per record, in an Arrow batch whose columns the selector names; None for selectors that look
        at no keys (forward, rescale, round robin, global, broadcast). A selector of one's own takes what it
        likes.

        An object is pickled later: who changes it meanwhile may change what arrives. A pickled chunk above
        5 MiB is put together in the system's temporary directory when it is read. Raises `UsageError` for
        records that are no sequence, for keys that are missing, of another number or in another form, for
        what a selector gives that is no subpartition, and for an output of batches: none of them changes
        anything. Raises what pickling raises, and `OutOfDiskError`; then nothing but `abandon()` is left.
        """
        writer = self._record_writer("records")
        expect_sequence(records)
        if keys is not None:
            expect_keys(self._selector, keys)
        writer.emit_batch(records, _NoKeys(len(records)) if keys is None else keys)

    def write_batch(self, batch: pa.RecordBatch) -> None:
        """Send each row of a batch where the selector says, or to all. Raises `UsageError` for a batch of
        another schema than the output's, for what is no batch, and for an output of records;
        `OutOfDiskError`, and what `finish` raises of a selector: rows are held, and placed together. Then
        nothing but `abandon()` is left."""
        if self._schema is None:
            raise UsageError("this output takes records (write): batches need open_output(..., schema=...)")
        if not isinstance(batch, pa.RecordBatch):
            raise UsageError(f"an Arrow record batch is written, no {type_name(batch)}{AS_BATCHES}")
        if not batch.schema.equals(self._schema):  # what a file says of its rows could not be believed
            raise UsageError(
                f"the output's schema is ({text_of_schema(self._schema)}), the batch's"
                f" ({text_of_schema(batch.schema)}):"
                " where only types or nulls differ, write batch.cast(schema)"
            )
        if self._selector.is_broadcast:
            self._rows.broadcast(batch)
        else:
            self._rows.write(batch)

    def broadcast(self, record: Any) -> None:
        """Send one record to every subpartition, in order with the others. A broadcast selector's is stored
        once, another's for each subpartition. Raises as `write` does."""
        self._record_writer("single records").broadcast_emit(record)

    def send(self, event: Event) -> None:
        """Send an event to every subpartition, behind all that was written before and ahead of all that is
        written later. Not for something that comes with every record: each ends the regions that are open,
        and makes 48 bytes for each subpartition in the index, which every consumer reads as a whole.
        Raises `UsageError` for an output of batches, for what is no event, and for the events that `finish()`
        sends; none of them changes anything."""
        writer = self._record_writer("events")
        expect_sendable(event)
        writer.broadcast_event(event)

    def finish(self) -> MapOutput:
        """Complete the files, which can be read from now on. Raises `OutOfDiskError`, what pickling raises
        for records that were held, and for rows that were held what a selector of one's own raises, or
        `UsageError` for what it gives; then nothing is left of the output."""
        if self._failed:
            raise StateError(f"this output has failed when it was to be finished: {self._failed}")
        written_by = self._written_by
        try:
            if self._writer is not None:
                self._writer.finish()
            file = self._partition.finish(written_by.signed())
        except StateError:
            raise
        except BaseException as error:
            self._failed = f"{type(error).__name__}: {error}"
            self.abandon()
            raise
        sizes = tuple(self._partition.subpartition_bytes.tolist())
        self._opened.close()
        return MapOutput(
            written_by.application,
            written_by.exchange,
            written_by.map_index,
            written_by.attempt,
            self._partition.file_id,
            written_by.host,
            file.base,
            sizes,
        )

    def abandon(self) -> None:
        """Delete the files and let go of all memory. Does nothing after `finish()`."""
        self._opened.close()

    def __enter__(self) -> Output:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abandon()

    def _record_writer(self, what: str) -> RecordWriter:
        if self._writer is None:
            raise UsageError(f"this output takes batches (write_batch), and no {what}: it has a schema")
        return self._writer

    def _new_file(self, layout: PartitionLayout | FrameLayout) -> PartitionedFileWriter:
        writer = self._written_by
        count = self._selector.subpartitions
        header = FileHeader(
            file_id=secrets.token_bytes(16),
            subpartitions=count,
            first_subpartition=writer.map_index % count,  # so that consumers do not all begin at one place
            codec=layout.payload.codec,
            payload_kind=layout.payload.kind,
        )
        file = PartitionedFile.named(self._home.path, writer.exchange, writer.map_index, writer.attempt)
        return PartitionedFileWriter(file, header)


@dataclass(frozen=True, slots=True)
class _NoKeys:
    """In the place of keys where there are none: a selector may ask how many there would be."""

    num_rows: int

    def __len__(self) -> int:
        return self.num_rows

    def __getattr__(self, name: str) -> Any:
        raise UsageError("this selector places records by their keys: give them, one row for each record")

    __getitem__ = __getattr__


def _row_layout(selector: KeySelector, schema: pa.Schema, options: Options) -> PartitionLayout:
    expect_no_dictionary(schema)
    expect_columns(selector, len(schema), "batches")
    payload = ArrowPayload.of(schema, options)
    return PartitionLayout(payload, cast(ChannelSelector, selector), options.buffer_size)
