"""Users' functions in a Python worker: given, checked and converted as PySpark's own worker does it.

Between two exchanges the functions of a `ShuffleFrame` run chained, without Spark's operators between them.
One adaptor per PySpark method wraps each function: batches (or the tables of groups) go in, batches of the
declared wire schema come out. The rules are those of PySpark 4.3's worker and of the JVM that reads its
results; pandas conversion is PySpark's own code. The differences are these:

* what crashes Spark's task in the JVM is a `SchemaMismatchError` that names function, column and types;
* other representations of the declared types are converted (see `sortshuffle.spark.schema.conform`),
  also where PySpark wants one of them: text with 64-bit offsets, any time zone's label, any unit of time;
* every field that a function sees is nullable and has no metadata.

Invariants:

* An adaptor is made on the driver, where a bad schema or signature fails at the call, and is pickled to the
  tasks with every setting it needs. It keeps no state, so one adaptor serves any number of tasks.
* What a function raises stays the same object, with a traceback in which our frames above the function are
  gone. What its input raises is never lost, even if the function swallows it.
* Batches without rows are not passed on. One result is held at a time.
* Closing an adaptor's iterator closes the function's, then the input.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import types as st
from pyspark.sql.pandas import typehints
from pyspark.util import PythonEvalType

from sortshuffle.errors import SchemaMismatchError, UnsupportedError, UsageError
from sortshuffle.spark.schema import check_types, conform, parse_schema, to_arrow, with_large_types

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import SparkSession

T = TypeVar("T")
Function = Callable[..., Any]
Batches = Iterator[pa.RecordBatch]

_OUR_CODE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_END = object()


@dataclass(frozen=True, slots=True)
class FunctionConf:
    """The settings of the session that decide what functions see and what they may return.

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
    ========================  ===========================================================================

    ``spark.sql.execution.pandas.structHandlingMode`` is not among them: it is about ``toPandas()``, and
    PySpark gives structs to functions as dicts whatever it says.
    """

    timezone: str
    assign_by_name: bool = True
    safe_cast: bool = True
    int_to_decimal: bool = False
    extension_integers: bool = False
    large_types: bool = False
    any_iterable: bool = True
    exact_schema: bool = False

    @staticmethod
    def of(spark: SparkSession) -> FunctionConf:
        """The settings of ``spark`` at this moment."""

        def flag(name: str, default: bool) -> bool:
            try:
                return str(spark.conf.get(name)).lower() == "true"
            except PySparkException:  # this version of Spark has no such setting
                return default

        execution = "spark.sql.execution"
        return FunctionConf(
            timezone=str(spark.conf.get("spark.sql.session.timeZone")),
            assign_by_name=flag("spark.sql.legacy.execution.pandas.groupedMap.assignColumnsByName", True),
            safe_cast=flag(f"{execution}.pandas.convertToArrowArraySafely", False),
            int_to_decimal=flag(f"{execution}.pythonUDF.pandas.intToDecimalCoercionEnabled", False),
            extension_integers=flag(f"{execution}.pythonUDF.pandas.preferIntExtensionDtype", False),
            large_types=flag(f"{execution}.arrow.useLargeVarTypes", False),
            any_iterable=flag(f"{execution}.pythonUDF.mapInBatch.legacy.acceptAnyIterable.enabled", True),
            exact_schema=flag(f"{execution}.arrow.pyspark.validateSchema.enabled", False),
        )


@dataclass(frozen=True, slots=True)
class Declared:
    """What a function is declared to return.

    ``place`` names it in errors: ``mapInArrow(parse)``. ``wire`` is the schema of the batches that leave.
    ``required``: the positions of the columns that are ``NOT NULL``.
    """

    place: str
    schema: st.StructType
    wire: pa.Schema
    required: tuple[int, ...]

    @staticmethod
    def of(method: str, function: Function, schema: st.StructType | str, conf: FunctionConf) -> Declared:
        """Raises `UsageError` for what is no function or no schema, `UnsupportedError` for a type."""
        place = f"{method}({_function_name(function)})"
        if not callable(function):
            raise UsageError(f"{method} needs a function, not {function!r}")
        parsed = parse_schema(schema)
        required = tuple(at for at, field in enumerate(parsed.fields) if not field.nullable)
        return Declared(place, parsed, to_arrow(parsed, conf.timezone), required)

    def deliver(self, batch: pa.RecordBatch, *, exact: bool = False) -> Batches:
        """``batch`` as batches of the wire schema; none if it has no rows."""
        if batch.num_rows == 0:
            return
        for part in conform(batch, self.wire, self.place, exact=exact):
            self._refuse_nulls(part)
            yield part

    def check_names(self, found: list[Any], *, by_name: bool) -> None:
        """Raise unless the returned columns are the declared ones, by name or by number."""
        missing = ", ".join(sorted(set(self.wire.names).difference(found)))
        unexpected = ", ".join(sorted(map(str, set(found).difference(self.wire.names))))
        if by_name and (missing or unexpected):
            raise SchemaMismatchError(
                f"{self.place}: column names differ from the declared schema."
                + (f" Missing: {missing}." if missing else "")
                + (f" Unexpected: {unexpected}." if unexpected else "")
            )
        if not by_name and len(found) != len(self.wire):
            raise SchemaMismatchError(
                f"{self.place}: expected {len(self.wire)} columns ({', '.join(self.wire.names)}),"
                f" found {len(found)} ({', '.join(map(str, found))})"
            )

    def mismatch(self, wanted: str, found: object) -> SchemaMismatchError:
        """The error for a result that is not even of the right kind."""
        return SchemaMismatchError(f"{self.place} must return {wanted}, but returned {found}")

    def _refuse_nulls(self, batch: pa.RecordBatch) -> None:
        for position in self.required:
            nulls = batch.column(position).null_count
            if nulls:
                raise SchemaMismatchError(
                    f"{self.place}: column '{self.wire.names[position]}' is declared NOT NULL, but"
                    f" {nulls} of its {batch.num_rows} values are null"
                )


# --- the adaptors ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MapInArrow:
    """``DataFrame.mapInArrow``: an iterator of record batches in, an iterator of record batches out.

    Returned columns are matched by position and further ones are left out, as in Spark; with
    ``conf.exact_schema`` names and number must agree.
    """

    function: Function
    declared: Declared
    conf: FunctionConf

    @staticmethod
    def of(function: Function, schema: st.StructType | str, conf: FunctionConf) -> MapInArrow:
        """Raises `UsageError` or `UnsupportedError`."""
        return MapInArrow(function, Declared.of("mapInArrow", function, schema, conf), conf)

    def describe(self) -> str:
        return self.declared.place

    def __call__(self, batches: Batches) -> Batches:
        """The results, as batches of ``declared.wire``.

        Raises `SchemaMismatchError`, and what the user's function does.
        """
        return user_errors(self._run(batches))

    def _run(self, batches: Batches) -> Batches:
        given = _given_arrow(batches, self.conf)
        results = _mapped(self.function, given, pa.RecordBatch, self.declared, self.conf)
        with _Closed(batches), _Closed(results):
            for batch in results:
                yield from self._delivered(batch)
                del batch  # not to be held while the function makes the next one

    def _delivered(self, batch: pa.RecordBatch) -> Batches:
        columns = len(self.declared.wire)
        if self.conf.exact_schema:
            self.declared.check_names(batch.schema.names, by_name=False)
            self.declared.check_names(batch.schema.names, by_name=True)
        elif batch.num_columns < columns:
            self.declared.check_names(batch.schema.names, by_name=False)
        elif batch.num_columns > columns:
            batch = batch.select(range(columns))
        return self.declared.deliver(batch, exact=self.conf.exact_schema)


@dataclass(frozen=True, slots=True)
class MapInPandas:
    """``DataFrame.mapInPandas``: an iterator of data frames in, an iterator of data frames out.

    The first columns of a returned frame, as many as are declared, must have the declared names in any
    order; frames whose column labels have no string among them are matched by position.
    """

    function: Function
    declared: Declared
    conf: FunctionConf

    @staticmethod
    def of(function: Function, schema: st.StructType | str, conf: FunctionConf) -> MapInPandas:
        """Raises `UsageError` or `UnsupportedError`."""
        return MapInPandas(function, Declared.of("mapInPandas", function, schema, conf), conf)

    def describe(self) -> str:
        return self.declared.place

    def __call__(self, batches: Batches) -> Batches:
        """The results, as batches of ``declared.wire``.

        Raises `SchemaMismatchError`, and what the user's function does.
        """
        return user_errors(self._run(batches))

    def _run(self, batches: Batches) -> Batches:
        import pandas as pd

        given = (_pandas_frame(batch, self.conf) for batch in batches)
        results = _mapped(self.function, given, pd.DataFrame, self.declared, self.conf)
        with _Closed(batches), _Closed(results):
            for frame in results:
                columns = list(frame.columns[: len(self.declared.wire)])
                yield from _from_pandas(frame, columns, True, self.declared, self.conf)
                del frame  # not to be held while the function makes the next one


@dataclass(frozen=True, slots=True)
class GroupApplyInArrow:
    """``GroupedData.applyInArrow``: the table of a group in, a table out.

    ``keys``: positions of the key columns, in the order of ``groupBy``; their values in the group's first
    row are the key, a tuple of Arrow scalars, for a function of two arguments. Returned columns are matched
    by name (``conf.assign_by_name``) or position, and must be of the declared types, not of types that
    merely fit.
    """

    function: Function
    keys: tuple[int, ...]
    takes_key: bool
    declared: Declared
    conf: FunctionConf

    @staticmethod
    def of(
        function: Function, schema: st.StructType | str, conf: FunctionConf, keys: Iterable[int]
    ) -> GroupApplyInArrow:
        """Raises `UsageError`, or `UnsupportedError` for a type or for a function of batches' iterators."""
        method = "groupBy().applyInArrow"
        declared = Declared.of(method, function, schema, conf)
        takes_key = _takes_key(method, function, "table")
        _refuse_iterator_form(
            method,
            function,
            typehints.infer_group_arrow_eval_type_from_func,
            PythonEvalType.SQL_GROUPED_MAP_ARROW_ITER_UDF,
            "a pyarrow.Table per group",
        )
        return GroupApplyInArrow(function, tuple(keys), takes_key, declared, conf)

    def __call__(self, groups: Iterator[pa.Table]) -> Batches:
        """The results of all groups. ``groups``: each one's table, of at least one row, all its columns.

        Raises `SchemaMismatchError`, and what the user's function does.
        """
        return user_errors(self._run(groups))

    def _run(self, groups: Iterator[pa.Table]) -> Batches:
        with _Closed(groups):
            for group in _given_arrow(groups, self.conf):
                result = _in_user_code(self.function, *self._arguments(group))
                del group  # not to be held while the results are on their way
                yield from self._delivered(result)
                del result

    def _arguments(self, group: pa.Table) -> tuple[Any, ...]:
        if not self.takes_key:
            return (group,)
        return tuple(group.column(position)[0] for position in self.keys), group

    def _delivered(self, result: Any) -> Batches:
        if not isinstance(result, pa.Table):
            raise self.declared.mismatch("a pyarrow.Table", type(result).__name__)
        if result.num_columns == 0 and result.num_rows == 0:
            return
        wire = self.declared.wire
        if result.schema != wire:
            self.declared.check_names(result.schema.names, by_name=self.conf.assign_by_name)
            if self.conf.assign_by_name:
                result = self._in_declared_order(result)
            check_types(result.schema, wire, self.declared.place, exact=True)
        for batch in result.to_batches():
            yield from self.declared.deliver(batch, exact=True)

    def _in_declared_order(self, result: pa.Table) -> pa.Table:
        names = self.declared.wire.names
        twins = sorted({name for name in names if result.schema.names.count(name) > 1})
        if twins:
            raise self.declared.mismatch("every column once", f"several columns named {', '.join(twins)}")
        return result.select(names)


