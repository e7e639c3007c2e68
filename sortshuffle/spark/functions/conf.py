"""`FunctionConf`: the session settings that change what users' functions receive and may return."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TIME_ZONE = "spark.sql.session.timeZone"


@dataclass(frozen=True, slots=True)
class FunctionConf:
    """Settings of a Spark session, pickled into every adaptor.

    ========================  ===========================================================================
    field                     Spark setting
    ========================  ===========================================================================
    ``timezone``              ``spark.sql.session.timeZone``
    ``assign_by_name``        ``spark.sql.legacy.execution.pandas.groupedMap.assignColumnsByName``
    ``safe_cast``             ``spark.sql.execution.pandas.convertToArrowArraySafely``
    ``int_to_decimal``        ``spark.sql.execution.pythonUDF.pandas.intToDecimalCoercionEnabled``
    ``extension_integers``    ``spark.sql.execution.pythonUDF.pandas.preferIntExtensionDtype``
    ``large_types``           ``spark.sql.execution.arrow.useLargeVarTypes``
    ``any_iterable``          ``spark.sql.execution.pythonUDF.mapInBatch.legacy.acceptAnyIterable.enabled``
    ``exact_schema``          ``spark.sql.execution.arrow.pyspark.validateSchema.enabled``
    ``batch_rows``            ``spark.sql.execution.arrow.maxRecordsPerBatch``, for parts of groups alone
    ``worker_logs``           ``spark.sql.pyspark.worker.logging.enabled``
    ``profiled``              ``spark.sql.pyspark.udf.profiler``, whether it is set
    ========================  ===========================================================================

    ``spark.sql.execution.pandas.structHandlingMode`` is for ``toPandas()`` alone: functions get dicts.
    """

    timezone: str
    assign_by_name: bool = True
    safe_cast: bool = True
    int_to_decimal: bool = False
    extension_integers: bool = False
    large_types: bool = False
    any_iterable: bool = True
    exact_schema: bool = False
    batch_rows: int = 10_000
    worker_logs: bool = False
    profiled: bool = False

    @staticmethod
    def of(spark: SparkSession) -> FunctionConf:
        """Read the current settings of ``spark``."""
        return FunctionConf.read(spark.conf.get)

    @staticmethod
    def read(get: Callable[[str], Any]) -> FunctionConf:
        """Read the settings that ``get`` returns by name. It raises `PySparkException` for unknown names."""

        def text(name: str, default: str = "") -> str:
            try:
                return str(get(name)).lower()
            except PySparkException:  # this version of Spark has no such setting
                return default

        def flag(name: str, default: bool) -> bool:
            return text(name, str(default).lower()) == "true"

        execution = "spark.sql.execution"
        return FunctionConf(
            timezone=str(get(TIME_ZONE)),
            assign_by_name=flag("spark.sql.legacy.execution.pandas.groupedMap.assignColumnsByName", True),
            safe_cast=flag(f"{execution}.pandas.convertToArrowArraySafely", False),
            int_to_decimal=flag(f"{execution}.pythonUDF.pandas.intToDecimalCoercionEnabled", False),
            extension_integers=flag(f"{execution}.pythonUDF.pandas.preferIntExtensionDtype", False),
            large_types=flag(f"{execution}.arrow.useLargeVarTypes", False),
            any_iterable=flag(f"{execution}.pythonUDF.mapInBatch.legacy.acceptAnyIterable.enabled", True),
            exact_schema=flag(f"{execution}.arrow.pyspark.validateSchema.enabled", False),
            batch_rows=int(str(get(f"{execution}.arrow.maxRecordsPerBatch"))),
            worker_logs=flag("spark.sql.pyspark.worker.logging.enabled", False),
            profiled=text("spark.sql.pyspark.udf.profiler") in ("perf", "memory"),
        )
