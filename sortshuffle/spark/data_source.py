"""Map outputs as a DataFrame: `spark.read.format("sortshuffle").load(path)`.

The source makes the rows that a shuffle wrote available to SQL, from kept files (`spark.sortshuffle.keep`) or
those of a running job. The path is a data or index file, or a directory with map outputs of one exchange at
any depth. The columns of the rows come after three that say where each row was:

    subpartition int   its number; null in a broadcast region, whose rows are for all subpartitions
    region       int   the flush that wrote the row
    map_index    int   the map task that wrote the row

If the rows themselves have a column of such a name, the added one gets a leading underscore.

Rules
* Everything is verified: the whole index, every buffer and extent, the numbers of rows. Damage raises
  `CorruptDataError` with its place. Unfinished map outputs, and two of one map task, are refused by name.
* A map output is one input partition, or several of neighbouring subpartitions if it is large. A task holds
  one part of an extent and one batch in memory.
* No filters are pushed: Spark keeps the filter that was pushed for one query with the cached relation, and a
  later query without the filter would miss rows (tried on 4.3). Spark offers Python sources no column
  pruning.

Spark plans the source in a process that it starts for this, and reads it in workers: both import this module.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from sortshuffle import calls
from sortshuffle.errors import CorruptDataError, Place, SortShuffleError, UnsupportedError, UsageError
from sortshuffle.format.header import PayloadKind
from sortshuffle.format.index import Index
from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.metrics import TaskMetrics
from sortshuffle.options import MIB
from sortshuffle.payload.arrow import ArrowPayload
from sortshuffle.reading.channel import Fetch, LocalInputChannel
from sortshuffle.spark.conforming import conform
from sortshuffle.spark.schema import from_arrow, to_arrow
from sortshuffle.spark.worker_errors import note_fields
from sortshuffle.storage.files.extents import Extent
from sortshuffle.storage.files.partitioned_file import PARTIAL_SUFFIX, PartitionedFile
from sortshuffle.storage.files.reader import read_index
from sortshuffle.storage.inspection.contents import RegionTable
from sortshuffle.storage.inspection.finding import find_pairs

NAME = "sortshuffle"
PARTITION_BYTES = 128 * MIB
"""Decoded bytes of one input partition: the default of `spark.sql.files.maxPartitionBytes`."""
PART_BYTES = 8 * MIB
"""Bytes of an extent to read at a time; a buffer has some MiB."""
_PLACES = ("subpartition", "region", "map_index")


def register(spark: Any) -> None:
    """Make ``spark.read.format("sortshuffle")`` known to a session.

    Usually Spark finds the source by itself: it looks for packages named ``pyspark_*`` in the workers'
    Python. It does not find editable installations. Safe to call again.
    """
    try:
        spark.dataSource.register(MapOutputSource)
    except AnalysisException as error:
        if "DATA_SOURCE_ALREADY_EXISTS" not in str(error):
            raise


class MapOutputSource(DataSource):  # type: ignore[misc]
    """The data source. Spark makes it with the options of a read. ``exchange`` and ``application``: the
    number and the id that choose what to read, if a directory has several."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format()``."""
        return NAME

    def schema(self) -> StructType:
        """Return the columns of the places and of the rows. Raises `UsageError`, `DataLossError`."""
        return self._output().schema

    def reader(self, schema: StructType) -> MapOutputReader:
        """Return the reader. ``schema``: the result of `schema`, or an equal one from the user."""
        return MapOutputReader(self._output(), schema)

    def _output(self) -> Outputs:
        path = self.options.get("path")
        if not path:
            raise UsageError(
                f'format("{NAME}") reads one path: load("/path/of/map/outputs"), a directory or a data file'
            )
        return Outputs.find(
            str(path).removeprefix("file://"), self.options.get("application"), self.options.get("exchange")
        )


