"""Conversion of the results of users' functions to the declared wire schema."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sortshuffle.errors import SchemaMismatchError
from sortshuffle.spark.functions.conf import FunctionConf
from sortshuffle.spark.functions.conversion import arrow_batch
from sortshuffle.spark.functions.result_schema import Batches, ResultSchema

if TYPE_CHECKING:
    import pandas as pd


def from_arrow(result: pa.Table | pa.RecordBatch, declared: ResultSchema, conf: FunctionConf) -> Batches:
    """Convert a returned table or batch to batches of ``declared.wire``; none for no rows and no columns.

    Columns are matched by name, or by position without ``conf.assign_by_name``. Raises `SchemaMismatchError`
    for any types but the declared ones, even if they could be converted.
    """
    if result.num_columns == 0 and result.num_rows == 0:
        return
    wire = declared.wire
    if result.schema != wire:
        declared.check_names(result.schema.names, by_name=conf.assign_by_name)
        if conf.assign_by_name:
            result = _in_declared_order(result, declared)
        declared.check_types(result.schema, exact=True)
    for batch in result.to_batches() if isinstance(result, pa.Table) else (result,):
        yield from declared.deliver(batch, exact=True)


def _in_declared_order(
    result: pa.Table | pa.RecordBatch, declared: ResultSchema
) -> pa.Table | pa.RecordBatch:
    names = declared.wire.names
    twins = sorted({name for name in names if result.schema.names.count(name) > 1})
    if twins:
        raise SchemaMismatchError(
            f"{declared.place}: several returned columns are named {', '.join(twins)}. Return each one once"
        )
    return result.select(names)


def from_group_frame(result: Any, declared: ResultSchema, conf: FunctionConf) -> Batches:
    """Convert the result of a function on groups to batches. It must be a frame of the declared columns."""
    import pandas as pd

    if not isinstance(result, pd.DataFrame):
        raise declared.mismatch("pandas.DataFrame", type(result).__name__)
    return from_frame(result, list(result.columns), conf.assign_by_name, declared, conf)


def from_frame(
    frame: pd.DataFrame, columns: list[Any], by_name: bool, declared: ResultSchema, conf: FunctionConf
) -> Batches:
    """Convert ``frame`` to batches. ``columns``: the labels that must match the declared columns."""
    if columns:
        labelled = any(isinstance(name, str) for name in frame.columns)
        declared.check_names(columns, by_name=by_name and labelled)
    try:
        batch = arrow_batch(frame, declared.schema, conf)
    except MemoryError:
        raise
    except Exception as error:
        # workers report no causes where tracebacks are simplified
        reason = "" if error.__cause__ is None else f"\n{error.__cause__}"
        raise SchemaMismatchError(f"{declared.place}: {type(error).__name__}: {error}{reason}") from error
    yield from declared.deliver(batch)
