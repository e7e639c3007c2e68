"""`Input`: some subpartitions of all map outputs of an exchange, from files or through services."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import pairwise
from types import TracebackType
from typing import Any, TypeAlias, cast

import pyarrow as pa

from sortshuffle.engine.checks import as_int
from sortshuffle.engine.map_output import MapOutput, checked_list
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
    """Open some subpartitions of all map outputs of an exchange. The caller must close the input.

    ``subpartitions``: one number or several, such as a range. Each is read once, in the given order within
    every map output.
    ``services``: host:port of shuffle services (`sortshuffle.serve`) by host name. Outputs of these hosts are
    read through their service, all others from their files. ``options``: only read_memory (bytes to read
    ahead), read_threads, service_timeout (seconds), service_secret_file and service_tls_* count.

    Raises `UsageError` if the outputs are of several exchanges, differ in schema, kind or number of
    subpartitions, or share a map index; if a subpartition does not exist; and if files are on another host
    and not visible here. Raises `DataLossError`, whose ``place.writer`` names the lost output, and
    `ServiceUnavailableError` and `AuthenticationError` for services.
    """
    ordered = sorted(checked_list(outputs), key=lambda output: output.map_index)
    return Input(ordered, _subpartition_numbers(subpartitions), services, options)


class Input:
    """The data of one consumer. `open_input` makes it. `buffers`, `records` and `batches` are three ways to
    read the same data: call one of them, once.

    Leaving the context, or `close()`, releases files, threads and connections; its iterators then raise
    `StateError`. Not thread-safe, but it reads ahead in its own threads.
    """

    def __init__(
        self,
        outputs: Sequence[MapOutput],
        subpartitions: Sequence[int],
        services: Mapping[str, str],
        options: Options,
    ) -> None:
        _expect_one_exchange(outputs)
        _expect_existing(subpartitions, outputs)
        self._closed = False
        with ExitStack() as opened:
            credit = floating_bytes_of(options.read_memory) if services else 0
            clients = ServiceClients(_client_settings(options, credit))
            opened.callback(clients.close)
            source = _Source(clients, services)
            self._payload: _Payload = PickledPayload(Codec.NONE)  # without outputs: reads as no records
            self._channels: list[InputChannel] = []
            for output in outputs:
                payload, channels = source.open(output, subpartitions)
                if output is outputs[0]:
                    self._payload = payload
                elif not _is_alike(self._payload, payload):
                    raise UsageError(
                        f"{output} and {outputs[0]} hold other things: the outputs of an exchange have one"
                        " schema, or none, and one codec"
                    )
                self._channels += channels
            self._opened = opened.pop_all()
        self._budget = MemoryBudget(options.read_memory - credit)
        self._threads = options.read_threads

    def buffers(self) -> Generator[BufferOrEvent, None, None]:
        """Iterate over all buffers: each has the chunks of its records, or an event. Every event comes once
        for each map output and each subpartition that is read; the last two of a stream are END_OF_DATA and
        END_OF_PARTITION. Raises `UsageError` for batches, and as `RecordGate.buffers` does."""
        return self._closed_with_input(self._gate_of_records().buffers())

    def records(self) -> Generator[Any, None, None]:
        """Iterate over all records, skipping events. Raises as `buffers` does."""
        return self._closed_with_input(self._gate_of_records().records())

    def batches(self) -> Generator[pa.RecordBatch, None, None]:
        """Iterate over all rows, in Arrow batches with the outputs' schema; small batches are joined. Raises
        `UsageError` for records, and `DataLossError` with the place."""
        self._expect_open()
        if isinstance(self._payload, PickledPayload):
            raise UsageError("these outputs hold records: they are read by records() or buffers()")
        gate = InputGate(self._channels, self._payload, self._budget, self._threads, TaskMetrics())
        return self._closed_with_input(gate.batches())

    def close(self) -> None:
        """Release files, threads and connections. Data already returned stays valid. Safe to call again."""
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

    def _closed_with_input(self, items: Generator[Any, None, None]) -> Generator[Any, None, None]:
        """Pass items on. Closing this input closes their generator first, then the connections it uses."""
        self._opened.callback(items.close)
        return self._checked_at_end(items)

    def _checked_at_end(self, items: Generator[Any, None, None]) -> Generator[Any, None, None]:
        yield from items
        self._expect_open()  # a closed generator just ends: do not let that pass for the end of the data

    def _expect_open(self) -> None:
        if self._closed:
            raise StateError("the input is closed: read inside it")


@dataclass(frozen=True, slots=True)
class _Source:
    """Opens map outputs, from files or through services. ``services``: addresses by host."""

    clients: ServiceClients
    services: Mapping[str, str]

    def open(self, output: MapOutput, subpartitions: Sequence[int]) -> tuple[_Payload, list[InputChannel]]:
        """Return the output's payload and channels. Does not keep the index: many together are large."""
        index = self.index(output)
        return _payload_of(index), [self.channel(output, index, number) for number in subpartitions]

    def index(self, output: MapOutput) -> Index:
        """Read an output's index. Raises `DataLossError` that names the output, `UsageError` for files on
        another host."""
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
        """Return the channel of a subpartition, without opening anything yet."""
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
    """Return the settings for services' clients. Raises `UsageError` for a secret that cannot be read."""
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


def _subpartition_numbers(subpartitions: int | Iterable[int]) -> tuple[int, ...]:
    """Return distinct subpartition numbers, in the given order. Raises `UsageError`."""
    is_one = isinstance(subpartitions, str | bytes) or not isinstance(subpartitions, Iterable)
    given = [subpartitions] if is_one else list(cast("Iterable[int]", subpartitions))
    numbers = tuple(as_int("subpartition", each) for each in given)
    if len(set(numbers)) < len(numbers):
        raise UsageError(f"a subpartition is named twice in {numbers}, and its records would come twice")
    return numbers


def _expect_existing(subpartitions: Sequence[int], outputs: Sequence[MapOutput]) -> None:
    """Check the numbers against the first output: by now all are known to have as many subpartitions."""
    if not outputs:
        return
    count = len(outputs[0].subpartition_bytes)
    for subpartition in subpartitions:
        if not 0 <= subpartition < count:
            raise UsageError(f"there is no subpartition {subpartition}: they are 0 to {count - 1}")


def _payload_of(index: Index) -> _Payload:
    """Return the payload that an index declares. Raises `UsageError` for kinds that `Output` cannot write."""
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
