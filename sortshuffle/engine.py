"""The engine, without Spark: what stands under its doors, for processes of one's own.

Whoever schedules processes (`multiprocessing`, a scheduler that somebody wrote) shuffles with it:

    with Home.of("/data") as home:
        # in each producer; `number` is its own
        with open_output(home, KeyGroupSelector((0,), 4, 128), number) as output:
            output.write(records, keys)
            return output.finish()
        # in each consumer; `outputs` is what all producers returned
        with open_input(outputs, number) as stream:
            for record in stream.records():
                ...

    Home       where map outputs lie on this host; all that is in it goes with it
    Output     one result partition: open --write, broadcast, send--> open --finish--> a MapOutput
                                          \\-----abandon, or leaving the context-----> nothing is left
    MapOutput  small and picklable; how it gets from producers to consumers is the caller's affair
    Input      some subpartitions of all map outputs of an exchange, from files or through services

Records are any objects that pickle takes, or, where a schema is given, the rows of Arrow batches. Where they
go says a selector, of `sortshuffle.partitioner` or of one's own (`writing.record_writer.KeySelector`).

Rules
* Nothing new stands here: the classes only put together what `ShuffleRDD` and `ShuffleFrame` are made of.
  Spark is never imported.
* A map output can be read only when it is finished. Nobody waits here for anybody: consumers are started when
  the producers have ended.
* Order is fixed: (map index, subpartition, region, position), whatever is read first. Subpartitions are in
  the order in which they were asked for.
* Running a task again is the caller's affair too. `DataLossError` says whose output is lost. Of two outputs
  with one map index a consumer takes one; the other is to be released.
* Records are unpickled, which **runs what the pickles name**: only outputs of one's own job are to be opened.
"""

from __future__ import annotations

import operator
import os
import secrets
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import pairwise
from types import TracebackType
from typing import Any, TypeAlias, cast

import pyarrow as pa
import pyarrow.types as pat

from sortshuffle.errors import DataLossError, StateError, UnsupportedError, UsageError
from sortshuffle.format.header import Codec, FileHeader, PayloadKind
from sortshuffle.format.index import Index, Writer
from sortshuffle.homes.host import host_name, is_this_host
from sortshuffle.homes.lifetime import remove_home, remove_unowned
from sortshuffle.homes.owner import HOME_ROOT, Owner
from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.metrics import TaskMetrics
from sortshuffle.options import Options
from sortshuffle.partitioner import ChannelSelector, IdSelector
from sortshuffle.payload.arrow import ArrowPayload
from sortshuffle.payload.events import (
    SUPERSTEP,
    Barrier,
    EndOfData,
    EndOfPartition,
    Event,
    Superstep,
    UserEvent,
)
from sortshuffle.payload.pickled import PickledPayload, pack_chunk
from sortshuffle.reading.channel import InputChannel, LocalInputChannel
from sortshuffle.reading.gate import InputGate
from sortshuffle.reading.records import BufferOrEvent, RecordGate
from sortshuffle.service.client.client import ServiceClients
from sortshuffle.service.client.client_settings import ClientSettings, ClientTls, floating_bytes_of
from sortshuffle.service.client.remote_input_channel import RemoteInputChannel
from sortshuffle.service.wire.protocol import MapOutputAddress, is_plain_name
from sortshuffle.service.wire.secret import read_secret
from sortshuffle.storage.files.extents import extents_of
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.files.private import make_private
from sortshuffle.storage.files.reader import read_index, verified_index
from sortshuffle.storage.writer import PartitionedFileWriter
from sortshuffle.writing.encoders import PartitionLayout
from sortshuffle.writing.frame_encoder import FrameLayout, frame_layout
from sortshuffle.writing.frame_partition import FrameResultPartition
from sortshuffle.writing.record_writer import KeySelector, RecordWriter
from sortshuffle.writing.row_partition import RowResultPartition

__all__ = [
    "SUPERSTEP",
    "Barrier",
    "BufferOrEvent",
    "Home",
    "Input",
    "MapOutput",
    "Options",
    "Output",
    "UserEvent",
    "open_input",
    "open_output",
    "release",
]

_DEFAULTS = Options()
_NO_SERVICES: Mapping[str, str] = {}
_SELECTORS = ChannelSelector.__module__.rpartition(".")[0]  # the package of those that place rows
_AS_BATCHES = ": each of table.to_batches() or pa.RecordBatch.from_pylist(rows) is one"
_Payload: TypeAlias = "ArrowPayload | PickledPayload"


