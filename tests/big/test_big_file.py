"""One map output of more than 4 GiB: written, read, and served by processes that have far less memory; and
what the commands say of it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from engine import ENVIRONMENT
from limited import run
from serving import make_home

from sortshuffle.cli.main import main
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.files.reader import read_index

GIB = 1 << 30
SUBPARTITIONS = 3
ROWS = 290_000  # of 16 KiB: 4.4 GiB
# bytes of address space; the interpreter, its libraries and threads take 1.1 GiB of it
LIMIT = 1400 << 20
SUMS = [sum(range(s, ROWS, SUBPARTITIONS)) for s in range(SUBPARTITIONS)]
COUNTS = [len(range(s, ROWS, SUBPARTITIONS)) for s in range(SUBPARTITIONS)]
RIGHT = {"rows": COUNTS, "sums": SUMS, "right": [True] * SUBPARTITIONS}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PartitionedFile]:
    home = make_home(tmp_path_factory.mktemp("big") / "disk")
    found = run("write_rows.py", home, ROWS, SUBPARTITIONS, limit=LIMIT)
    assert found["rows"] == COUNTS
    file = PartitionedFile(found["base"])
    yield file
    os.unlink(file.data_path)


def test_offsets_go_beyond_4_gib(written: PartitionedFile) -> None:
    assert os.path.getsize(written.data_path) > 4 * GIB
    index = read_index(written)
    assert int(index.entries["offset"].max()) > 4 * GIB
    assert int(index.entries["bytes"].sum(dtype=np.int64)) > 4 * GIB


def test_it_is_read_in_little_memory(written: PartitionedFile) -> None:
    assert run("read_rows.py", written.base, limit=LIMIT) == RIGHT


def test_it_is_served_in_little_memory(written: PartitionedFile) -> None:
    root = Path(written.base).parents[3]
    command = [str(Path(sys.executable).parent / "sortshuffle"), "serve", str(root), "--memory", "16m"]
    command += ["--host", "127.0.0.1", "--port", "0", "--http-port", "0"]
    with subprocess.Popen(
        ["prlimit", f"--as={LIMIT}", *command], stdout=subprocess.PIPE, env=ENVIRONMENT, text=True
    ) as service:
        try:
            assert service.stdout is not None
            line = service.stdout.readline()
            found = re.search(r" at (127\.0\.0\.1:\d+)", line)
            assert found, line
            assert run("read_rows.py", written.base, found[1], limit=LIMIT) == RIGHT
        finally:
            service.terminate()


@pytest.mark.parametrize("command", ["verify", "dump"])
def test_what_the_commands_say(written: PartitionedFile, command: str) -> None:
    said = CliRunner().invoke(main, [command, written.data_path])
    assert said.exit_code == 0, said.output
    assert re.search(r"4,755,\d{3},\d{3} bytes", said.output)
    assert f"{ROWS:,}" in said.output
