"""Control rows: what a consumer reconstructs from them is what the producer has written; and what becomes of
them when an output is lost.
"""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from engine import ID, Pair, Region, write_pair
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import confs, jobs
from pyspark import cloudpickle
from pyspark.errors import PythonException
from pyspark.sql import SparkSession

import sortshuffle
from sortshuffle.errors import MissingDataError
from sortshuffle.format.index import RegionKind
from sortshuffle.homes.owner import Owner
from sortshuffle.reading.channel import InputChannel, LocalInputChannel
from sortshuffle.spark.control_rows import (
    INLINE_REGIONS,
    MARK,
    ROWS_PER_BATCH,
    SCHEMA,
    Adopter,
    LocalReach,
    SparkMapOutput,
    channels,
    control_batches,
)
from sortshuffle.storage.files.extents import Extent, extents_of
from sortshuffle.storage.files.reader import read_index

# workers know nothing of this module
cloudpickle.register_pickle_by_value(sys.modules[__name__])

Batches = Iterator[pa.RecordBatch]
MAP_INDEX, ATTEMPT, HOST = 17, 2**40, "höst.example"
SUBPARTITIONS = 5
PAYLOADS = st.lists(st.binary(max_size=50), min_size=1, max_size=3)
UNICAST = st.builds(Region, st.dictionaries(st.integers(0, SUBPARTITIONS - 1), PAYLOADS))
BROADCAST = st.builds(lambda payloads: Region({0: payloads}, RegionKind.BROADCAST), PAYLOADS)


def control_rows(directory: Path, pair: Pair) -> tuple[SparkMapOutput, list[pa.RecordBatch]]:
    file = write_pair(directory, pair)
    output = SparkMapOutput(file, ID, MAP_INDEX, ATTEMPT, HOST)
    return output, list(control_batches(output, read_index(file)))


def test_a_consumer_knows_who_adopted_a_map_output(tmp_path: Path) -> None:
    pair = Pair(SUBPARTITIONS, regions=[Region({2: [b"x"]})])
    output, _ = control_rows(tmp_path, pair)
    adopted = replace(output, service="there:1", adopter=Adopter(ATTEMPT + 1, "hier-ö:22"), exchange=7)

    class Noted(LocalReach):
        def channel(self, output: SparkMapOutput, extents: tuple[Extent, ...]) -> InputChannel:
            seen.append(output)
            return super().channel(output, extents)

    seen: list[SparkMapOutput] = []
    for each in (adopted, replace(adopted, adopter=None)):
        channels(control_batches(each, read_index(each.file), exchange=7), Noted())
        assert seen.pop() == replace(each, regions=1)


def received(batches: list[pa.RecordBatch], subpartition: int) -> list[LocalInputChannel]:
    """The channels of the consumer to which Spark moves the rows of this subpartition."""
    kept = [batch.filter(pa.compute.equal(batch["subpartition"], subpartition)) for batch in batches]
    return channels(iter(kept), LocalReach())


@settings(max_examples=60)
@given(regions=st.lists(st.one_of(UNICAST, BROADCAST), max_size=4))
def test_a_consumer_gets_exactly_its_extents_of_each_output(
    tmp_path_factory: pytest.TempPathFactory, regions: list[Region]
) -> None:
    output, batches = control_rows(tmp_path_factory.mktemp("pair"), Pair(SUBPARTITIONS, regions=regions))
    index = read_index(output.file)

    assert all(batch.schema == SCHEMA for batch in batches)
    for subpartition in range(SUBPARTITIONS):
        extents = tuple(extent for extent in extents_of(index, subpartition) if extent.bytes)
        writer = f"attempt {ATTEMPT} of map {MAP_INDEX} on {HOST}"
        expected = [LocalInputChannel(output.file, ID, MAP_INDEX, writer, extents)] if extents else []
        assert received(batches, subpartition) == expected


