"""Writes one batch of more than 2 GiB, and reads it: DIRECTORY, ROWS of 16 KiB. Prints what came back."""

from __future__ import annotations

import json
import sys

import pyarrow as pa
from engine import WRITER, new_output
from wide_rows import are_right, rows

from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.metrics import TaskMetrics
from sortshuffle.reading.channel import LocalInputChannel
from sortshuffle.reading.gate import InputGate
from sortshuffle.storage.files.extents import extents_of
from sortshuffle.storage.files.reader import read_index

SUBPARTITIONS = 3
MEMORY = 128 << 20


def main(directory: str, total: int) -> None:
    batch = rows(0, total, pa.large_binary())
    size = batch.nbytes
    output = new_output(directory, batch.schema, memory=MEMORY, subpartitions=SUBPARTITIONS)
    output.partition.write(batch)
    del batch
    output.partition.finish(WRITER)
    index = read_index(output.file)
    count = numbers = 0
    right = True
    for subpartition in range(SUBPARTITIONS):
        extents = tuple(extents_of(index, subpartition))
        channel = LocalInputChannel(output.file, index.header.file_id, 17, str(index.writer), extents)
        for found in InputGate([channel], output.payload, MemoryBudget(MEMORY), 2, TaskMetrics()).batches():
            count += found.num_rows
            numbers += int(found["id"].to_numpy().sum())
            right &= are_right(found)
    print(json.dumps({"bytes": size, "rows": count, "sum": numbers, "right": right}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
