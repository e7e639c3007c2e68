"""`Input`: some subpartitions of all map outputs of an exchange, from files or through services."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import pairwise
from types import TracebackType
from typing import Any, TypeAlias, cast

import pyarrow as pa

from sortshuffle.engine.checks import whole_number
from sortshuffle.engine.map_output import MapOutput, list_of
from sortshuffle.errors import DataLossError, StateError, UsageError
from sortshuffle.format.header import Codec, PayloadKind
from sortshuffle.format.index import Index
from sortshuffle.homes.host import is_this_host
from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.metrics import TaskMetrics
from sortshuffle.options import Options
from sortshuffle.payload.arrow import ArrowPayload
from sortshuffle.payload.pickled import PickledPayload
from sortshuffle.reading.channel import InputChannel, LocalInputChannel
from sortshuffle.reading.gate import InputGate
from sortshuffle.reading.records import BufferOrEvent, RecordGate
from sortshuffle.service.client.client import ServiceClients
from sortshuffle.service.client.client_settings import ClientSettings, ClientTls, floating_bytes_of
from sortshuffle.service.client.remote_input_channel import RemoteInputChannel
from sortshuffle.service.wire.protocol import MapOutputAddress
from sortshuffle.service.wire.secret import read_secret
from sortshuffle.storage.files.extents import extents_of
from sortshuffle.storage.files.reader import read_index, verified_index

_DEFAULTS = Options()
_NO_SERVICES: Mapping[str, str] = {}
_Payload: TypeAlias = "ArrowPayload | PickledPayload"


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
    found = sorted(list_of(outputs), key=lambda output: output.map_index)
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
    numbers = tuple(whole_number("subpartition", each) for each in given)
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