@dataclass(frozen=True, slots=True)
class GroupApplyInPandas:
    """``GroupedData.applyInPandas``: the data frame of a group in, a data frame out.

    ``keys``: positions of the key columns, in the order of ``groupBy``; their values in the group's first
    row are the key, a tuple of NumPy or Python values, for a function of two arguments. The frame's index
    counts its rows. A returned frame without columns may be empty or stand for rows of nulls.
    """

    function: Function
    keys: tuple[int, ...]
    takes_key: bool
    declared: Declared
    conf: FunctionConf

    @staticmethod
    def of(
        function: Function, schema: st.StructType | str, conf: FunctionConf, keys: Iterable[int]
    ) -> GroupApplyInPandas:
        """Raises `UsageError`, or `UnsupportedError` for a type or for a function of frames' iterators."""
        method = "groupBy().applyInPandas"
        declared = Declared.of(method, function, schema, conf)
        takes_key = _takes_key(method, function, "frame")
        _refuse_iterator_form(
            method,
            function,
            typehints.infer_group_pandas_eval_type_from_func,
            PythonEvalType.SQL_GROUPED_MAP_PANDAS_ITER_UDF,
            "a pandas.DataFrame per group",
        )
        return GroupApplyInPandas(function, tuple(keys), takes_key, declared, conf)

    def __call__(self, groups: Iterator[pa.Table]) -> Batches:
        """The results of all groups. ``groups``: each one's table, of at least one row, all its columns.

        Raises `SchemaMismatchError`, and what the user's function does.
        """
        return user_errors(self._run(groups))

    def _run(self, groups: Iterator[pa.Table]) -> Batches:
        import pandas as pd

        by_name = self.conf.assign_by_name
        with _Closed(groups):
            for arguments in map(self._arguments, groups):
                result = _in_user_code(self.function, *arguments)
                del arguments  # not to be held while the result is converted
                if not isinstance(result, pd.DataFrame):
                    raise self.declared.mismatch("a pandas.DataFrame", type(result).__name__)
                yield from _from_pandas(result, list(result.columns), by_name, self.declared, self.conf)
                del result

    def _arguments(self, group: pa.Table) -> tuple[Any, ...]:
        import pandas as pd

        series = _pandas_series(group, self.conf)
        frame = pd.concat(series, axis=1)
        if not self.takes_key:
            return (frame,)
        return tuple(series[position].iloc[0] for position in self.keys), frame


