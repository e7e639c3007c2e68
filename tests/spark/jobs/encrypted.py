"""Jobs with ``spark.io.encryption.enabled`` on two executors that count as two hosts: frames, RDDs, and
Spark's own stages through the shuffle manager. Prints as JSON what they gave and what lies on the disks.

python encrypted.py DIRECTORY
"""

from __future__ import annotations

import json
import operator
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

import sortshuffle
from sortshuffle.errors import DecryptionError
from sortshuffle.format.encryption import EncryptionKey
from sortshuffle.format.header import DATA_MAGIC, HEADER_BYTES, FileHeader
from sortshuffle.storage.files.extents import extents_of
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.files.reader import PartitionedFileReader, read_index
from sortshuffle.storage.inspection.finding import find_pairs

HERE = Path(__file__).parent
ROWS, MAPS, REDUCES = 20_000, 4, 4
MARKER = b"known-marker"
ENGINES = "127.0.0.1"  # where the manager's engine listens
LARGE = os.urandom(2 << 20)  # in a closure: above 1 MiB Spark broadcasts the pickled function, by a file


def one_engine(directory: str) -> str:
    """The engine's Python, with which both executors have one engine. Spark knows them by one host's
    name, and would look for either's engine there."""
    path = Path(directory, "python")
    path.write_text(f'#!/bin/sh\nSPARK_LOCAL_IP={ENGINES} exec {sys.executable} "$@"\n')
    path.chmod(0o755)
    return str(path)


def session(directory: str) -> Any:
    """Its own setting says that files are not encrypted, which has no effect: the SparkContext's counts."""
    log = os.path.join(directory, "events")
    os.mkdir(log)
    (
        sortshuffle.configure(SparkSession.builder.config("spark.sortshuffle.manager", "on"))
        .master("local-cluster[2,1,1024]")
        .config("spark.ui.enabled", "false")
        .config("spark.io.encryption.enabled", "true")
        .config("spark.local.dir", os.path.join(directory, "local"))
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.executorEnv.PYTHONPATH", f"{HERE / 'one_host_each'}{os.pathsep}{HERE.parents[2]}")
        .config("spark.executorEnv.SORTSHUFFLE_TEST_OPENED", os.path.join(directory, "opened"))
        .config("spark.executorEnv.TMPDIR", directory)
        .config("spark.sql.shuffle.partitions", str(REDUCES))
        .config("spark.eventLog.enabled", "true")
        .config("spark.eventLog.compress", "false")
        .config("spark.eventLog.dir", f"file://{log}")
        .config("spark.sortshuffle.codec", "none")  # so that what is not encrypted can be read
        .config("spark.sortshuffle.memory", "1m")  # so that sorting spills
        .config("spark.sortshuffle.manager.python", one_engine(directory))
        .config("spark.sortshuffle.dir", os.path.join(directory, "disk"))
        .getOrCreate()
    )
    return SparkSession.builder.config("spark.io.encryption.enabled", "false").getOrCreate()


def marked(batches: Any) -> Any:
    for batch in batches:
        numbers = batch.column(0)
        texts = [f"known-marker {n}" for n in numbers.to_pylist()]
        yield pa.record_batch([numbers, pa.array(texts)], names=["id", "text"])


def counted(values: Any) -> int:
    return len(values) if LARGE else 0


