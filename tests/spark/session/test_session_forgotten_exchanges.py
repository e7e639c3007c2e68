"""The driver knows which exchanges Spark has forgotten, and its tasks leave word of them where they write."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engine import eventually
from pyspark.sql import SparkSession

import sortshuffle
from sortshuffle.homes.forgotten_exchanges import read_exchanges
from sortshuffle.spark.session.forgotten_exchanges import forgotten

SETTINGS = {"spark.sortshuffle.service": "external", "spark.sortshuffle.service.port": "1"}  # nobody is there


@pytest.fixture
def external(spark: SparkSession, tmp_path: Path) -> Iterator[SparkSession]:
    settings = {**SETTINGS, "spark.sortshuffle.dir": str(tmp_path)}
    for name, value in settings.items():
        spark.conf.set(name, value)
    yield spark
    for name in settings:
        spark.conf.unset(name)


def rows(spark: SparkSession) -> Any:
    return sortshuffle.frame(spark.range(100)).repartition(3, "id")


def pairs(spark: SparkSession) -> Any:
    return sortshuffle.rdd(spark.sparkContext.parallelize([(1, 2), (3, 4)], 2)).partitionBy(3)


def exchange_in(directory: Path) -> int:
    """The number of the newest exchange that has a map output there."""
    return max(int(path.name.split("-")[1]) for path in directory.glob("**/exchange-*.index"))


@pytest.mark.parametrize("make", [rows, pairs])
def test_an_exchange_is_forgotten_when_nobody_can_read_it_any_more(
    external: SparkSession, tmp_path: Path, make: Any
) -> None:
    context = external.sparkContext
    made = make(external)
    assert made.count() in (100, 2)
    exchange = exchange_in(tmp_path)
    gc.collect()
    external._jvm.System.gc()
    assert exchange not in forgotten(context), "it may be read again"
    assert made.count() in (100, 2)

    del made

    def is_forgotten() -> bool:
        gc.collect()
        external._jvm.System.gc()
        return exchange in forgotten(context)

    eventually(is_forgotten, "Spark forgets the exchange")

    assert rows(external).count() == 100
    (home,) = {str(path.parent) for path in tmp_path.glob(f"**/exchange-{exchange_in(tmp_path)}-*.index")}
    assert exchange in {number for _, number in read_exchanges(home)}
    assert exchange_in(tmp_path) not in {number for _, number in read_exchanges(home)}