def _from_pandas(
    frame: pd.DataFrame, columns: list[Any], by_name: bool, declared: Declared, conf: FunctionConf
) -> Batches:
    """``frame`` as batches, once ``columns`` of it are the declared ones."""
    if columns:
        labelled = any(isinstance(name, str) for name in frame.columns)
        declared.check_names(columns, by_name=by_name and labelled)
    try:
        batch = _arrow_batch(frame, declared.schema, conf)
    except MemoryError:
        raise
    except Exception as error:
        raise SchemaMismatchError(
            f"{declared.place}: a returned frame cannot be converted to the declared schema: {error}"
        ) from error
    yield from declared.deliver(batch)


# --- running users' code --------------------------------------------------------------------------------


def user_errors(produced: Iterator[T]) -> Iterator[T]:
    """``produced``, whose errors out of users' functions show the users' frames and one line of ours.

    Errors that are not from a user's function, which may be our own faults, keep their whole traceback.
    Adaptors do this themselves; whoever runs several in a chain does it once more around the chain.
    """
    try:
        yield from produced
    except Exception as error:
        raise error.with_traceback(_without_plumbing(error.__traceback__))  # noqa: B904  it is the error itself


def _in_user_code(function: Callable[..., T], *arguments: Any) -> T:
    """Every call of a user's code goes through here, and `_without_plumbing` finds it by this frame."""
    try:
        return function(*arguments)
    except StopIteration as stop:
        # left alone it would end the generators above as if the data had ended
        raise RuntimeError(
            f"StopIteration was raised by a function, outside of an iterator: {stop}"
        ) from stop