def doors(spark: Any) -> tuple[dict[str, bool], list[Any]]:
    """Whether each job gave what it must; and what has to be kept, or Spark removes the files that are looked
    at afterwards."""
    source = spark.range(0, ROWS, 1, MAPS)
    frame = sortshuffle.frame(source).mapInArrow(marked, "id long, text string")
    placed = frame.repartition(REDUCES, "id")
    ordered = frame.sort("text")
    records = spark.sparkContext.parallelize([(n % 5000, f"known-marker {n}") for n in range(ROWS)], MAPS)
    grouped = sortshuffle.rdd(records).groupByKey(REDUCES).mapValues(counted)
    pairs = sortshuffle.rdd(records.map(lambda pair: (pair[1], 1)))
    by_text = pairs.sortByKey(numPartitions=REDUCES)
    summed = pairs.reduceByKey(operator.add, REDUCES)
    sql = source.selectExpr("id", "concat('known-marker ', id) as text")
    own = sql.repartition(REDUCES, "id").groupBy("text").count().orderBy("text")
    texts = sorted(f"known-marker {n}" for n in range(ROWS))
    answers = {
        "placed": sorted(row.text for row in placed.collect()) == texts,
        "ordered": [row.text for row in ordered.collect()] == texts,
        "grouped": dict(grouped.collect()) == dict.fromkeys(range(5000), ROWS // 5000),
        "by text": [text for text, _ in by_text.collect()] == texts,
        "summed": dict(summed.collect()) == dict.fromkeys(texts, 1),
        "own": [(row["text"], row["count"]) for row in own.collect()] == [(text, 1) for text in texts],
    }
    return answers, [placed, ordered, grouped, by_text, summed, own]


def files_with(directory: str, words: list[bytes]) -> list[str]:
    """Files below a directory that have one of these words in them."""
    found = []
    for path in Path(directory).rglob("*"):
        try:
            content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        except OSError:
            continue
        found += [str(path)] if any(word in content for word in words) else []
    return found


def processes_with(words: list[bytes]) -> list[str]:
    """Processes that have one of these words in their arguments or environment."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        for name in ("cmdline", "environ"):
            try:
                content = Path(f"/proc/{entry}/{name}").read_bytes()
            except OSError:
                continue
            found += [f"{name} of {entry}"] if any(word in content for word in words) else []
    return found


def keys_of(spark: Any) -> dict[str, bytes]:
    manager = spark.sparkContext._jvm.org.sortshuffle.SortMergeShuffleManager
    return {"manager": bytes.fromhex(manager.filesKey()), "frames": sortshuffle.files_key(spark)}


def forms(keys: dict[str, bytes]) -> list[bytes]:
    """How a key could be written."""
    return [form for key in keys.values() for form in (key, key.hex().encode(), repr(key)[2:-1].encode())]


def opened_by(pairs: Iterator[str], keys: dict[str, bytes]) -> dict[str, int]:
    """How many map outputs each of the keys opens; and of those that are not encrypted."""
    found = dict.fromkeys([*keys, "plain", "nothing"], 0)
    for path in pairs:
        file = PartitionedFile.of(path)
        assert file is not None
        try:
            header = FileHeader.unpack(Path(file.data_path).read_bytes()[:HEADER_BYTES], DATA_MAGIC)
            names = [name for name, key in keys.items() if _opens(file, key)] or ["nothing"]
        except FileNotFoundError:  # Spark has removed it meanwhile: no output of a kept frame
            wait_until_gone(file.data_path)
            continue
        for name in names if header.is_encrypted else ["plain"]:
            found[name] += 1
    return found


def wait_until_gone(path: str) -> None:
    end = time.monotonic() + 60
    while os.path.exists(path):
        assert time.monotonic() < end, f"{path} is there without its index"
        time.sleep(0.05)


def _opens(file: PartitionedFile, secret: bytes) -> bool:
    index = read_index(file)
    try:
        with PartitionedFileReader(file, key=EncryptionKey(secret)) as reader:
            for subpartition in range(index.header.subpartitions):
                for extent in extents_of(index, subpartition):
                    reader.read_extent(extent)
    except DecryptionError:
        return False
    return True


def main(directory: str) -> None:
    spark = session(directory)
    spark.sparkContext.setLogLevel("OFF")
    answers, kept = doors(spark)
    keys = keys_of(spark)
    opened = Path(directory, "opened").read_text().splitlines()
    print(
        json.dumps(
            {
                "given": answers,
                "decisions": dict(
                    spark.sparkContext._jvm.org.sortshuffle.SortMergeShuffleManager.decisions()
                ),
                # Spark's log of events has the queries, which name it
                "marked": [path for path in files_with(directory, [MARKER]) if "/events/" not in path],
                "session says": spark.conf.get("spark.io.encryption.enabled"),
                "events": sum(path.stat().st_size for path in Path(directory, "events").rglob("*")),
                "broadcast": [
                    str(path)
                    for path in Path(directory, "local").rglob("*")
                    if path.is_file() and path.stat().st_size >= len(LARGE)
                ],
                "keys in files": files_with(directory, forms(keys)),
                "keys in processes": processes_with(forms(keys)),
                "opened": opened_by(find_pairs(os.path.join(directory, "disk")), keys),
                "hosts": sorted({line.split(" ", 1)[0] for line in opened} - {ENGINES}),
            }
        ),
        flush=True,
    )
    del kept
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
