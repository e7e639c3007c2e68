"""The jobs of examples/jobs, for tests that run them, and their rows in a form that can be compared."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

JOBS = Path(__file__).resolve().parents[2] / "examples" / "jobs"
NAMES = sorted(path.stem for path in JOBS.glob("*.py"))
DIGITS = 6  # to which floats are equal: sums are in the order of the rows


def example(name: str) -> ModuleType:
    """The module of a job."""
    if str(JOBS) not in sys.path:
        sys.path.append(str(JOBS))
    module = importlib.import_module(name)
    cloudpickle.register_pickle_by_value(module)  # workers know nothing of it
    return module


def result_of(job: ModuleType, spark: SparkSession, directory: str) -> DataFrame:
    """What a job makes of its data, which it writes below a directory."""
    job.data(spark, directory)
    result: DataFrame = job.job(spark, directory)
    return result


def rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, DIGITS)
    return tuple(map(rounded, value)) if isinstance(value, list | tuple) else value


def in_order(rows: Iterable[Any]) -> list[Any]:
    return sorted((rounded(tuple(row)) for row in rows), key=repr)