# ---- where map outputs lie ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Home:
    """Where a job's map outputs lie on this host. ``directory``: the one that a service serves
    (`sortshuffle.serve`). ``application``: the job's name, with random digits. ``path``: of the home itself.

    It belongs to the process that made it: as a context manager, leaving removes it with all that is in it,
    finished or not. What a killed process left removes ``sortshuffle clean DIRECTORY``. Plain data: producers
    get a copy, and only use it.
    """

    directory: str
    application: str
    path: str

    @staticmethod
    def of(directory: str, name: str = "engine") -> Home:
        """A new home below ``directory``, which is made if need be. ``name``: of the job, one step of a path.

        Raises `UsageError` for another name, OSError where the directories cannot be made.
        """
        application = f"{name}-{secrets.token_hex(4)}"
        if not name or not is_plain_name(application):
            raise UsageError(f"{name!r} cannot be the name of a job: it is to be one step of a path")
        root = os.path.abspath(directory)
        owner = Owner.of_process(os.getpid(), application, (), grace=0.0, keep=False)
        path = os.path.join(root, HOME_ROOT, application, owner.home_name)
        try:
            make_private(path)
            owner.write(path)
        except OSError:
            remove_unowned(path)
            raise
        return Home(root, application, path)

    def remove(self) -> None:
        """Delete it with all that is in it, when producers and consumers have ended. May be called again."""
        remove_home(self.path)

    def __enter__(self) -> Home:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()


@dataclass(frozen=True, slots=True)
class MapOutput:
    """A finished map output, as its consumers must know it.

    ``application``, ``exchange``, ``map_index``, ``attempt``: its name; ``file_id``: what its files carry.
    ``host``: where they lie, ``path``: there, without a suffix. ``subpartition_bytes``: what the consumer of
    each subpartition reads, bytes as stored; what is broadcast counts for each. One int per subpartition.
    """

    application: str
    exchange: int
    map_index: int
    attempt: int
    file_id: bytes
    host: str
    path: str
    subpartition_bytes: tuple[int, ...]

    @property
    def file(self) -> PartitionedFile:
        """Its pair of files."""
        return PartitionedFile(self.path)

    def __str__(self) -> str:
        return f"attempt {self.attempt} of map {self.map_index} on {self.host}"


def release(outputs: Iterable[MapOutput]) -> None:
    """Delete map outputs when every consumer has read them to the end: files are opened one by one, so an
    input that is still read fails with a `DataLossError`. To be called on the host where they lie. May be
    called again.

    Raises `UsageError` for outputs of another host, OSError for files that cannot be deleted.
    """
    outputs = _listed(outputs)
    elsewhere = [output for output in outputs if not is_this_host(output.host)]
    if elsewhere:
        raise UsageError(f"{elsewhere[0]} cannot be released on {host_name()}: its files are not here")
    for output in outputs:
        output.file.delete()


def _listed(outputs: Iterable[MapOutput]) -> list[MapOutput]:
    listed = list(outputs) if isinstance(outputs, Iterable) else [outputs]
    if isinstance(outputs, MapOutput) or not all(isinstance(each, MapOutput) for each in listed):
        wrong = next((each for each in listed if not isinstance(each, MapOutput)), None)
        found = "one MapOutput alone" if isinstance(outputs, MapOutput) else f"a {_kind(wrong)} among them"
        raise UsageError(f"give a list of what finish() returned, not {found}")
    return listed