@pytest.mark.parametrize("count", [INLINE_REGIONS, INLINE_REGIONS + 1])
def test_many_regions_are_looked_up_in_the_index_instead_of_being_sent(tmp_path: Path, count: int) -> None:
    regions = [Region({number % 2: [b"x" * number]}) for number in range(1, count + 1)]
    output, batches = control_rows(tmp_path, Pair(3, regions=regions))
    (channel,) = received(batches, 1)

    assert [extent.region for extent in channel.extents] == list(range(0, count, 2))
    assert received(batches, 2) == []
    sizes = {len(row) for batch in batches for row in batch["output"].to_pylist()}
    head = struct.calcsize("<16sqqIHHHH") + len(HOST.encode()) + len(output.file.base)
    assert sizes == {head + 48 * count if count <= INLINE_REGIONS else head}
    output.file.delete()
    if count > INLINE_REGIONS:
        with pytest.raises(MissingDataError, match="exchange-3-map-17-attempt-204"):
            received(batches, 1)
    else:
        assert received(batches, 1) == [channel]


def test_control_rows_of_many_subpartitions_come_in_batches(tmp_path: Path) -> None:
    subpartitions = ROWS_PER_BATCH + 10
    filled = range(0, subpartitions, 1)
    _, batches = control_rows(tmp_path, Pair(subpartitions, regions=[Region({s: [b"x"] for s in filled})]))

    assert [batch.num_rows for batch in batches] == [ROWS_PER_BATCH, 10]
    assert [s for batch in batches for s in batch["subpartition"].to_pylist()] == list(filled)
    assert [s for batch in batches for s in batch[MARK].to_pylist()] == list(filled)


def test_subpartitions_are_counted_from_zero_wherever_their_rows_go(tmp_path: Path) -> None:
    output, batches = control_rows(tmp_path, Pair(3, regions=[Region({0: [b"a"], 2: [b"b"]})]))
    (moved,) = control_batches(output, read_index(output.file), first=40)

    assert moved[MARK].to_pylist() == [40, 42]
    assert moved["subpartition"].to_pylist() == [0, 2]
    assert channels(iter([moved]), LocalReach()) == channels(iter(batches), LocalReach())


# --- lost outputs, in Spark -----------------------------------------------------------------------------


def grouped(frame: Any) -> Any:
    return frame.groupBy("k").applyInArrow(lambda table: table, frame.schema)


def ungrouped(frame: Any) -> Any:
    return frame


def filled_up(batches: Batches) -> Batches:
    """100 rows of 1 kB for every row."""
    for batch in batches:
        for number in batch["id"].to_pylist():
            noise = pa.FixedSizeBinaryArray.from_buffers(
                pa.binary(1000), 100, [None, pa.py_buffer(os.urandom(100_000))]
            )
            keys = pa.array([number % 7] * 100)
            yield pa.record_batch([keys, noise.cast(pa.binary())], names=["k", "noise"])


@pytest.mark.parametrize(
    ("how", "rows", "suffix"),
    [
        (ungrouped, 1000, ".data"),
        (grouped, 1000, ".data"),
        # so many that the index is read for the extents
        (ungrouped, 80_000, ".index"),
    ],
)
def test_when_an_output_is_lost_the_error_says_which_and_the_next_action_has_it_made_again(
    spark: SparkSession, tmp_path: Path, how: Any, rows: int, suffix: str
) -> None:
    with confs(
        spark,
        {
            "spark.sortshuffle.dir": str(tmp_path),
            "spark.sortshuffle.memory": "1m",
            "spark.sortshuffle.codec": "none",
        },
    ):
        source = sortshuffle.frame(spark.range(0, rows // 100, 1, 2))
    # one consumer, so that its failure is the job's
    ours = how(source.mapInArrow(filled_up, "k long, noise binary").repartition(1, "k"))
    assert ours.count() == rows
    regions = ours.stage_totals()[0].metrics.counts["regions"]
    assert (regions > 2 * INLINE_REGIONS) == (suffix == ".index")
    lost, kept = sorted(tmp_path.rglob(f"*{suffix}"))
    attempt = lost.stem.rpartition("-")[2]
    lost.unlink()

    with pytest.raises(PythonException, match="MissingDataError") as raised:
        ours.count()
    assert lost.name in str(raised.value)
    assert "The task that wrote it must run again" in str(raised.value)
    # Spark's own files of that map output went, and with them its belief that the map stage is done
    owner = Owner.read(str(lost.parent))
    assert owner is not None
    directories = [Path(directory) for directory in owner.local_directories]
    assert [path for directory in directories for path in directory.rglob(f"shuffle_*_{attempt}_0.*")] == []

    with jobs(spark) as run:
        assert ours.count() == rows
    assert run.stages == [2]
    assert kept.exists()
    assert not lost.exists()
    assert len(list(tmp_path.rglob("*.data"))) >= 2
