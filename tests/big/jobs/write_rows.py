"""Writes one map output: DIRECTORY, ROWS, SUBPARTITIONS. Prints rows by subpartition."""

from __future__ import annotations

import json
import sys

from engine import WRITER, new_output
from wide_rows import SCHEMA, rows

AT_ONCE = 1024  # rows of a batch: 16 MiB
MEMORY = 128 << 20


def main(directory: str, total: int, subpartitions: int) -> None:
    output = new_output(directory, SCHEMA, memory=MEMORY, subpartitions=subpartitions)
    for first in range(0, total, AT_ONCE):
        output.partition.write(rows(first, min(AT_ONCE, total - first)))
    output.partition.finish(WRITER)
    counts = output.partition.subpartition_records.tolist()
    print(json.dumps({"base": output.file.base, "rows": counts}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
