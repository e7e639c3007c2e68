"""The Python of the README runs as it stands there, and gives what it says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from engine import ROOT
from pyspark.sql import SparkSession

import sortshuffle

BLOCKS = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)


def block_with(word: str, directory: Path) -> str:
    """The one block that has the word, with fewer partitions, since each is a task, and with its files in the
    directory: the JVM that runs already works in another one."""
    (block,) = (block for block in BLOCKS if word in block)
    block = block.replace("64", "4")  # before the directory, whose name may have these digits
    for name in ("lineitem", "late", "log"):
        block = block.replace(f'"{name}"', repr(str(directory / name)))
    return block


@pytest.fixture
def names(spark: SparkSession) -> dict[str, Any]:
    """What the README takes for granted: an import, a session."""
    names = {"sortshuffle": sortshuffle, "SparkSession": SparkSession}
    return names | {"spark": spark, "sc": spark.sparkContext}


def test_every_block_is_known() -> None:
    words = ("applyInArrow", "broadcast", "reduceByKey", "spark.sortshuffle.dir")
    others = [block for block in BLOCKS if not any(word in block for word in words)]
    assert [block.splitlines()[-1] for block in others] == [
        'spark = sortshuffle.session(SparkSession.builder.appName("nightly"))'
    ]


def test_the_session(names: dict[str, Any]) -> None:
    running = names["spark"]
    exec(BLOCKS[0], names)
    assert names["spark"].sparkContext is running.sparkContext


def test_python_stages(names: dict[str, Any], tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": [f"{n % 3},{n / 2}" for n in range(12)]}), tmp_path / "lineitem")

    def parse(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            parts = [text.split(",") for text in batch["text"].to_pylist()]
            columns = [[int(k) for k, _ in parts], [float(v) for _, v in parts]]
            yield pa.record_batch(columns, ["k", "v"])

    def score(group: pa.Table) -> pa.Table:
        return pa.table({"k": group["k"].slice(0, 1), "s": [pc.sum(group["v"]).as_py()]})

    exec(block_with("applyInArrow", tmp_path), names | {"parse": parse, "score": score}, names)
    found = {row.k: row.s for row in names["out"].collect()}
    assert found == {k: sum(n / 2 for n in range(12) if n % 3 == k) for k in range(3)}


def test_joins_sorts_and_layouts(names: dict[str, Any], tmp_path: Path) -> None:
    spark = names["spark"]
    lines = spark.createDataFrame([(1, 5, 0), (1, 6, 1), (2, 20, 1)], "suppkey long, delay long, k long")
    suppliers = spark.createDataFrame([(1, "FR"), (2, "DE")], "suppkey long, nation string")
    names |= {"lines": sortshuffle.frame(lines), "suppliers": sortshuffle.frame(suppliers)}
    exec(block_with("broadcast", tmp_path), names)
    written = spark.read.parquet(str(tmp_path / "late")).collect()
    assert sorted(map(tuple, written)) == [("DE", 20), ("FR", 11)]


def test_rdds(names: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "log").write_text("a 1\nb 2\na 3\n")

    def parse(line: str) -> tuple[str, int]:
        word, number = line.split()
        return word, int(number)

    exec(block_with("reduceByKey", tmp_path), names | {"parse": parse}, names)
    assert dict(names["counts"].collect()) == {"a": 4, "b": 2}


def test_a_store(names: dict[str, Any], tmp_path: Path) -> None:
    exec(block_with("spark.sortshuffle.dir", tmp_path), names)
    assert names["builder"]._options == {"spark.sortshuffle.dir": "s3://bucket/shuffles"}
