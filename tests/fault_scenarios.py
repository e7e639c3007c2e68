"""What is done while a fault is put at each call: a function for each scenario.

It is given the directory that it may write in, and one with what was made for it beforehand (`PREPARED`). It
raises what the package raises, and returns what must be the same whatever happens, unless it raises.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import faults
import jvm_client
import numpy as np
import pyarrow as pa
import serving
from engine import ID, Pair, new_output, write_pair
from engine import Region as EngineRegion
from map_outputs import MapOutput, consumer_of, write_map

from sortshuffle.format.buffer import seal
from sortshuffle.format.header import Codec, FileHeader, PayloadKind
from sortshuffle.format.index import Index, WriterInfo, unpack_index
from sortshuffle.homes import janitor
from sortshuffle.homes.home_listings import HomeListings
from sortshuffle.homes.owner import HOME_ROOT, OWNER_FILE, Owner
from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.metrics import TaskMetrics
from sortshuffle.payload.arrow import ArrowPayload
from sortshuffle.payload.ordering import RowOrder
from sortshuffle.reading.gate import InputGate
from sortshuffle.service.client.client import ServiceClients
from sortshuffle.service.client.client_settings import ClientSettings
from sortshuffle.service.client.remote_input_channel import RemoteInputChannel
from sortshuffle.service.server.shuffle_service import ShuffleService
from sortshuffle.service.wire.protocol import MapOutputAddress
from sortshuffle.storage.files import spare_files, urls
from sortshuffle.storage.files.extents import extents_of
from sortshuffle.storage.files.partitioned_file import (
    DATA_SUFFIX,
    INDEX_SUFFIX,
    PARTIAL_SUFFIX,
    PartitionedFile,
)
from sortshuffle.storage.stored import stored_pair, stored_reader
from sortshuffle.storage.writer import PartitionedFileWriter

SCHEMA = pa.schema([("key", pa.int64()), ("text", pa.string())])
KIB = 1 << 10
PATIENCE = 10.0  # seconds that a client tries to reach a service


def rows(count: int, seed: int) -> pa.RecordBatch:
    random = np.random.default_rng(seed)
    keys = np.sort(random.integers(0, 1000, count))
    return pa.record_batch([pa.array(keys), pa.array([f"row {key:06d}" for key in keys])], schema=SCHEMA)


def digest(batches: Iterable[pa.RecordBatch]) -> str:
    """Of all rows, in their order."""
    found = hashlib.sha256()
    for batch in batches:
        found.update(repr(batch.to_pydict()).encode())
    return found.hexdigest()


def table_digest(batches: Iterable[pa.RecordBatch]) -> str:
    """The same, however the rows are cut into batches."""
    return digest([pa.Table.from_batches(list(batches), SCHEMA).combine_chunks().to_batches()[0]])


def home_in(directory: str) -> str:
    home = os.path.join(directory, HOME_ROOT, "app-1", "home")
    os.makedirs(home, exist_ok=True)
    return home


# ---- a map task that writes rows ---------------------------------------------------------------------------


def write(directory: str, prepared: str) -> str:
    """A map output of several regions. What is in it is read by whoever looks at the directory."""
    output = new_output(home_in(directory), SCHEMA, memory=32 * KIB, codec=Codec.LZ4, buffer_size=4 * KIB)
    try:
        with output.partition as partition:
            for seed in range(4):
                partition.write(rows(500, seed))
            partition.finish(WriterInfo())
    finally:
        assert output.budget.used == 0
    return ""


def write_over(directory: str, prepared: str) -> str:
    """The same, over a spare file that is longer."""
    spares = Path(home_in(directory)) / spare_files.DIRECTORY
    spares.mkdir()
    (spares / f"old{spare_files.SUFFIX}").write_bytes(b"old " * 100 * KIB)
    spare_files.SMALLEST = KIB
    return write(directory, prepared)


def abandon(directory: str, prepared: str) -> str:
    """The same, given up in the middle."""
    output = new_output(home_in(directory), SCHEMA, memory=32 * KIB, codec=Codec.LZ4, buffer_size=4 * KIB)
    try:
        with output.partition as partition:
            partition.write(rows(500, 0))
    finally:
        assert output.budget.used == 0
    return ""


# ---- a reduce task -----------------------------------------------------------------------------------------


def make_outputs(prepared: str) -> None:
    for number in range(4):
        write_map(
            prepared,
            SCHEMA,
            [{0: [rows(200, 10 * number + region)]} for region in range(3)],
            map_index=number,
        )


def _outputs(prepared: str) -> list[MapOutput]:
    files = [PartitionedFile.named(prepared, 1, number, number) for number in range(4)]
    payload = ArrowPayload(SCHEMA, Codec.LZ4)
    return [MapOutput(file, n.to_bytes(16, "little"), n, payload) for n, file in enumerate(files)]


def read(directory: str, prepared: str) -> str:
    """All rows of some map outputs, read ahead in threads."""
    consumer = consumer_of(_outputs(prepared), memory=64 * KIB, threads=2)
    try:
        return table_digest(consumer.gate.batches())
    finally:
        assert consumer.budget.used == 0


def _merge_file(home: str, numbers: Iterator[int], header: FileHeader) -> PartitionedFileWriter:
    """As tasks name it."""
    base = PartitionedFile.named(home, 3, 17, 204).base
    name = f"merge-{next(numbers)}-{os.path.basename(base)}"
    return PartitionedFileWriter(PartitionedFile(os.path.join(home, name)), header)


def merge(directory: str, prepared: str) -> str:
    """The same in key order, with so little memory that runs are put aside in several passes."""
    outputs = _outputs(prepared)
    budget = MemoryBudget(24 * KIB)
    gate = InputGate(
        [each.channel() for each in outputs],
        outputs[0].payload,
        budget,
        2,
        metrics := TaskMetrics(),
        partial(_merge_file, home_in(directory), itertools.count()),
    )
    try:
        found = table_digest(gate.sorted_batches(RowOrder((0,))))
        assert metrics.counts["bytes_spilled"] > 0
        return found
    finally:
        assert budget.used == 0


# ---- a janitor ---------------------------------------------------------------------------------------------


def swept_home(directory: str, owner: Owner) -> str:
    """A home with a map output that Spark knows, one that it has forgotten, and what a killed task has left;
    all of them old. Made without a call that could fail."""
    home = home_in(directory)
    (Path(home) / OWNER_FILE).write_text(json.dumps(asdict(owner)))
    known = Path(directory) / "spark" / "00"
    known.mkdir(parents=True)
    (known / f"shuffle_0_{KNOWN}_0.index").touch()
    for attempt, suffix in ((KNOWN, ""), (KNOWN + 1, ""), (KNOWN + 2, PARTIAL_SUFFIX)):
        base = PartitionedFile.named(home, 3, 17, attempt).base
        for kind in (DATA_SUFFIX, INDEX_SUFFIX):
            Path(base + kind + suffix).touch()
            os.utime(base + kind + suffix, (1, 1))
    return home


KNOWN = 204


def make_owner(prepared: str) -> None:
    """The host, which lives."""
    owner = serving.owner(os.getppid())
    (Path(prepared) / OWNER_FILE).write_text(json.dumps(asdict(owner)))


def _owner(directory: str, prepared: str) -> Owner:
    found = json.loads((Path(prepared) / OWNER_FILE).read_text())
    return Owner(**{**found, "local_directories": (os.path.join(directory, "spark"),), "grace": 1.0})


def sweep(directory: str, prepared: str) -> str:
    """A janitor of a live executor looks, and looks again."""
    owner = _owner(directory, prepared)
    home = swept_home(directory, owner)
    listings = HomeListings()
    for _ in range(2):
        janitor._tidy(home, owner, listings, whole=True)
    return str(sorted(os.listdir(home)))


class AnyFileSystem(tuple[str, ...]):
    def __contains__(self, kind: object) -> bool:
        return True


def drop(directory: str, prepared: str) -> str:
    """A janitor sees Spark drop what it knew, and keeps the data file as a spare."""
    spare_files.FILE_SYSTEMS = AnyFileSystem()
    owner = _owner(directory, prepared)
    home = swept_home(directory, owner)
    data_path = PartitionedFile.named(home, 3, 17, KNOWN).data_path
    os.truncate(data_path, spare_files.SMALLEST)
    times = itertools.count()
    listings = HomeListings(lambda: float(next(times)))
    janitor._look(home, owner, listings)
    os.unlink(Path(directory) / "spark" / "00" / f"shuffle_0_{KNOWN}_0.index")
    for _ in range(3):
        janitor._look(home, owner, listings)
        janitor._trim_spares(home)
    return ""


def janitor_at_the_end(directory: str, prepared: str) -> str:
    """The whole life of a janitor whose executor has ended."""
    home = swept_home(directory, replace(_owner(directory, prepared), started=1))
    janitor.TICK = 0.02
    janitor.main([home])
    return str(os.path.lexists(home))


# ---- a shuffle service and its client ----------------------------------------------------------------------


def make_served(prepared: str) -> None:
    payloads = [[bytes([number]) * 3000 for number in range(region, region + 4)] for region in range(3)]
    write_pair(prepared, Pair(2, 1, [EngineRegion({0: region, 1: region}) for region in payloads]))
    owner = serving.owner(os.getppid())  # the host, which outlives all
    (Path(prepared) / OWNER_FILE).write_text(json.dumps(asdict(owner)))


def served_home(directory: str, prepared: str) -> PartitionedFile:
    """A home below the directory with the map output in it, made without a call that could fail."""
    home = Path(directory) / HOME_ROOT / serving.APPLICATION / "home"
    home.mkdir(parents=True)
    for path in Path(prepared).iterdir():
        os.link(path, home / path.name)
    return PartitionedFile.named(str(home), 3, 17, 204)


def fetched(address: str, file: PartitionedFile, index: Index) -> str:
    """The index, and everything of a subpartition, once as whole extents and once in parts."""
    output = MapOutputAddress(serving.APPLICATION, 3, 17, 204, index.header.file_id)
    clients = ServiceClients(ClientSettings(timeout=PATIENCE))
    found = hashlib.sha256()
    try:
        found.update(clients.client(address).index(output, "far"))
        extents = tuple(extents_of(index, 1))
        channel = RemoteInputChannel(clients, address, output, "far", file.data_path, "somebody", extents)
        for part_bytes in (None, 4096):
            with channel.open(extents) as reader:
                for extent in extents:
                    parts = (
                        [reader.read_extent(extent)]
                        if part_bytes is None
                        else reader.read_parts(extent, part_bytes)
                    )
                    for part in parts:
                        for each in part.buffers:
                            found.update(part.memory.slice(each.start, each.size))
    finally:
        clients.close()
        assert clients.floating.free == clients.floating.total
    return found.hexdigest()


def index_of(file: PartitionedFile) -> Index:
    """Of a finished map output, read without a call that could fail."""
    return unpack_index(Path(file.index_path).read_bytes())


def service(directory: str, prepared: str) -> str:
    """What a client reads of a service in the same process."""
    file = served_home(directory, prepared)
    listening = socket.create_server(("127.0.0.1", 0))
    with closing(listening), ShuffleService(listening, lambda: [directory], serving.SMALL) as running:
        return fetched(running.address, file, index_of(file))


def killed_service(directory: str, prepared: str) -> str:
    """The same from a service in a process of its own, which is started again when it was killed, as a
    supervisor does."""
    file = served_home(directory, prepared)
    # the first service's alone: a call of the client may look the same, and would leave that service behind
    fault = faults.active().fault
    faults.active().end()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        stop = threading.Event()
        keeper = threading.Thread(target=_keep_serving, args=(listening, directory, fault, stop))
        keeper.start()
        try:
            return fetched(address, file, index_of(file))
        finally:
            stop.set()
            keeper.join()


def _keep_serving(
    listening: socket.socket, directory: str, fault: faults.Fault | None, stop: threading.Event
) -> None:
    while not stop.is_set():
        child = os.fork()
        if not child:
            try:
                faults.active().fault = fault
                ShuffleService(listening, lambda: [directory], serving.SMALL).run()
            finally:
                os._exit(1)
        fault = None
        while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0):
            if stop.wait(0.005):
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return
        if os.WIFSIGNALED(ended[1]):  # by the fault, which its own process cannot tell any more
            faults.active().happened = True


# ---- the engine behind Spark's shuffle manager -------------------------------------------------------------

MAP_RECORDS = [(number % 3, b"record %d " % number * 200) for number in range(60)]


class RefusedError(Exception):
    """What the engine told the JVM."""


def manager(directory: str, prepared: str) -> str:
    """A map output that a JVM writes and reads. Spark runs a task that failed again, once here."""
    with jvm_client.serving(Path(directory)) as engine:
        refused: list[str] = []
        for attempt in range(2):
            try:
                return _map_task(engine, 7 + attempt)
            except (RefusedError, EOFError, ConnectionError) as error:
                refused.append(f"{type(error).__name__}: {error}")
                wrong = isinstance(error, RefusedError) and directory not in str(error)
                assert not wrong, f"no place is named: {error}"
        raise AssertionError(f"both attempts failed: {refused}")


def _map_task(engine: jvm_client.Serving, map_id: int) -> str:
    with jvm_client.connected(engine.path) as client:
        shared = client.share(1 << 16)
        client.begin(map_id, 3)
        for start in range(0, len(MAP_RECORDS), 20):
            records = MAP_RECORDS[start : start + 20]
            if shared is None:
                client.frame(records)
            else:
                client.shared_frame(shared, 0, records)
                _done(client)
        client.request(jvm_client.FINISH)
        file_id = _done(client)[:16]
        answer = client.read([jvm_client.Block(map_id, 0, 0, 3, file_id)])
        if answer.status != jvm_client.DONE:
            raise RefusedError(answer.text)
        client.remove()
    return hashlib.sha256(answer.data).hexdigest()


def _done(client: jvm_client.JvmClient) -> bytes:
    status, body = client.reply()
    if status != jvm_client.DONE:
        raise RefusedError(body.decode())
    return body


# ---- a commit to a store -----------------------------------------------------------------------------------


def store_url(kind: str, directory: str) -> str:
    """Of what a run has of a store."""
    return f"s3://shuffles{directory}" if kind == "s3" else f"file://{directory}/mounted"


def store(kind: str, directory: str, prepared: str) -> str:
    """A map output of more than one part, in a store."""
    url = store_url(kind, directory)
    opened = urls.open_store
    with ExitStack() as stack:
        for module in (stored_pair, stored_reader):
            stack.callback(setattr, module, "open_store", module.open_store)
            module.open_store = lambda path: (faults.FaultyStore(opened(path)[0]), opened(path)[1])
        file = PartitionedFile.named(urls.application_url(url, "app-1"), 3, 17, 204)
        with PartitionedFileWriter(file, FileHeader(ID, 1, 0, Codec.NONE, PayloadKind.FRAMES)) as writer:
            writer.start_region()
            writer.write_extents([(0, [seal(bytes([n]) * PART, PART, records=1) for n in range(2)])])
            writer.finish_region()
            writer.finish(WriterInfo())
    return ""


PART = 5 << 20  # two of them are more than one part of an upload


SCENARIOS: dict[str, Callable[[str, str], str]] = {
    "write": write,
    "write over": write_over,
    "abandon": abandon,
    "read": read,
    "merge": merge,
    "sweep": sweep,
    "drop": drop,
    "janitor": janitor_at_the_end,
    "service": service,
    "killed service": killed_service,
    "manager": manager,
    "s3": partial(store, "s3"),
    "mounted": partial(store, "mounted"),
}
PREPARED: dict[str, Callable[[str], None]] = {
    "read": make_outputs,
    "merge": make_outputs,
    "sweep": make_owner,
    "drop": make_owner,
    "janitor": make_owner,
    "service": make_served,
    "killed service": make_served,
}
"""What a scenario needs beforehand."""
OPENED: dict[str, Callable[[], object]] = {"s3": lambda: urls.open_store("s3://shuffles")[0].ls("shuffles")}
"""What a scenario's library keeps for the life of a process: its threads, and its connections."""
