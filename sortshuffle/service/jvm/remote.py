"""`RemoteBlocks`: the blocks of one request that lie on other hosts, read through their shuffle services.

The engine reads for a JVM of its own host. It uses credit, reconnects and verifies as every remote reader
does (`service.client.client`, `reading.fetcher`).

    the service                                 what is lost                 what Spark does

    does not answer for its time-out            all its blocks               runs that host's map tasks again
    refuses for its time-out (no room or time)  all its blocks               the same
    fails at one map output for its time-out    that one; all its blocks if  runs those map tasks again
                                                it fails at `MOST_REFUSED`
    breaks the protocol, or lacks the secret    nothing                      the task fails
    cannot be asked for its time-out: no        nothing                      the task fails, and its error
    descriptors, memory, ports or threads here                               names the remedy
    is gone, but the cache has the records of   nothing                      goes on
    all its blocks

`locate` and `check_known` report losses first, and any other error only if there is no loss: Spark must hear
of the losses at other hosts. `pieces` raises every error at once. A thread or memory that is missing in the
middle of records is not waited for.

A removed shuffle is dropped from the cache. Data added just after that stays until its room is needed.

Owns its connections. The threads that `locate` starts end with it.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from sortshuffle.errors import (
    AuthenticationError,
    CorruptDataError,
    DataLossError,
    Place,
    ProtocolError,
    ServiceUnavailableError,
)
from sortshuffle.format.checksum import BytesLike
from sortshuffle.format.encryption import EncryptionKey
from sortshuffle.format.index import Index
from sortshuffle.memory.shared_budget import SharedBudget
from sortshuffle.options import MIB
from sortshuffle.service.client.backoff import Backoff
from sortshuffle.service.client.client import ServiceClient, ServiceClients
from sortshuffle.service.client.client_settings import ClientSettings
from sortshuffle.service.client.remote_input_channel import RemoteInputChannel
from sortshuffle.service.client.shortage import cannot_ask, is_raised_at_once, shortage_behind
from sortshuffle.service.jvm.index_part import IndexPart
from sortshuffle.service.jvm.lost_blocks import (
    PROBLEMS,
    LostBlocksError,
    raise_for,
    with_all_lost,
    without_frames,
)
from sortshuffle.service.jvm.nonlocal_blocks import (
    THREADS,
    FoundBlock,
    IndexOrRecords,
    NonLocalBlocks,
    NonLocalCache,
    PartOrRecords,
    map_in_threads,
    part_for,
    read_ahead_memory,
)
from sortshuffle.service.jvm.outputs import MapOutputCache
from sortshuffle.service.jvm.protocol import Block, ReadRequest
from sortshuffle.service.jvm.single_flight import SingleFlight
from sortshuffle.service.jvm.small_outputs import SmallOutputRecords, read_small
from sortshuffle.service.wire.protocol import MapOutputAddress
from sortshuffle.storage.files.extents import Extent, ExtentReader, extent_of
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.files.ranges import SubpartitionRange
from sortshuffle.storage.files.reader import verified_index

THREAD_NAME = "sortshuffle-read-elsewhere"
# Bytes of other hosts' small map outputs. Counted apart from this host's, so neither displaces the other
MOST_SMALL_BYTES = 32 * MIB
MOST_ASKED = 16  # services asked at a time, so that the time-outs of those that are gone overlap
# Map outputs that a service may refuse in one request before it counts as unreachable. Each refusal takes a
# time-out, and only some of these overlap. A host with a broken disk may refuse hundreds
MOST_REFUSED = 8
# A call makes two requests, each of at most one and a half time-outs. The factor leaves out the time that a
# large index waits for its turn: at most a time-out for each index that is read first
PATIENCE_FACTOR = 3


Answer: TypeAlias = PartOrRecords | Exception
"""The answer for a block: the part of the index, or the records of the map output; a loss; a service that
does not answer or refuses (`ServiceUnavailableError`); or another error, which says nothing about the map
output."""


@dataclass(frozen=True, slots=True)
class RemoteSettings:
    """How the engine reads from other hosts. ``known``: what it knows of their map outputs. ``under_way``:
    map outputs that are being read, by service and file id. ``key``: decrypts them. ``turn``: lets one large
    index be read at a time, over all requests. ``read_ahead``: the memory to read ahead in, for all requests.
    """

    application: str
    clients: ClientSettings
    known: NonLocalCache
    under_way: SingleFlight[IndexOrRecords]
    key: EncryptionKey | None = None
    turn: threading.Lock = field(default_factory=threading.Lock)
    read_ahead: SharedBudget = field(default_factory=read_ahead_memory)

    @staticmethod
    def of(application: str, clients: ClientSettings) -> RemoteSettings:
        """Return the settings of an engine that knows no map outputs yet."""
        known = NonLocalCache(MapOutputCache(most_small_bytes=MOST_SMALL_BYTES))
        return RemoteSettings(application, clients, known, SingleFlight(PATIENCE_FACTOR * clients.timeout))

    def blocks(self, request: ReadRequest, numbered: Sequence[tuple[int, Block]]) -> RemoteBlocks:
        return RemoteBlocks(request, numbered, self)


class RemoteBlocks(NonLocalBlocks):
    """Reads ``blocks``, each with its number in the request. The caller closes it."""

    def __init__(
        self, request: ReadRequest, blocks: Sequence[tuple[int, Block]], settings: RemoteSettings
    ) -> None:
        super().__init__(blocks, settings.read_ahead)
        self._request = request
        self._settings = settings
        self._clients = ServiceClients(settings.clients, settings.turn)
        self._trusted: list[tuple[int, Block]] = []  # those whose index was known when they were located

    def locate(self) -> None:
        answers = self._answers(self._blocks)
        self._raise_for(answers)
        self._found = [
            FoundBlock(number, block, self._path(block), known)
            for number, block in self._blocks
            if not isinstance(known := answers[number], Exception)
        ]

    def check_known(self) -> None:
        # not those that were just asked for: a refusal takes a time-out
        trusted = self._trusted
        self._settings.known.forget_indexes(block.file_id for _, block in trusted)
        self._raise_for(self._answers(trusted))

    def _raise_for(self, answers: Mapping[int, Answer]) -> None:
        """Raise `LostBlocksError` if some of these are losses, or services that do not answer. If there are
        none, raise the first of the other errors."""
        lost = {number: str(answer) for number, answer in answers.items() if _is_lost_alone(answer)}
        unreachable = {
            self._service(block): str(answers[number])
            for number, block in self._blocks
            if isinstance(answers.get(number), ServiceUnavailableError) and number not in lost
        }
        losses = [LostBlocksError(lost, lost.values())] if lost else []
        if unreachable:
            losses.append(self._unreachable(unreachable))
        raise_for(losses, answers.values(), self._request.shuffle)

    def _answers(self, blocks: Sequence[tuple[int, Block]]) -> dict[int, Answer]:
        """Return the answer for each of ``blocks``, by number. Asks services about unknown blocks, several at
        a time: each takes two round trips."""
        # 1. use what is known
        answers: dict[int, Answer] = {**self._settings.known.parts(blocks)}
        self._trusted = [each for each in blocks if isinstance(answers.get(each[0]), IndexPart)]
        # 2. ask the services about the other blocks, alternating between services
        unknown = self._alternate_services([each for each in blocks if each[0] not in answers])
        if unknown:
            failures = _Failures()
            services = {block.service for _, block in unknown}
            most = max(THREADS, min(len(services), MOST_ASKED))
            asked = map_in_threads(lambda each: self._ask(each[1], failures), unknown, most, THREAD_NAME)
            answers.update(zip([number for number, _ in unknown], asked, strict=True))
        return answers

    def _alternate_services(self, blocks: list[tuple[int, Block]]) -> list[tuple[int, Block]]:
        """Order the blocks so that services alternate: the time-outs of dead services then overlap."""
        seen: Counter[int] = Counter()
        turns = []
        for number, block in blocks:
            turns.append((seen[block.service], number, block))
            seen[block.service] += 1
        return [(number, block) for _, number, block in sorted(turns, key=lambda each: each[:2])]

    def _ask(self, block: Block, failures: _Failures) -> Answer:
        """Return the answer for one block. ``failures``: failures of this request, not tried again."""
        service = self._service(block)
        if (known := failures.get(service, block.file_id)) is not None:
            return known
        try:
            return part_for(block, self._read_once(service, block))
        except DataLossError as error:
            return without_frames(error)
        except PROBLEMS as error:
            return failures.note(service, block.file_id, without_frames(error))

    def _read_once(self, service: str, block: Block) -> IndexOrRecords:
        """Read a map output on behalf of all requests that want it at this time."""
        key, settings = service.encode() + block.file_id, self._settings
        backoff = Backoff(settings.clients.timeout)
        while True:
            try:
                return settings.under_way.do(
                    key, lambda: settings.known.get(block.file_id) or self._read(service, block)
                )
            except (RuntimeError, MemoryError) as error:
                _wait_for_room(error, backoff)

    def forget(self) -> None:
        self._settings.known.forget_indexes(block.file_id for _, block in self._blocks)

    def pieces(self) -> Iterator[BytesLike]:
        try:
            yield from self._pieces()
        except DataLossError as error:
            raise self._lost(error.place, str(error)) from error
        except PROBLEMS as error:
            shortage = shortage_behind(error)
            if shortage is not None:
                raise cannot_ask(self._service_behind(error), shortage) from error
            if not isinstance(error, ServiceUnavailableError):
                raise
            if error.refused is not None:
                raise self._lost(error.refused, str(error)) from error
            raise self._unreachable({error.address: str(error)}) from error

    def close(self) -> None:
        super().close()
        self._clients.close()

    def _fetch_records(self) -> Generator[tuple[int, BytesLike], None, None]:
        """Fetch records as others do. Begin again if this process has no thread or memory, and nothing has
        come yet."""
        backoff = Backoff(self._settings.clients.timeout)
        has_come = False
        while True:
            try:
                with closing(super()._fetch_records()) as fetched:
                    for piece in fetched:
                        has_come = True
                        yield piece
                return
            except (RuntimeError, MemoryError) as error:
                if has_come:
                    raise
                _wait_for_room(error, backoff)

    def _service_behind(self, error: BaseException) -> str:
        """Return the service that an error of fetching concerns: the one that it names, or else that of the
        block whose records are wanted."""
        if isinstance(error, ServiceUnavailableError):
            return error.address
        left = self._found[max(0, self.blocks_begun - 1) :]
        wanted = next((each for each in left if isinstance(each.known, IndexPart)), left[0])
        return self._service(wanted.block)

    def _lost(self, place: Place, why: str) -> LostBlocksError:
        """Return an error with the blocks of this place's map output, and all that services report lost."""
        lost = LostBlocksError(self._blocks_of(place), [why])
        self._settings.known.forget_indexes(each.block.file_id for each in self._found)
        self._found.clear()
        return with_all_lost(lost, self.locate, self._request.shuffle)

    def _unreachable(self, services: dict[str, str]) -> LostBlocksError:
        """Return an error that names all blocks of services that do not answer. ``services``: why, by
        service."""
        silent = {number for number, each in enumerate(self._request.services) if each in services}
        blocks = [number for number, block in self._blocks if block.service in silent]
        return LostBlocksError(blocks, services.values(), silent)

    def _read(self, service: str, block: Block) -> IndexOrRecords:
        output, path = self._address(block), self._path(block)
        client = self._clients.client(service)
        index = verified_index(client.index(output, service), path, block.file_id)

        def read_whole() -> SmallOutputRecords | None:
            try:
                reader = _WholeReader(client, output, service, path, index, self._settings.key)
                return read_small(reader, index)
            except CorruptDataError:
                return None  # maybe damaged on the way: the read by extents asks the service what it finds

        return self._settings.known.keep(index, self._file(block), read_whole)

    def _channels(self, found: FoundBlock) -> Iterator[RemoteInputChannel]:
        """Yield one channel for each region: one request brings the extents of neighbouring subpartitions."""
        block, part = found.block, found.part
        service = self._service(block)
        for region, row in enumerate(part.entries):
            filled = np.flatnonzero(row["bytes"]).tolist()
            if filled:
                extents = tuple(extent_of(row[at], region, block.first + at) for at in filled)
                yield RemoteInputChannel(
                    self._clients,
                    service,
                    self._address(block),
                    service,
                    found.path,
                    part.writer,
                    extents,
                    self._settings.key,
                )

    def _address(self, block: Block) -> MapOutputAddress:
        return MapOutputAddress(
            self._settings.application, self._request.shuffle, block.map_index, block.map_id, block.file_id
        )

    def _service(self, block: Block) -> str:
        return self._request.services[block.service]

    def _path(self, block: Block) -> str:
        return self._file(block).data_path

    def _file(self, block: Block) -> PartitionedFile:
        return PartitionedFile.named(
            self._service(block), self._request.shuffle, block.map_index, block.map_id
        )