_ENTRANCES = {_in_user_code.__code__, user_errors.__code__}


def _without_plumbing(traceback: TracebackType | None) -> TracebackType | None:
    """``traceback`` without our frames above the innermost user's function it has run."""
    entries = []
    while traceback is not None:
        entries.append(traceback)
        traceback = traceback.tb_next
    entrances = [at for at, entry in enumerate(entries) if entry.tb_frame.f_code in _ENTRANCES]
    innermost = entrances[-1] if entrances else -1
    for at, entry in reversed(list(enumerate(entries))):
        if at > innermost or not entry.tb_frame.f_code.co_filename.startswith(_OUR_CODE):
            traceback = TracebackType(traceback, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return traceback


class _Watched(Iterator[T]):
    """A function's input, which remembers how it failed: the function may swallow the error."""

    __slots__ = ("_items", "failure")

    def __init__(self, items: Iterator[T]) -> None:
        self._items = items
        self.failure: Exception | None = None

    def __next__(self) -> T:
        try:
            return next(self._items)
        except StopIteration:
            raise
        except Exception as error:
            self.failure = error
            raise


def _mapped(
    function: Function, given: Iterator[Any], kind: type[T], declared: Declared, conf: FunctionConf
) -> Iterator[T]:
    """What ``function`` makes of the iterator ``given``, each item checked to be a ``kind``."""
    wanted = f"an iterator of {kind.__module__.partition('.')[0]}.{kind.__name__}"
    source = _Watched(given)
    results: Any = _in_user_code(function, source)
    if conf.any_iterable and not isinstance(results, Iterator):
        results = _iterator(results)
    if not isinstance(results, Iterator):
        raise declared.mismatch(wanted, type(results).__name__)
    with _Closed(results):
        while True:
            result = _in_user_code(next, results, _END)
            if source.failure is not None:
                raise source.failure
            if result is _END:
                return
            if not isinstance(result, kind):
                raise declared.mismatch(wanted, f"an iterator of {type(result).__name__}")
            yield result
            del result


def _iterator(results: object) -> object:
    """The iterator over ``results``, or ``results`` itself if there is none."""
    try:
        return iter(results)  # type: ignore[call-overload]
    except TypeError:
        return results


class _Closed:
    """Closes an iterator at the end of a block, if it can be closed: generators run their ``finally``."""

    __slots__ = ("_iterator",)

    def __init__(self, iterator: object) -> None:
        self._iterator = iterator

    def __enter__(self) -> None:
        pass

    def __exit__(self, *raised: object) -> None:
        close = getattr(self._iterator, "close", None)
        if close is not None:
            close()


# --- what functions are asked about themselves ----------------------------------------------------------


def _function_name(function: Any) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__))