# ---- writing --------------------------------------------------------------------------------------------


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
    map_index, exchange = _number("map index", map_index), _number("exchange", exchange)
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
        _expect_sequence(records)
        if keys is not None:
            _expect_keys(self._selector, keys)
        writer.emit_batch(records, _NoKeys(len(records)) if keys is None else keys)

    def write_batch(self, batch: pa.RecordBatch) -> None:
        """Send each row of a batch where the selector says, or to all. Raises `UsageError` for a batch of
        another schema than the output's, for what is no batch, and for an output of records;
        `OutOfDiskError`, and what `finish` raises of a selector: rows are held, and placed together. Then
        nothing but `abandon()` is left."""
        if self._schema is None:
            raise UsageError("this output takes records (write): batches need open_output(..., schema=...)")
        if not isinstance(batch, pa.RecordBatch):
            raise UsageError(f"an Arrow record batch is written, no {_kind(batch)}{_AS_BATCHES}")
        if not batch.schema.equals(self._schema):  # what a file says of its rows could not be believed
            raise UsageError(
                f"the output's schema is ({_columns(self._schema)}), the batch's ({_columns(batch.schema)}):"
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
        _expect_sendable(event)
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


def _expect_sequence(records: Any) -> None:
    """Records are counted, looked at one by one, and taken: what is not a sequence would lose some."""
    if isinstance(records, pa.RecordBatch | pa.Table):
        raise UsageError(
            f"a {_kind(records)} is no list of records: open_output(schema=...), and write_batch"
        )
    if not isinstance(records, Sequence) or isinstance(records, str | bytes):
        raise UsageError(f"records are written as a list, not as a {_kind(records)}: pass list(...)")


def _expect_keys(selector: KeySelector, keys: Any) -> None:
    """What is known of the selectors of this package: they take rows, and name columns by their positions."""
    if selector.is_broadcast or not _is_of_this_package(selector):
        return
    name = _kind(selector)
    if not isinstance(keys, pa.RecordBatch):
        raise UsageError(
            f"{name} takes keys as an Arrow record batch, one row for each record, not as a {_kind(keys)}:"
            ' pa.record_batch([keys], ["key"])'
        )
    _expect_columns(selector, keys.num_columns, "keys")


def _expect_columns(selector: KeySelector, count: int, what: str) -> None:
    """A selector of this package names columns by their positions; there are so many. What another one's
    ``keys`` are is its own affair."""
    if not _is_of_this_package(selector):
        return
    columns = [getattr(key, "column", key) for key in getattr(selector, "keys", ())]
    columns += [selector.column] if isinstance(selector, IdSelector) else []
    if columns and max(columns) >= count:
        raise UsageError(f"{_kind(selector)} looks at column {max(columns)}, and the {what} have {count}")


def _is_of_this_package(selector: KeySelector) -> bool:
    return type(selector).__module__.startswith(_SELECTORS)


def _kind(thing: object) -> str:
    return type(thing).__name__


def _expect_sendable(event: object) -> None:
    if isinstance(event, EndOfData | EndOfPartition):
        raise UsageError(f"{event.data_type.name} is what finish() sends")
    if not isinstance(event, Superstep | Barrier | UserEvent):
        raise UsageError(f"{event!r} is no event: send SUPERSTEP, a Barrier or a UserEvent")


def _row_layout(selector: KeySelector, schema: pa.Schema, options: Options) -> PartitionLayout:
    _expect_no_dictionary(schema)
    _expect_columns(selector, len(schema), "batches")
    payload = ArrowPayload.of(schema, options)
    return PartitionLayout(payload, cast(ChannelSelector, selector), options.buffer_size)


def _expect_no_dictionary(schema: pa.Schema) -> None:
    """A message is written without the dictionaries of its columns: nobody could read it."""
    for field in schema:
        if _has_dictionary(field.type):
            raise UnsupportedError(
                f"the column {field.name} has a dictionary ({field.type}), which is not stored: cast the"
                " column to its value type"
            )


def _has_dictionary(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        return _has_dictionary(kind.storage_type)
    within = (kind.field(number).type for number in range(kind.num_fields))
    return pat.is_dictionary(kind) or any(map(_has_dictionary, within))


def _columns(schema: pa.Schema) -> str:
    return ", ".join(
        f"{field.name} {field.type}" + ("" if field.nullable else " not null") for field in schema
    )


def _number(what: str, given: Any) -> int:
    """NumPy's integers as well."""
    try:
        return operator.index(given)
    except TypeError:
        raise UsageError(f"a number of a {what} is an int, not {given!r}") from None


# ---- reading --------------------------------------------------------------------------------------------


def open_input(
    outputs: Iterable[MapOutput],
    subpartitions: int | Iterable[int],
    *,
    services: Mapping[str, str] = _NO_SERVICES,
    options: Options = _DEFAULTS,
) -> Input:
    """Open some subpartitions of all map outputs of an exchange. The caller closes it.

    ``subpartitions``: one, or several, such as a range: one consumer may do the work of many. Of each output
    they are read in the order given, each once.
    ``services``: host:port of the shuffle service (`sortshuffle.serve`) by the name of the host; outputs of
    the hosts that are named are read through it, all others from their files. ``options``: of which
    read_memory (bytes that are read ahead), read_threads, service_timeout (seconds), service_secret_file and
    service_tls_* count.

    Raises `UsageError` for outputs of several exchanges, for two of one map index, for several numbers of
    subpartitions, for records and batches or several schemas together, for a subpartition that is not there,
    and for files of another host that are not seen here; `DataLossError` for what is lost, of the output that
    its ``place.writer`` names; `ServiceUnavailableError` and `AuthenticationError` for services.
    """
    found = sorted(_listed(outputs), key=lambda output: output.map_index)
    return Input(found, _numbers(subpartitions), services, options)


class Input:
    """What one consumer reads: `open_input` makes it. `buffers`, `records` and `batches` are three ways to
    read the same: call one of them, once.

    Leaving it as a context, or `close()`, lets go of files, threads and connections. What is asked of an
    iterator after that is a `StateError`. Single-threaded, but it reads ahead in threads of its own.
    """

    def __init__(
        self,
        outputs: Sequence[MapOutput],
        subpartitions: Sequence[int],
        services: Mapping[str, str],
        options: Options,
    ) -> None:
        _expect_one_exchange(outputs)
        _expect_there(subpartitions, outputs)
        self._closed = False
        with ExitStack() as opened:
            credit = floating_bytes_of(options.read_memory) if services else 0
            clients = ServiceClients(_client_settings(options, credit))
            opened.callback(clients.close)
            source = _Source(clients, services)
            self._payload: _Payload = PickledPayload(Codec.NONE)  # of no outputs: no records
            self._channels: list[InputChannel] = []
            for output in outputs:
                said, channels = source.opened(output, subpartitions)
                if output is outputs[0]:
                    self._payload = said
                elif not _is_alike(self._payload, said):
                    raise UsageError(
                        f"{output} and {outputs[0]} hold other things: the outputs of an exchange have one"
                        " schema, or none, and one codec"
                    )
                self._channels += channels
            self._opened = opened.pop_all()
        self._budget = MemoryBudget(options.read_memory - credit)
        self._threads = options.read_threads

    def buffers(self) -> Generator[BufferOrEvent, None, None]:
        """Everything, buffer by buffer: the chunks of records in each, or an event. Every event comes once
        for each map output and each of the subpartitions; the last two of a stream are END_OF_DATA and
        END_OF_PARTITION. Raises `UsageError` for batches, and what `RecordGate.buffers` raises."""
        return self._followed(self._gate_of_records().buffers())

    def records(self) -> Generator[Any, None, None]:
        """Every record; events are passed over. Raises as `buffers` does."""
        return self._followed(self._gate_of_records().records())

    def batches(self) -> Generator[pa.RecordBatch, None, None]:
        """Every row, in Arrow batches of the outputs' schema that are worth a call. Raises `UsageError` for
        records, and `DataLossError` with the place."""
        self._expect_open()
        if isinstance(self._payload, PickledPayload):
            raise UsageError("these outputs hold records: they are read by records() or buffers()")
        gate = InputGate(self._channels, self._payload, self._budget, self._threads, TaskMetrics())
        return self._followed(gate.batches())

    def close(self) -> None:
        """Let go of everything; what was handed out stays. May be called again."""
        self._closed = True
        self._opened.close()

    def __enter__(self) -> Input:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _gate_of_records(self) -> RecordGate:
        self._expect_open()
        if isinstance(self._payload, ArrowPayload):
            raise UsageError("these outputs hold batches: they are read by batches()")
        return RecordGate(self._channels, self._payload, self._budget, self._threads, TaskMetrics())

    def _followed(self, items: Generator[Any, None, None]) -> Generator[Any, None, None]:
        """The items. What they have open is closed with this input, before the rest of it."""
        self._opened.callback(items.close)
        return self._to_the_end(items)

    def _to_the_end(self, items: Generator[Any, None, None]) -> Generator[Any, None, None]:
        yield from items
        self._expect_open()  # if it is closed, that is why there is no more

    def _expect_open(self) -> None:
        if self._closed:
            raise StateError("the input is closed: read inside it")


@dataclass(frozen=True, slots=True)
class _Source:
    """How map outputs are got at. ``services``: addresses by host."""

    clients: ServiceClients
    services: Mapping[str, str]

    def opened(self, output: MapOutput, subpartitions: Sequence[int]) -> tuple[_Payload, list[InputChannel]]:
        """What is in it, and its channels. Its index is dropped: those of many together are large."""
        index = self.index(output)
        return _said(index), [self.channel(output, index, number) for number in subpartitions]

    def index(self, output: MapOutput) -> Index:
        """Raises `DataLossError` that says whose it was, `UsageError` for files that are elsewhere."""
        try:
            return self._index(output)
        except DataLossError as error:
            is_absent = isinstance(error.__cause__, FileNotFoundError)
            if is_absent and not is_this_host(output.host):
                raise UsageError(
                    f"{output} is not here, its files are on {output.host}: name its service, services="
                    f'{{"{output.host}": "host:port"}}'
                ) from error
            place = replace(error.place, writer=str(output))
            raise type(error)(place, error.what, expected=error.expected, found=error.found) from error

    def _index(self, output: MapOutput) -> Index:
        service = self.services.get(output.host)
        if service is None:
            return read_index(output.file, output.file_id)
        data = self.clients.client(service).index(_address_of(output), output.host)
        return verified_index(data, output.file.index_path, output.file_id)

    def channel(self, output: MapOutput, index: Index, subpartition: int) -> InputChannel:
        """Nothing is opened yet."""
        extents = tuple(extents_of(index, subpartition))
        service = self.services.get(output.host)
        if service is None:
            return LocalInputChannel(output.file, output.file_id, output.map_index, str(output), extents)
        path = output.file.data_path
        return RemoteInputChannel(
            self.clients, service, _address_of(output), output.host, path, str(output), extents
        )


def _address_of(output: MapOutput) -> MapOutputAddress:
    return MapOutputAddress(
        output.application, output.exchange, output.map_index, output.attempt, output.file_id
    )


def _client_settings(options: Options, credit: int) -> ClientSettings:
    """How services are talked to. Raises `UsageError` for a secret that cannot be read."""
    secret = read_secret(options.service_secret_file) if options.service_secret_file else None
    authority = options.service_tls_authority
    tls = ClientTls(authority) if authority else None
    return ClientSettings(secret, tls, options.service_timeout, credit)


def _expect_one_exchange(outputs: Sequence[MapOutput]) -> None:
    for one, next_one in pairwise(outputs):
        if one.exchange != next_one.exchange:
            raise UsageError(
                f"these are map outputs of two exchanges, {one.exchange} and {next_one.exchange}: each is"
                " opened by itself"
            )
        counts = len(one.subpartition_bytes), len(next_one.subpartition_bytes)
        if counts[0] != counts[1]:
            raise UsageError(
                f"map {one.map_index} was written into {counts[0]} subpartitions, and map"
                f" {next_one.map_index} into {counts[1]}: the outputs of an exchange have as many"
            )
        if one.map_index == next_one.map_index:
            raise UsageError(
                f"there are two outputs of map {one.map_index}, whose records would come twice: keep one, and"
                " release the other"
            )


def _numbers(subpartitions: int | Iterable[int]) -> tuple[int, ...]:
    """Numbers in the order given."""
    is_one = isinstance(subpartitions, str | bytes) or not isinstance(subpartitions, Iterable)
    given = [subpartitions] if is_one else list(cast("Iterable[int]", subpartitions))
    numbers = tuple(_number("subpartition", each) for each in given)
    if len(set(numbers)) < len(numbers):
        raise UsageError(f"a subpartition is named twice in {numbers}, and its records would come twice")
    return numbers


def _expect_there(subpartitions: Sequence[int], outputs: Sequence[MapOutput]) -> None:
    """In any of the outputs, which have equally many."""
    if not outputs:
        return
    count = len(outputs[0].subpartition_bytes)
    for subpartition in subpartitions:
        if not 0 <= subpartition < count:
            raise UsageError(f"there is no subpartition {subpartition}: they are 0 to {count - 1}")


def _said(index: Index) -> _Payload:
    """What an index says is in its file. Raises `UsageError` for what this module does not write."""
    kind, codec = index.header.payload_kind, index.header.codec
    if kind is PayloadKind.PICKLE:
        return PickledPayload(codec)
    if kind is PayloadKind.ARROW:
        return ArrowPayload(pa.ipc.read_schema(pa.py_buffer(index.schema)), codec)
    raise UsageError(f"a map output of {kind.name} is not opened here")


def _is_alike(one: _Payload, other: _Payload) -> bool:
    if one.codec is not other.codec or one.kind is not other.kind:
        return False
    return not isinstance(one, ArrowPayload) or one.schema.equals(cast(ArrowPayload, other).schema)