class _Failures:
    """The failures of one request, which are not tried again: services that do not answer or break the rules,
    single map outputs that services refuse, and a shortage, which ends the asking.
    Several threads may use it: each change is one operation."""

    def __init__(self) -> None:
        self._shortage: OSError | None = None
        self._services: dict[str, Exception] = {}
        self._refused: dict[str, dict[bytes, ServiceUnavailableError]] = {}

    def get(self, service: str, file_id: bytes) -> Exception | None:
        """Return the known failure that makes it useless to ask for this map output."""
        of_service = self._services.get(service) or self._refused.get(service, {}).get(file_id)
        return of_service or self._shortage

    def note(self, service: str, file_id: bytes, error: Exception) -> Exception:
        """Record an error of the look for a map output, other than its loss. Return the error that stands for
        this map output from now on."""
        shortage = shortage_behind(error)
        if shortage is not None:
            self._shortage = lacking = cannot_ask(service, shortage)
            return lacking
        if isinstance(error, ServiceUnavailableError):
            return self._add_unavailable(service, file_id, error)
        if isinstance(error, ProtocolError):
            what = f"the shuffle service at {service} breaks the protocol: {error}"
            return self._add_of_service(service, ProtocolError(what))
        if isinstance(error, AuthenticationError):
            return self._add_of_service(service, error)
        return error

    def _add_unavailable(self, service: str, file_id: bytes, error: ServiceUnavailableError) -> Exception:
        """Record that a service does not answer, or refuses a map output."""
        if error.refused is None:
            return self._add_of_service(service, error)
        refused = self._refused.setdefault(service, {})
        refused[file_id] = error
        if len(refused) < MOST_REFUSED:
            return error
        whole = ServiceUnavailableError(f"it refuses {len(refused)} map outputs, the last time so: {error}")
        return self._add_of_service(service, whole)

    def _add_of_service(self, service: str, error: Exception) -> Exception:
        """Record an error of a service as a whole. Return the first one of that service."""
        return self._services.setdefault(service, error)


