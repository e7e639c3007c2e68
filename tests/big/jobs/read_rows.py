"""Reads every subpartition of one map output, as a task does: BASE [ADDRESS OF A SERVICE]. Prints rows and
the sum of their numbers by subpartition, and whether all are right."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack

from wide_rows import SCHEMA, are_right

from sortshuffle.format.header import Codec
from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.metrics import TaskMetrics
from sortshuffle.payload.arrow import ArrowPayload
from sortshuffle.reading.channel import InputChannel, LocalInputChannel
from sortshuffle.reading.gate import InputGate
from sortshuffle.service.client.client import ServiceClients
from sortshuffle.service.client.client_settings import ClientSettings
from sortshuffle.service.client.remote_input_channel import RemoteInputChannel
from sortshuffle.service.wire.protocol import MapOutputAddress
from sortshuffle.storage.files.extents import extents_of
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.files.reader import read_index

MEMORY = 64 << 20


def main(base: str, address: str) -> None:
    file = PartitionedFile(base)
    index = read_index(file)
    writer = str(index.writer)
    found: dict[str, list[object]] = {"rows": [], "sums": [], "right": []}
    with ExitStack() as stack:
        clients = ServiceClients(ClientSettings(b"", timeout=60.0, floating_bytes=MEMORY // 2))
        stack.callback(clients.close)
        for subpartition in range(index.header.subpartitions):
            extents = tuple(extents_of(index, subpartition))
            channel: InputChannel = LocalInputChannel(file, index.header.file_id, 17, writer, extents)
            if address:
                output = MapOutputAddress("app-1", 3, 17, 204, index.header.file_id)
                channel = RemoteInputChannel(clients, address, output, "far", file.data_path, writer, extents)
            payload = ArrowPayload(SCHEMA, Codec.NONE)
            gate = InputGate([channel], payload, MemoryBudget(MEMORY), 4, TaskMetrics())
            rows = total = 0
            right = True
            for batch in gate.batches():
                rows += batch.num_rows
                total += int(batch["id"].to_numpy().sum())
                right &= are_right(batch)
            found["rows"].append(rows)
            found["sums"].append(total)
            found["right"].append(right)
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "")
