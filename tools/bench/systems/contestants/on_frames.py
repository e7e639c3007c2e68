"""This package, in jobs that begin with `sortshuffle.read`: all rows are in Arrow, none in the JVM."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import on_sortshuffle
from pyspark.sql import SparkSession
from pyspark_jobs import CASES
from turn import Limits, take_part

import sortshuffle


@dataclass(frozen=True, slots=True)
class ReadInPython:
    """What the jobs need of a session. Each run gets a reader of its own."""

    spark: SparkSession

    @property
    def read(self) -> Any:
        return sortshuffle.read(self.spark)


@contextmanager
def start(limits: Limits) -> Iterator[ReadInPython]:
    with on_sortshuffle.start(limits) as spark:
        yield ReadInPython(spark)


if __name__ == "__main__":
    take_part(start, CASES, ("sortshuffle", "pyspark", "pyarrow", "pandas"))
