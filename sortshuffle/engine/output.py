"""`Output`: one result partition, written without Spark."""

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
    as_int,
    expect_columns,
    expect_keys,
    expect_sendable,
    expect_sequence,
    expect_storable,
    text_of_schema,
    type_name,
)
from sortshuffle.engine.home import Home
from sortshuffle.engine.map_output import MapOutput
from sortshuffle.errors import StateError, UsageError
from sortshuffle.format.header import FileHeader
from sortshuffle.format.index import WriterInfo
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
    """Begin a producer's map output. The caller must finish or abandon it.

    ``selector``: decides where records go, and how many subpartitions there are. Make one for each output:
    some selectors have state. ``map_index``: the producer's number in the exchange; consumers read in this
    order. ``exchange``: a number that tells the exchanges of a job apart. ``schema``: of the batches; None
    for records. ``options``: only memory (bytes that the output may hold), codec and codec_level count.

    Raises `UsageError` for numbers below 0 and columns that the schema lacks, `UnsupportedError` for a schema
    with dictionaries, views or runs in it, `OutOfDiskError`, MemoryError, and OSError if the home is gone.
    """
    map_index, exchange = as_int("map index", map_index), as_int("exchange", exchange)
    if map_index < 0 or exchange < 0:
        raise UsageError(f"map index and exchange count from 0 on: they are not {map_index} and {exchange}")
    return Output(home, selector, map_index, exchange, schema, options)


class Output:
    """A result partition that is being written. `open_output` makes it, and describes the parameters.

    Calls after `finish()`, `abandon()` or a failed call raise `StateError`. Not thread-safe.
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
        self._failed = ""  # the error that finish() raised
        self._home = home
        self._selector = selector
        self._schema = schema
        # random, so that the caller need not number the attempts of a task
        attempt = secrets.randbits(31)
        self._written_by = WriterInfo(
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
        """Send each record to the subpartition that its key selects. ``records``: a list or other sequence.
        ``keys``: an Arrow batch with one row per record and the columns that the selector names; None for
        selectors that use no keys (forward, rescale, round robin, global, broadcast). The caller's own
        selector defines what it takes.

        Objects are pickled later: changing one after this call may change what arrives. The reader assembles
        pickled chunks above 5 MiB in the system's temporary directory. Raises `UsageError` if ``records`` is
        not a sequence, if keys are missing, of the wrong number or in the wrong form, if the selector returns
        something that is not a subpartition, or if the output is of batches; the output is then unchanged.
        Raises `OutOfDiskError` and errors of pickling; the output can then only be abandoned.
        """
        writer = self._record_writer("records")
        expect_sequence(records)
        if keys is not None:
            expect_keys(self._selector, keys)
        writer.emit_batch(records, _NoKeys(len(records)) if keys is None else keys)

    def write_batch(self, batch: pa.RecordBatch) -> None:
        """Send each row of a batch to the subpartition that the selector chooses, or to all of them. Raises
        `UsageError` for something that is not a batch, a batch with another schema than the output's, and an
        output of records. Raises `OutOfDiskError` and, because rows are held and placed together, the errors
        of the selector that `finish` lists; the output can then only be abandoned."""
        if self._schema is None:
            raise UsageError("this output takes records (write): batches need open_output(..., schema=...)")
        if not isinstance(batch, pa.RecordBatch):
            raise UsageError(f"an Arrow record batch is written, no {type_name(batch)}{AS_BATCHES}")
        if not batch.schema.equals(self._schema):  # else the schema in the file would be false
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
        """Send one record to every subpartition, in order with the others. With a broadcast selector it is
        stored once, otherwise once per subpartition. Raises as `write` does."""
        self._record_writer("single records").broadcast_emit(record)

    def send(self, event: Event) -> None:
        """Send an event to every subpartition, after all earlier records and before all later ones. Do not
        send one with every record: each event ends the open regions, and adds 48 bytes per subpartition to
        the index, which every consumer reads as a whole. Raises `UsageError` for an output of batches, for
        something that is not an event, and for the events that `finish()` sends; nothing has then changed."""
        writer = self._record_writer("events")
        expect_sendable(event)
        writer.broadcast_event(event)

    def finish(self) -> MapOutput:
        """Complete the files, so that consumers can read them. Raises `OutOfDiskError`; for records still
        held, errors of pickling; for rows still held, errors of the caller's own selector, or `UsageError`
        for what it returns. After an error nothing is left of the output."""
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
        """Delete the files and release all memory. Does nothing after `finish()`."""
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
            first_subpartition=writer.map_index % count,  # so that consumers do not all start at one place
            codec=layout.payload.codec,
            payload_kind=layout.payload.kind,
        )
        file = PartitionedFile.named(self._home.path, writer.exchange, writer.map_index, writer.attempt)
        return PartitionedFileWriter(file, header)


@dataclass(frozen=True, slots=True)
class _NoKeys:
    """Stands in for missing keys: selectors that use none may still ask for the number of rows."""

    num_rows: int

    def __len__(self) -> int:
        return self.num_rows

    def __getattr__(self, name: str) -> Any:
        raise UsageError("this selector places records by their keys: give them, one row for each record")

    __getitem__ = __getattr__


def _row_layout(selector: KeySelector, schema: pa.Schema, options: Options) -> PartitionLayout:
    expect_storable(schema)
    expect_columns(selector, len(schema), "batches")
    payload = ArrowPayload.of(schema, options)
    return PartitionLayout(payload, cast(ChannelSelector, selector), options.buffer_size)
