"""`service`: remote reads through the shuffle service, against a bare socket that moves the same bytes.

Three processes: the sending side on one core, the receiving side on another, and this one, which measures and
does nothing meanwhile. Bare: one Python process sends from one buffer, the other receives into one, over one
loopback connection. Ours: `ShuffleService` on the first core, and on the second a consumer task, `InputGate`
over remote channels: requests, credit, checksums, record batches, two joined for a call. The
files are in the page cache. The same bytes in 1, 16 and 256 channels, one map output each.

Then 64 consumers at once of one map output, over 64 connections: how much a read from the disk brings, on
average, and the most memory that the service had.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import secrets
import socket
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from engine import distinct_batches, scratch
from harness import MEGA, Side, compare, record
from rows import SCHEMA

from sortshuffle.format.buffer import SealedBuffer
from sortshuffle.format.header import Codec, FileHeader, PayloadKind
from sortshuffle.format.index import WriterInfo
from sortshuffle.homes.owner import HOME_ROOT
from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.metrics import TaskMetrics
from sortshuffle.options import KIB, MIB
from sortshuffle.payload.arrow import ArrowPayload
from sortshuffle.reading.gate import InputGate
from sortshuffle.service.client.client import ServiceClients
from sortshuffle.service.client.client_settings import ClientSettings
from sortshuffle.service.client.remote_input_channel import RemoteInputChannel
from sortshuffle.service.server.shuffle_service import ServerSettings, ShuffleService, listen
from sortshuffle.service.wire.protocol import MapOutputAddress
from sortshuffle.storage.files.extents import extents_of
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.files.reader import read_index
from sortshuffle.storage.writer import PartitionedFileWriter

APPLICATION = "bench"
CHANNELS = (1, 16, 256)
READERS = 64
READ_MEMORY = 64 * MIB
READ_THREADS = 4  # the default of spark.sortshuffle.read.threads
EXTENT = 4 * MIB  # what 64 subpartitions leave of a region of 256 MiB
EXTENTS_PER_FETCH = 2  # 8 MiB, as a task fetches them
MESSAGE_ROWS = 15_000  # 1 MB a message
CHUNK = 256 * KIB  # of the bare sender and receiver: smaller and larger ones are slower
ROUNDS = 5

_SPAWN = multiprocessing.get_context("spawn")


@dataclass(frozen=True, slots=True)
class Output:
    """A map output, as the consumer's process is told of it."""

    base: str
    address: MapOutputAddress
    subpartitions: int


