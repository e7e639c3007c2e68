"""`merges`: sorted runs from a store whose every answer takes 30 ms, merged with each run's next part fetched
ahead, against one part after the other.

The store is fsspec's memory, which waits before it gives a range. 90 runs of 2 MiB, in buffers of 256 KiB,
with 64 MiB to merge them in: not all runs fit at once, so some are merged in a pass before. ``--quick``: a
tenth of the runs, and so much memory that they do not all fit either.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
from engine import scratch
from fsspec.implementations.memory import MemoryFileSystem
from harness import Side, compare

from sortshuffle.format.header import Codec, FileHeader, PayloadKind
from sortshuffle.format.index import WriterInfo
from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.metrics import TaskMetrics
from sortshuffle.options import KIB, MIB
from sortshuffle.payload.arrow import ArrowPayload
from sortshuffle.payload.ordering import RowOrder
from sortshuffle.reading.gate import InputGate
from sortshuffle.reading.stored_channel import StoredInputChannel
from sortshuffle.storage.files.extents import extents_of
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.stored.stored_reader import read_stored_index
from sortshuffle.storage.writer import PartitionedFileWriter

RUNS = 90
BUFFERS = 8  # of a run
BUFFER = 256 * KIB
COLUMNS = 16
MEMORY = 64 * MIB
ANSWER_SECONDS = 0.03
SCHEMA = pa.schema([(f"c{number}", pa.int64()) for number in range(COLUMNS)])
PAYLOAD = ArrowPayload(SCHEMA, Codec.NONE)


class SlowStore(MemoryFileSystem):
    """It takes its time for a range."""

    protocol = "slow"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(path.replace("slow://", "memory://"))

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **how: object) -> bytes:
        if end is not None:  # an index has none
            time.sleep(ANSWER_SECONDS)
        data: bytes = super().cat_file(path, start, end)
        return data


class OneAfterTheOther(StoredInputChannel):
    @property
    def held_parts(self) -> int:
        return 1


def written(number: int, random: np.random.Generator) -> PartitionedFile:
    """A run of sorted keys in a map output of its own."""
    rows = BUFFER // (8 * COLUMNS)
    keys = np.sort(random.integers(0, 1 << 60, rows * BUFFERS))
    batch = pa.record_batch([pa.array(keys)] * COLUMNS, schema=SCHEMA)
    seconds = TaskMetrics().seconds
    sealed = [PAYLOAD.encode(batch.slice(at * rows, rows), seconds) for at in range(BUFFERS)]
    file = PartitionedFile.named("slow://merges", 0, number, number)
    with PartitionedFileWriter(file, FileHeader(bytes(16), 1, 0, Codec.NONE, PayloadKind.ARROW)) as writer:
        writer.start_region()
        writer.write_extents([(0, sealed)])
        writer.finish_region()
        return writer.finish(WriterInfo(), SCHEMA.serialize().to_pybytes())


def channels(kind: type[StoredInputChannel], files: list[PartitionedFile]) -> list[StoredInputChannel]:
    return [
        kind(file, bytes(16), number, "", tuple(extents_of(read_stored_index(file), 0)))
        for number, file in enumerate(files)
    ]


def side(name: str, runs: list[StoredInputChannel], memory: int, directory: Path) -> Side:
    def run() -> tuple[int, int]:
        gate = InputGate(runs, PAYLOAD, MemoryBudget(memory), 4, TaskMetrics(), new_files(directory / "pass"))
        moved = [(batch.nbytes, batch.num_rows) for batch in gate.sorted_batches(RowOrder((0,)))]
        return sum(size for size, _ in moved), sum(rows for _, rows in moved)

    return Side(name, run)


def new_files(base: Path) -> Callable[[FileHeader], PartitionedFileWriter]:
    """For the passes of a merge, whose files lose their names at once."""
    numbers = iter(range(1 << 30))

    def new_file(header: FileHeader) -> PartitionedFileWriter:
        return PartitionedFileWriter(PartitionedFile(f"{base}-{next(numbers)}"), header)

    return new_file


def main(quick: bool) -> None:
    fsspec.register_implementation("slow", SlowStore, clobber=True)
    random = np.random.default_rng(1)
    runs, memory = (RUNS // 10, MEMORY // 3) if quick else (RUNS, MEMORY)
    files = [written(number, random) for number in range(runs)]
    milliseconds = round(ANSWER_SECONDS * 1000)
    with scratch() as directory:
        compare(
            "merges",
            f"{len(files)} runs of 2 MiB from a store of {milliseconds} ms, in {memory / MIB:.0f} MiB",
            side("ahead", channels(StoredInputChannel, files), memory, directory),
            side("one after the other", channels(OneAfterTheOther, files), memory, directory),
            rounds=1 if quick else 5,
            answer_seconds=ANSWER_SECONDS,
        )
    SlowStore.store.clear()