def _wait_for_room(error: Exception, backoff: Backoff) -> None:
    """Wait for a thread or memory: ``error`` is a lack of these, which no client has waited for. If it is
    another error, or a time-out is over, raise it."""
    delay = backoff.failed() if is_raised_at_once(error) else None
    if delay is None:
        raise error
    time.sleep(delay)


def _is_lost_alone(answer: Answer) -> bool:
    """Return whether the answer says that this map output cannot be had, and nothing of others."""
    is_refused = isinstance(answer, ServiceUnavailableError) and answer.refused is not None
    return is_refused or isinstance(answer, DataLossError)


class _WholeReader(ExtentReader):
    """Reads all extents of a small map output in one request. ``client``: of its service."""

    def __init__(
        self,
        client: ServiceClient,
        output: MapOutputAddress,
        service: str,
        path: str,
        index: Index,
        key: EncryptionKey | None,
    ) -> None:
        super().__init__(path, str(index.writer), key, output.file_id)
        self._client = client
        self._output = output
        self._service = service
        self._last = index.header.subpartitions - 1

    def fetch(self, size: int, extent: Extent, position: int = 0) -> pa.Buffer:
        """Fetch all extents. ``extent`` stands for them, from the first subpartition that has one."""
        assert (size, position) == (extent.bytes, 0)
        subpartitions = SubpartitionRange(extent.subpartition, self._last)
        return self._client.extents(self._output, self._service, subpartitions, extent)

    def close(self) -> None:
        """Do nothing: no resource is open."""
