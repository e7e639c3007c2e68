"""Tables of TPC-H as Parquet files, made once by `tpchgen-cli` and kept under `DATA`.

Large tables are several files, so that tasks can share them: four of lineitem and of orders for each unit of
scale (some 50 MB each). The directory appears when it is complete, by a rename.
"""

from __future__ import annotations

import math
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from harness import DATA

QUICK_SCALE = 0.01  # of a tiny case: 2,000 parts, for each of which plain PySpark calls a pandas function
TABLES = ("lineitem", "orders", "partsupp", "customer", "part", "supplier", "nation", "region")
FILES_PER_SCALE = {"lineitem": 4, "orders": 4, "partsupp": 2, "customer": 1, "part": 1}  # of others one file
BYTES_PER_SCALE = 400 << 20  # on disk, about


def all_tables(scale: float) -> Path:
    """A directory with a directory for each table. Raises `OSError` if the disk is too small."""
    return _made(DATA / f"tpch-all-{scale:g}", scale, TABLES)


def some_tables(scale: float, tables: Sequence[str]) -> Path:
    """The same with these tables only."""
    return _made(DATA / f"tpch-{scale:g}", scale, tables)


def _made(directory: Path, scale: float, tables: Sequence[str]) -> Path:
    if not directory.exists():
        DATA.mkdir(exist_ok=True)
        _check_disk(scale)
        partial = directory.with_name(f"{directory.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        for table in tables:
            _generate(table, scale, partial)
        partial.rename(directory)
    return directory


def _generate(table: str, scale: float, into: Path) -> None:
    generator = Path(sys.executable).with_name("tpchgen-cli")
    files = FILES_PER_SCALE.get(table, 0)
    # also a tiny table has several files, if a large one has many: so that several tasks exchange its rows
    parts = max(2 if files > 2 else 1, math.ceil(files * scale))
    command = [str(generator), "parquet", "-s", str(scale), f"--tables={table}", f"--parts={parts}"]
    subprocess.run([*command, f"--output-dir={into}"], check=True, capture_output=True)


def _check_disk(scale: float) -> None:
    needed = 2 * scale * BYTES_PER_SCALE
    free = shutil.disk_usage(DATA).free
    if free < needed:
        raise OSError(
            f"TPC-H at scale {scale:g} needs {needed / 1e9:.1f} GB in {DATA}; {free / 1e9:.1f} GB are free"
        )


def read_once(directory: Path) -> int:
    """Read all files, so that they are in the page cache when something is timed. Their size, bytes."""
    size = 0
    for file in sorted(directory.rglob("*.parquet")):
        with file.open("rb", buffering=0) as opened:
            while piece := opened.read(8 << 20):
                size += len(piece)
    return size