class MapOutputReader(DataSourceReader):  # type: ignore[misc]
    """Reads ranges of subpartitions of map outputs."""

    def __init__(self, outputs: Outputs, schema: StructType) -> None:
        self._outputs = outputs
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """Return one part per map output, or several ranges of subpartitions for a large one."""
        return [part for output in self._outputs.files for part in _parts(output)]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition, in the order of the file."""
        if not isinstance(partition, MapOutputPart):
            return  # a placeholder: Spark passes one if there are no partitions
        try:
            yield from self._rows(partition)
        except SortShuffleError as error:
            note_fields(error)
            raise

    def _rows(self, partition: MapOutputPart) -> Iterator[pa.RecordBatch]:
        target = to_arrow(self._schema, "UTC")  # the time zone label that Spark expects here
        index = read_index(partition.file, partition.file_id)
        payload = ArrowPayload(_rows_schema(partition.file, index), index.header.codec)
        table = RegionTable(index.entries, index.kinds)
        for extent in table.extents():
            if not extent.bytes or not partition.first <= extent.subpartition < partition.end:
                continue
            subpartition = None if table.is_broadcast(extent.region) else extent.subpartition
            place = (subpartition, extent.region, index.writer.map_index)
            for batch in _batches(partition.file, index, extent, payload):
                if batch.num_rows:
                    yield from conform(_placed(batch, place, target), target, partition.file.data_path)


@dataclass(frozen=True)
class Outputs:
    """Complete map outputs of one exchange. ``schema``: Spark's, of the DataFrame."""

    files: tuple[PartitionedFile, ...]
    schema: StructType

    @staticmethod
    def find(path: str, application: str | None = None, exchange: str | None = None) -> Outputs:
        """Find the map outputs at or below a path.

        Raises `UsageError` if there are none, unfinished ones, those of several exchanges, or two of one map
        task; `UnsupportedError` for objects and encrypted files; `DataLossError` for a damaged index.
        """
        found = [_Candidate.of(file) for file in _files_at(path)]
        chosen = [each for each in found if each.is_of(application, exchange)]
        if not chosen:
            raise UsageError(f"there is no map output at {path}{_what_there_is(found)}")
        several = sorted({each.exchange for each in chosen})
        if len(several) > 1:
            raise UsageError(
                f"{path} has the map outputs of several exchanges: {_text_of(several)}. Choose one with the"
                " options application and exchange"
            )
        _refuse_twins(chosen)
        _refuse_encrypted(chosen)
        schemas = [_rows_schema(each.file, each.index) for each in chosen]
        for each, schema in zip(chosen, schemas, strict=True):
            if schema != schemas[0]:
                raise UsageError(
                    f"{each.file.base} has rows of another schema than {chosen[0].file.base}: load them apart"
                )
        return Outputs(tuple(each.file for each in chosen), _with_places(from_arrow(schemas[0])))


@dataclass(frozen=True)
class _Candidate:
    file: PartitionedFile
    index: Index

    @staticmethod
    def of(file: PartitionedFile) -> _Candidate:
        return _Candidate(file, read_index(file))

    @property
    def exchange(self) -> tuple[str, int]:
        """The application and the number of the exchange."""
        return self.index.writer.application, self.index.writer.exchange

    def is_of(self, application: str | None, exchange: str | None) -> bool:
        own_application, own_exchange = self.exchange
        return application in (None, own_application) and exchange in (None, str(own_exchange))


@dataclass(frozen=True)
class MapOutputPart(InputPartition):  # type: ignore[misc]
    """The subpartitions ``[first, end)`` of a map output. Broadcast regions belong to subpartition 0."""

    file: PartitionedFile
    file_id: bytes
    first: int
    end: int


def _files_at(path: str) -> list[PartitionedFile]:
    if calls.isdir(path):
        return [_finished_file(each) for each in find_pairs(path, on_error=_raise)]
    if not calls.isfile(path):
        raise UsageError(f"there is nothing at {path}: load() takes a directory, or a data or index file")
    return [_finished_file(path)]


def _raise(error: OSError) -> None:
    raise UsageError(f"{error.filename} cannot be looked at: {error.strerror}")


def _finished_file(path: str) -> PartitionedFile:
    file = PartitionedFile.of(os.path.abspath(path))
    if file is None:
        raise UsageError(f"{path} is no map output: its name ends neither in .data nor in .index")
    if path.endswith(PARTIAL_SUFFIX):
        raise UsageError(
            f"{path} is not finished: its task is still writing it, or was stopped. Load finished files by"
            f" name; `sortshuffle dump {path}` shows as much of this one as there is"
        )
    return file