def write_output(home: Path, number: int, size: int, subpartitions: int, extent: int) -> Output:
    """A map output of about ``size`` bytes, in extents of about ``extent`` bytes."""
    messages = sealed_messages()
    per_extent = max(1, extent // messages[0].bytes)
    regions = max(1, size // (subpartitions * per_extent * messages[0].bytes))
    file = PartitionedFile.named(str(home), 0, number, number)
    header = FileHeader(secrets.token_bytes(16), subpartitions, 0, Codec.NONE, PayloadKind.ARROW)
    with PartitionedFileWriter(file, header) as writer:
        for region in range(regions):
            writer.start_region()
            one = [messages[(region + n) % len(messages)] for n in range(per_extent)]
            writer.write_extents([(subpartition, one) for subpartition in writer.write_order])
            writer.finish_region()
        writer.finish(WriterInfo(APPLICATION), SCHEMA.serialize().to_pybytes())
    address = MapOutputAddress(APPLICATION, 0, number, number, header.file_id)
    return Output(file.base, address, subpartitions)


def sealed_messages() -> list[SealedBuffer]:
    payload, seconds = ArrowPayload(SCHEMA, Codec.NONE), TaskMetrics().seconds
    return [payload.encode(batch.slice(0, MESSAGE_ROWS), seconds) for batch in distinct_batches()]


# --- the sending side --------------------------------------------------------------------------------------


def send_bare(core: int, pipe: Connection) -> None:
    """Sends as many bytes as it is asked for, to whoever connects. Ends with the pipe."""
    os.sched_setaffinity(0, {core})
    chunk = memoryview(secrets.token_bytes(CHUNK))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        pipe.send(f"127.0.0.1:{listening.getsockname()[1]}")
        while (size := received(pipe)) is not None:
            connected, _ = listening.accept()
            with connected:
                while size:
                    size -= connected.send(chunk[: min(size, CHUNK)])


def serve(core: int, root: str, pipe: Connection) -> None:
    """Serves, and says when it is asked what it has done so far. Ends with the pipe."""
    os.sched_setaffinity(0, {core})
    service = ShuffleService(listen("127.0.0.1", 0), lambda: [root], ServerSettings())
    with service:
        pipe.send(service.address)
        while received(pipe) is not None:
            status = service.status()
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB
            pipe.send((status.reads_total, status.bytes_read_total, peak))


def received(pipe: Connection) -> Any:
    """What comes through it, None when nothing comes any more."""
    try:
        return pipe.recv()
    except EOFError:
        return None


@contextmanager
def process(target: Any, *arguments: Any) -> Iterator[tuple[Connection, str]]:
    """One of these two, with the pipe to it and its address; ended with the block."""
    ours, its = _SPAWN.Pipe()
    running = _SPAWN.Process(target=target, args=(*arguments, its), daemon=True)
    running.start()
    its.close()
    try:
        yield ours, ours.recv()
    finally:
        ours.close()
        running.join(10)
        running.kill()


# --- the receiving side ------------------------------------------------------------------------------------


def pin(core: int) -> None:
    os.sched_setaffinity(0, {core})


def receive_bare(address: str, size: int) -> int:
    host, port = address.rsplit(":", 1)
    memory = memoryview(bytearray(CHUNK))
    got = 0
    with socket.create_connection((host, int(port))) as connected:
        while got < size:
            got += connected.recv_into(memory)
    return got


def read_remote(address: str, outputs: Sequence[Output], subpartition: int = 0) -> tuple[int, int]:
    """Bytes and rows of one subpartition of all outputs, as a consumer task reads them."""
    clients = ServiceClients(ClientSettings())
    try:
        channels = [channel(clients, address, output, subpartition) for output in outputs]
        payload = ArrowPayload(SCHEMA, Codec.NONE)
        gate = InputGate(channels, payload, MemoryBudget(READ_MEMORY), READ_THREADS, TaskMetrics())
        rows = sum(batch.num_rows for batch in gate.batches())
        return sum(extent.bytes for each in channels for extent in each.extents), rows
    finally:
        clients.close()


def read_all(address: str, output: Output) -> int:
    """All subpartitions of one output, each by a consumer with its own connection, all at once; bytes."""
    with ThreadPoolExecutor(output.subpartitions) as threads:
        return sum(
            threads.map(lambda number: read_verified(address, output, number), range(output.subpartitions))
        )


def read_verified(address: str, output: Output, subpartition: int) -> int:
    """Bytes of one subpartition, with as little work as a consumer can have: 64 gates in one process would
    only measure each other."""
    clients = ServiceClients(ClientSettings())
    try:
        remote, size = channel(clients, address, output, subpartition), 0
        for start in range(0, len(remote.extents), EXTENTS_PER_FETCH):
            extents = remote.extents[start : start + EXTENTS_PER_FETCH]
            with remote.open(extents) as reader:
                size += sum(reader.read_extent(extent).memory.size for extent in extents)
        return size
    finally:
        clients.close()


def channel(clients: ServiceClients, address: str, output: Output, subpartition: int) -> RemoteInputChannel:
    file = PartitionedFile(output.base)
    extents = tuple(extents_of(read_index(file), subpartition))
    return RemoteInputChannel(clients, address, output.address, "bench", file.data_path, "bench", extents)


# --- the cases ---------------------------------------------------------------------------------------------


def main(quick: bool) -> None:
    size = 64 * MIB if quick else 1024 * MIB
    sending, receiving = cores()
    for channels in CHANNELS[: 2 if quick else None]:
        compare_channels(size, channels, sending, receiving, rounds=1 if quick else ROUNDS)
    many_readers(size, sending, receiving)


def cores() -> tuple[int, int]:
    """One for each side; the same, if there is only one."""
    allowed = sorted(os.sched_getaffinity(0))
    return allowed[0], allowed[-1]


def compare_channels(size: int, channels: int, sending: int, receiving: int, *, rounds: int) -> None:
    with ExitStack() as stack:
        root = stack.enter_context(scratch())
        home = home_in(root)
        outputs = [
            write_output(home, number, size // channels, 1, min(EXTENT, size // channels))
            for number in range(channels)
        ]
        moved = sum(os.path.getsize(output.base + ".data") for output in outputs)
        pipe, service = stack.enter_context(process(serve, sending, str(root)))
        bare, sender = stack.enter_context(process(send_bare, sending))
        consumer = stack.enter_context(ProcessPoolExecutor(1, _SPAWN, initializer=pin, initargs=(receiving,)))
        done(consumer.submit(read_remote, service, outputs[:1]))  # imports, and the first look at a file

        def run_bare() -> tuple[int, int]:
            bare.send(moved)
            return done(consumer.submit(receive_bare, sender, moved)), 0

        compare(
            "service",
            f"{moved / MEGA:.0f} MB through {channels} channels, one core each for sending and receiving",
            Side("through the service", lambda: done(consumer.submit(read_remote, service, outputs))),
            Side("bare socket", run_bare),
            rounds=rounds,
            watched=False,
            channels=channels,
            page_cache="warm",
        )
        pipe.send("status")
        print(f"  the service had at most {pipe.recv()[2] / MEGA:.0f} MB")


def many_readers(size: int, sending: int, receiving: int) -> None:
    with ExitStack() as stack:
        root = stack.enter_context(scratch())
        output = write_output(home_in(root), 0, size, READERS, EXTENT)
        pipe, service = stack.enter_context(process(serve, sending, str(root)))
        consumer = stack.enter_context(ProcessPoolExecutor(1, _SPAWN, initializer=pin, initargs=(receiving,)))
        done(consumer.submit(read_remote, service, [output]))  # imports
        peaks = []
        started = time.perf_counter()
        for _ in range(2):  # memory that grows with what was served would show
            moved = done(consumer.submit(read_all, service, output))
            pipe.send("status")
            reads, bytes_read, peak = pipe.recv()
            peaks.append(peak)
        seconds = (time.perf_counter() - started) / len(peaks)
        print(
            f"\nservice: {READERS} consumers of one map output of {moved / MEGA:.0f} MB, a connection each"
            f"\n  {bytes_read / reads / MEGA:.2f} MB per read from disk, {moved / seconds / MEGA:.0f} MB/s,"
            f" the service had at most {' then '.join(f'{peak / MEGA:.0f}' for peak in peaks)} MB"
        )
        record(
            "service readers",
            readers=READERS,
            moved=moved,
            seconds=seconds,
            bytes_per_read=bytes_read // reads,
            peaks=peaks,
        )


def home_in(root: Path) -> Path:
    home = root / HOME_ROOT / APPLICATION / "bench-0"
    home.mkdir(parents=True)
    return home


def done(future: Future[Any]) -> Any:
    return future.result()
