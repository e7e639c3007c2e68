"""The command `tools/soak --pipelines`."""

from __future__ import annotations

import logging
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from pyspark import cloudpickle
from pyspark.sql import SparkSession

import sortshuffle
from pipelines import functions
from pipelines.compare import difference, shortened
from pipelines.draw import Pipeline, draw
from sortshuffle.spark.operators import partition_counts
from sortshuffle.spark.plan import coalescing
from sortshuffle.spark.session.requirements import plain_session

SETTINGS = {
    "spark.master": "local[2]",
    "spark.sql.shuffle.partitions": "5",
    # PySpark 4.3 refuses timestamps of other zones that an applyInArrow function returns as it got them
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
FEWER_PARTITIONS = "spark.sql.adaptive.coalescePartitions.enabled"


def with_fewer_partitions(seed: int) -> str:
    """Return the value of `FEWER_PARTITIONS` for a pipeline. Every second one exchanges its few rows into
    several partitions."""
    return "true" if seed % 2 else "false"


@contextmanager
def partitions_as_if_many(seed: int) -> Iterator[None]:
    """Exchange the few rows of every fourth pipeline as large rows are: into several partitions, of which
    each task of an action then reads several."""
    before = partition_counts.FEW_BYTES, coalescing.TASKS_PER_CORE, coalescing.LARGEST
    if seed % 4 == 3:
        partition_counts.FEW_BYTES, coalescing.TASKS_PER_CORE = -1, 0
        coalescing.LARGEST = (300, 1000, 4000)[seed % 3]  # bytes
    try:
        yield
    finally:
        partition_counts.FEW_BYTES, coalescing.TASKS_PER_CORE, coalescing.LARGEST = before


@click.command()
@click.option("--count", type=click.IntRange(min=1), required=True, help="How many pipelines.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the first one.")
def main(count: int, seed: int) -> None:
    """Run random pipelines and compare them with plain PySpark. Exits 1 if any differs."""
    builder = SparkSession.builder
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    ours = sortshuffle.session(builder)
    ours.sparkContext.setLogLevel("OFF")
    # PySpark logs each error of a wrong call, and pipelines are wrong on purpose
    logging.getLogger("DataFrameQueryContextLogger").setLevel(logging.CRITICAL)
    cloudpickle.register_pickle_by_value(functions)
    plain = plain_session(ours)
    started, failed = time.monotonic(), []
    with tempfile.TemporaryDirectory(prefix="pipelines-") as directory:
        functions.write_tables(Path(directory))
        for number in range(seed, seed + count):
            pipeline = Pipeline(number, ())
            ours.conf.set(FEWER_PARTITIONS, with_fewer_partitions(number))
            try:
                pipeline = draw(number, plain, directory)
                with partitions_as_if_many(number):
                    words = difference(pipeline, ours, plain, directory)
            except Exception:
                words = traceback.format_exc()
            if words:
                failed.append(number)
                with partitions_as_if_many(number):
                    short = shortened(pipeline, ours, plain, directory)
                click.echo(f"seed {number} differs:\n{short}\n{words}\n")
    seconds = time.monotonic() - started
    click.echo(f"{count} pipelines in {seconds:.0f} s, {len(failed)} differ: {failed or 'none'}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main(prog_name="tools/soak --pipelines")
