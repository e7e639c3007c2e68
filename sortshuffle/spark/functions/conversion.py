"""Conversion between Arrow and pandas by PySpark's own code, so that functions get what PySpark passes."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
from pyspark.sql import types as st

from sortshuffle.spark.functions.conf import FunctionConf
from sortshuffle.spark.schema import to_arrow, with_large_types

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")


def with_session_types(items: Iterator[T], conf: FunctionConf) -> Iterator[T]:
    """Cast batches or tables to types with 64-bit offsets, if the session asks for them."""
    return map(_with_large_types, items) if conf.large_types else items


def _with_large_types(rows: Any) -> Any:
    return rows.cast(with_large_types(rows.schema))


def pandas_frame(batch: pa.RecordBatch, conf: FunctionConf) -> pd.DataFrame:
    """Convert ``batch`` to the data frame that ``mapInPandas`` passes to a function.

    All columns are converted at once, as fields of a struct, because the dtype that PySpark 4.2+ chooses for
    integers with nulls depends on the types of the other columns.
    """
    if batch.num_columns == 0:
        return _without_columns(batch)
    struct = pa.RecordBatch.from_arrays([batch.to_struct_array()], ["_0"])
    frame: pd.DataFrame = _to_pandas(struct, conf, structs_as_frames=True)[0]
    return frame


def pandas_series(rows: pa.RecordBatch | pa.Table, conf: FunctionConf) -> list[pd.Series]:
    """Convert a group's rows to the columns of the frame that ``applyInPandas`` passes to a function."""
    if rows.num_columns == 0:
        return [_without_columns(rows)]  # PySpark's conversion makes a column of them
    whole = rows.combine_chunks() if isinstance(rows, pa.Table) else rows
    return _to_pandas(whole, conf, structs_as_frames=False)


def _without_columns(rows: pa.RecordBatch | pa.Table) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(index=pd.RangeIndex(rows.num_rows))


def pandas_key(series: list[pd.Series], keys: tuple[int, ...], row: int = 0) -> tuple[Any, ...]:
    """Return the key of a row, out of the columns at the positions ``keys``."""
    return tuple(series[position].iloc[row] for position in keys)


def frame_of(series: list[pd.Series]) -> pd.DataFrame:
    """Join columns into a data frame."""
    import pandas as pd

    return pd.concat(series, axis=1)


def _to_pandas(rows: pa.RecordBatch | pa.Table, conf: FunctionConf, *, structs_as_frames: bool) -> list[Any]:
    try:
        from pyspark.sql.conversion import ArrowBatchTransformer
    except ImportError:  # PySpark 4.1
        serializer = _serializer(conf, structs_as_frames)
        # the serializer caches converters by the position of the column
        converted = [
            serializer.arrow_to_pandas(column, position) for position, column in enumerate(rows.columns)
        ]
        if structs_as_frames:
            return converted
        return [each.rename(name) for each, name in zip(converted, rows.schema.names, strict=True)]
    series: list[Any] = ArrowBatchTransformer.to_pandas(
        rows,
        timezone=conf.timezone,
        prefer_int_ext_dtype=conf.extension_integers,
        df_for_struct=structs_as_frames,
    )
    return series


def arrow_batch(frame: pd.DataFrame, schema: st.StructType, conf: FunctionConf) -> pa.RecordBatch:
    """Convert ``frame`` to a batch of ``schema``. Raises whatever PySpark's conversion raises."""
    try:
        from pyspark.sql.conversion import PandasToArrowConversion
    except ImportError:  # PySpark 4.1
        wire = to_arrow(schema, conf.timezone)
        struct = pa.struct(list(with_large_types(wire) if conf.large_types else wire))
        batch = _serializer(conf, False)._create_batch((frame, struct))
        return pa.RecordBatch.from_struct_array(batch.column(0))
    return PandasToArrowConversion.convert(
        frame,
        schema,
        timezone=conf.timezone,
        safecheck=conf.safe_cast,
        arrow_cast=True,
        prefers_large_types=conf.large_types,
        assign_cols_by_name=conf.assign_by_name,
        int_to_decimal_coercion_enabled=conf.int_to_decimal,
    )


@functools.cache
def _serializer(conf: FunctionConf, structs_as_frames: bool) -> Any:
    """Return the serializer whose methods convert in PySpark 4.1."""
    from pyspark.sql.pandas.serializers import ArrowStreamPandasUDFSerializer

    return ArrowStreamPandasUDFSerializer(
        conf.timezone,
        conf.safe_cast,
        conf.assign_by_name,
        df_for_struct=structs_as_frames,
        arrow_cast=True,
        int_to_decimal_coercion_enabled=conf.int_to_decimal,
    )