def _takes_key(method: str, function: Function, rows: str) -> bool:
    """Whether ``function`` has two parameters. As in PySpark, those with a default are counted."""
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(function, follow_wrapped=False).parameters.values()
    count = sum(parameter.kind in positional for parameter in parameters)
    if count not in (1, 2):
        raise UsageError(
            f"the function of {method} must take one argument ({rows}) or two (key, {rows}), but"
            f" {_function_name(function)} takes {count} by position. Wrap it in a lambda"
        )
    return count == 2


def _refuse_iterator_form(
    method: str, function: Function, infer: Callable[[Any], Any], iterator_form: int, instead: str
) -> None:
    """PySpark tells a function of iterators by its type hints, and so do we."""
    try:
        form = infer(function)
    except Exception:  # hints that PySpark cannot make sense of: it warns and takes the plain form
        return
    if form == iterator_form:
        raise UnsupportedError(
            f"by its type hints the function {_function_name(function)} of {method} takes a group as an"
            f" iterator, which is not supported yet: write it to take and return {instead}"
        )


# --- Arrow and pandas, by PySpark's own code ------------------------------------------------------------


def _given_arrow(items: Iterator[T], conf: FunctionConf) -> Iterator[T]:
    """Batches or tables as functions see them: with 64-bit offsets if the session says so."""
    return map(_with_large_types, items) if conf.large_types else items


def _with_large_types(rows: Any) -> Any:
    return rows.cast(with_large_types(rows.schema))


def _pandas_frame(batch: pa.RecordBatch, conf: FunctionConf) -> pd.DataFrame:
    """The data frame that ``mapInPandas`` gives for ``batch``.

    All columns are converted at once, as fields of a struct: the dtype that PySpark 4.2+ gives to a column
    of integers with nulls depends on which types the other columns have.
    """
    import pandas as pd

    if batch.num_columns == 0:
        return pd.DataFrame(index=pd.RangeIndex(batch.num_rows))
    struct = pa.RecordBatch.from_arrays([batch.to_struct_array()], ["_0"])
    frame: pd.DataFrame = _to_pandas(struct, conf, structs_as_frames=True)[0]
    return frame


def _pandas_series(table: pa.Table, conf: FunctionConf) -> list[pd.Series]:
    return _to_pandas(table.combine_chunks(), conf, structs_as_frames=False)


def _to_pandas(rows: pa.RecordBatch | pa.Table, conf: FunctionConf, *, structs_as_frames: bool) -> list[Any]:
    try:
        from pyspark.sql.conversion import ArrowBatchTransformer
    except ImportError:  # PySpark 4.1
        serializer = _serializer(conf, structs_as_frames)
        return [
            serializer.arrow_to_pandas(column, position).rename(name)
            if not structs_as_frames
            else serializer.arrow_to_pandas(column, position)
            for position, (name, column) in enumerate(zip(rows.schema.names, rows.columns, strict=True))
        ]
    series: list[Any] = ArrowBatchTransformer.to_pandas(
        rows,
        timezone=conf.timezone,
        prefer_int_ext_dtype=conf.extension_integers,
        df_for_struct=structs_as_frames,
    )
    return series


def _arrow_batch(frame: pd.DataFrame, schema: st.StructType, conf: FunctionConf) -> pa.RecordBatch:
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
    """PySpark 4.1 converts in methods of its serializers, which cache converters."""
    from pyspark.sql.pandas.serializers import ArrowStreamPandasUDFSerializer

    return ArrowStreamPandasUDFSerializer(
        conf.timezone,
        conf.safe_cast,
        conf.assign_by_name,
        df_for_struct=structs_as_frames,
        arrow_cast=True,
        int_to_decimal_coercion_enabled=conf.int_to_decimal,
    )