def _what_there_is(found: Sequence[_Candidate]) -> str:
    if not found:
        return ": load() takes a directory of them, or one's data or index file"
    return (
        f" of that application and exchange: there are {_text_of(sorted({each.exchange for each in found}))}"
    )


def _text_of(exchanges: Sequence[tuple[str, int]]) -> str:
    return ", ".join(f"{number} of {application}" for application, number in exchanges)


def _refuse_twins(chosen: Sequence[_Candidate]) -> None:
    by_map: dict[int, _Candidate] = {}
    for each in chosen:
        twin = by_map.setdefault(each.index.writer.map_index, each)
        if twin is not each:
            raise UsageError(
                f"map {each.index.writer.map_index} was written twice, {twin.file.data_path} and"
                f" {each.file.data_path}, and its rows would be there twice: load the files apart, by name"
            )


def _refuse_encrypted(chosen: Sequence[_Candidate]) -> None:
    for each in chosen:
        if each.index.header.is_encrypted:
            raise UnsupportedError(
                f"{each.file.data_path} is encrypted, and this source has no key: `sortshuffle dump"
                f" --key-file FILE --records N {each.file.data_path}` shows rows"
            )


_KINDS = {
    PayloadKind.PICKLE: "pickled objects",
    PayloadKind.FRAMES: "opaque frames",
    PayloadKind.RECORD_BYTES: "records of the shuffle manager",
}


def _rows_schema(file: PartitionedFile, index: Index) -> pa.Schema:
    if index.header.payload_kind is not PayloadKind.ARROW:
        kind = _KINDS[index.header.payload_kind]
        raise UnsupportedError(
            f"{file.data_path} holds {kind}, which have no columns: `sortshuffle dump --records N"
            f" {file.data_path}` shows them"
        )
    try:
        return pa.ipc.read_schema(pa.py_buffer(index.schema))
    except (pa.ArrowException, OSError, ValueError) as error:
        place = Place(file.index_path)
        raise CorruptDataError(place, f"the schema in the index cannot be read: {error}") from error


def _with_places(rows: StructType) -> StructType:
    taken = {name.lower() for name in rows.names}
    schema = StructType()
    for name in _PLACES:
        while name in taken:
            name = f"_{name}"
        schema = schema.add(name, "integer")
    return StructType([*schema.fields, *rows.fields])


def _parts(file: PartitionedFile) -> Iterator[MapOutputPart]:
    """Divide a map output into ranges of subpartitions of about `PARTITION_BYTES` decoded, at least one."""
    index = read_index(file)
    sizes = [0] * index.header.subpartitions
    for extent in RegionTable(index.entries, index.kinds).extents():
        sizes[extent.subpartition] += extent.raw_bytes
    first = filled = 0
    for subpartition, size in enumerate(sizes):
        if filled and filled + size > PARTITION_BYTES:
            yield MapOutputPart(file, index.header.file_id, first, subpartition)
            first, filled = subpartition, 0
        filled += size
    yield MapOutputPart(file, index.header.file_id, first, len(sizes))


def _batches(
    file: PartitionedFile, index: Index, extent: Extent, payload: ArrowPayload
) -> Iterator[pa.RecordBatch]:
    """Yield the verified batches of an extent. Raises `DataLossError` with the place."""
    writer = index.writer
    channel = LocalInputChannel(file, index.header.file_id, writer.map_index, str(writer), (extent,))
    memory = MemoryBudget(PART_BYTES)  # only one part is held at a time, so nothing waits for memory
    return Fetch(channel, channel.extents).stream(payload, PART_BYTES, memory, TaskMetrics())


def _placed(batch: pa.RecordBatch, place: tuple[int | None, int, int], target: pa.Schema) -> pa.RecordBatch:
    places = [pa.repeat(pa.scalar(value, pa.int32()), batch.num_rows) for value in place]
    return pa.RecordBatch.from_arrays(
        [*places, *batch.columns], names=[*target.names[:3], *batch.schema.names]
    )
