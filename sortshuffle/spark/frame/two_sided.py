"""`TwoSidedFrame`: a DataFrame whose rows are Spark's or Python's, and how they cross from side to side.

    Spark's side    the frame is a plan of Spark's, as in PySpark, and Spark does every call
    Python's side   the frame is `Rows`. Operators that this package has continue there (`in_python`). All
                    other calls go to Spark, and the frames that they return are on Spark's side

A Python function takes rows from Spark's side (`taking_rows`). Crossing plans nothing and moves no row: that
happens when Spark or an action needs them. `explain()` lists the crossings.

A column such as ``frame.k`` must be a column of a plan, and a frame of Python's side has none yet. So its
columns are those of its *shadow*: a DataFrame without rows, with the same columns. While rows stay in Python,
the shadow of a result is what Spark makes of the same call on the shadow. So Spark analyses every call, and a
column of a frame can be used on the frames derived from it, as in PySpark. When rows go to Spark, their plan
gets the shadow's column ids.

`classic_frame` and `connect_frame` connect this to PySpark's two kinds of DataFrame.
"""

from __future__ import annotations

import functools
import logging
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame

from sortshuffle.errors import OptionError, UnsupportedError, UsageError
from sortshuffle.spark.operators.catalyst import tree_of
from sortshuffle.spark.operators.parquet_scan import ArrowTranslation, NoScan, scan_of
from sortshuffle.spark.operators.translation import arrow_expression
from sortshuffle.spark.operators.twin import twin
from sortshuffle.spark.plan.chain import Chain, FrameContext, Rows, next_number
from sortshuffle.spark.plan.hints import for_spark
from sortshuffle.spark.plan.origins import DataFrameOrigin
from sortshuffle.spark.plan.staging import plan_stage
from sortshuffle.spark.worker.stages import ToSpark

LOGGER = "sortshuffle.frame"

_log = logging.getLogger(LOGGER)

Method = TypeVar("Method", bound=Callable[..., Any])
Frame = TypeVar("Frame", bound="TwoSidedFrame")


@dataclass(frozen=True, slots=True)
class Crossing:
    """Rows that go from one side to the other. ``operator``: the call that needs them there. ``to``: "Python"
    or "Spark". ``reason``: why they cross."""

    operator: str
    to: str
    reason: str

    def describe(self) -> str:
        return f"{self.operator}(): rows go to {self.to}: {self.reason}"


class TwoSidedFrame(DataFrame):
    """The base of `ShuffleFrame`. What it adds to PySpark's DataFrame is private, because a public attribute
    would hide a column of its name."""

    # Attributes have defaults in the class, because PySpark looks for missing ones among the columns.
    _own_rows: Rows | None = None  # on Python's side
    _plain: DataFrame | None = None  # Spark's form of the rows; on Python's side, once it is planned
    _when_taken: Callable[[], TwoSidedFrame] | None = None  # on Spark's side: the frame that Python takes
    _make_shadow: Callable[[], DataFrame] | None = None
    _sources: tuple[TwoSidedFrame, ...] = ()  # the frames of the call that `_make_shadow` makes
    _made_shadow: DataFrame | None = None
    _column_groups: Any = None  # of the shadow, for `_with_ids`
    _crossings: tuple[Crossing, ...] = ()
    _is_kept = False  # in Spark's cache
    _is_observed = False  # by `observe`, whose figures only arrive if Spark runs the plan as a query
    _runs: list[int]  # numbers of the result stages
    _lock: threading.RLock  # of `_plain`, the shadow and `_when_taken`; taken before the locks of sources

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        return object.__new__(cls)  # the parent's would make an ordinary DataFrame

    # ---- what depends on the kind of session --------------------------------------------------------

    @classmethod
    @abstractmethod
    def _without_rows(cls: type[Frame], session: Any) -> Frame:
        """Return a frame for the caller to fill. ``session``: its `sparkSession`."""

    @abstractmethod
    def _with_ids(self, plain: DataFrame, shadow: DataFrame) -> DataFrame:
        """Return ``plain`` with the column ids and qualifiers of ``shadow``."""

    def _check_columns(self, columns: Sequence[Column], others: Sequence[TwoSidedFrame] = ()) -> None:
        """Raise `ColumnError` if one of ``columns`` belongs neither to this frame nor to ``others``."""

    def _groups_of(self, shadow: DataFrame, sources: Sequence[TwoSidedFrame]) -> Any:
        """Return what `_with_ids` needs to know of the shadow's columns. ``sources``: the frames of the call
        that made it."""
        return None

    # ---- making frames ------------------------------------------------------------------------------

    @classmethod
    def _of_rows(cls: type[Frame], rows: Rows, session: Any) -> Frame:
        """Return a frame of Python's side."""
        frame = cls._without_rows(session)
        frame._own_rows = rows
        frame._runs, frame._lock = [], threading.RLock()
        return frame

    @classmethod
    def _of_plain(cls: type[Frame], plain: DataFrame, session: Any) -> Frame:
        """Return a frame of Spark's side."""
        frame = cls._without_rows(session)
        frame._plain = plain
        frame._runs, frame._lock = [], threading.RLock()
        return frame

    def _derive(self: Frame, rows: Rows, *others: TwoSidedFrame) -> Frame:
        """Return a frame of Python's side, made from this frame and ``others``."""
        frame = self._of_rows(rows, self.sparkSession)
        sources: tuple[TwoSidedFrame, ...] = (self, *others)
        frame._crossings = _united(each._crossings for each in sources)
        return frame

    # ---- Python's side ------------------------------------------------------------------------------

    @property
    def _rows(self) -> Rows:
        """The rows with which frames derived in Python begin. Nothing is known of where rows in Spark's cache
        are placed, because they come from no exchange of ours."""
        own = self._own_rows
        if own is None:
            return self._taken("rows")._rows
        if not self._is_kept:
            return own
        chain = Chain(
            own.context, DataFrameOrigin(self._as_plain(), own.chain.wire), own.schema, own.chain.wire
        )
        return Rows(chain, broadcast=own.broadcast)

    @property
    def _chain(self) -> Chain:
        return self._rows.chain

    def _taken(self: Frame, operator: str) -> Frame:
        """Return a frame of the same rows on Python's side. ``operator``: what needs them there. Raises
        `UnsupportedError` if Arrow cannot carry the rows."""
        if self._own_rows is not None:
            return self
        source = self._remembered()
        if source is not None:
            frame = self._derive(source._rows, source)
        else:
            plain = self._as_plain()
            rows = rows_of(plain, adaptive=True)
            scan = scan_of(plain, rows.context, _translation(rows.context.conf.timezone))
            frame = self._derive(scan if isinstance(scan, Rows) else rows)
            if isinstance(scan, NoScan):
                frame._cross(operator, "Python", f"Spark makes them, because {scan.reason}")
        frame._make_shadow, frame._sources = self._shadow, (self,)
        return frame

    def _remembered(self) -> TwoSidedFrame | None:
        """Return the same rows, made in Python by the calls that this frame remembers; None if Python refuses
        one, or if there are none. All frames derived from the result share its exchange."""
        with self._lock:
            if self._when_taken is None or self._is_kept:
                return None
            try:
                frame = self._when_taken()
            except OptionError:
                raise
            except UsageError:
                self._when_taken = None
                return None
            self._when_taken = lambda: frame
            return frame

    def _taken_by_function(self: Frame, operator: str) -> Frame:
        """Return `_taken`, for a function that the user did not ask to run on this package.

        Raises `UnsupportedError` if the session's settings leave such functions to Spark.
        """
        if self._is_observed:
            raise UnsupportedError("Spark reports what observe() asks for only of plans that it runs itself")
        frame = self._taken(operator)
        if frame._rows.context.options.session_python == "off":
            raise UnsupportedError("spark.sortshuffle.session.python is off")
        return frame

    def _cross(self, operator: str, to: str, reason: str) -> None:
        self._crossings = (*self._crossings, Crossing(operator, to, reason))

    def _log_crossing(self, operator: str, to: str, reason: str) -> None:
        """Log a crossing that belongs to no frame, because the operator is an action."""
        _log.info("%s", Crossing(operator, to, reason).describe())

    # ---- Spark's side -------------------------------------------------------------------------------

    def _as_plain(self) -> DataFrame:
        """Return the rows as an ordinary DataFrame. On Python's side the first call plans the stage."""
        with self._lock:
            if self._plain is None:
                planned = self._planned()
                if self._made_shadow is not None or self._make_shadow is not None:
                    # columns of this frame, and of those that it was derived from, must resolve in it
                    planned = self._with_ids(planned, self._shadow())
                self._plain = planned
            return self._plain

    def _planned(self) -> DataFrame:
        rows = self._own_rows
        assert rows is not None  # a frame of Spark's side has `_plain` from the beginning
        chain = rows.chain
        if isinstance(chain.origin, DataFrameOrigin) and not chain.steps:
            return chain.origin.source
        run = self._new_run()
        return for_spark(plan_stage(chain, run, ToSpark(), chain.schema), chain, rows.layout, run)

    def _new_run(self) -> int:
        """Return a number for a new result stage of this frame."""
        self._runs.append(next_number())
        return self._runs[-1]

    def _shadow(self) -> DataFrame:
        """Return the DataFrame that has this frame's columns, for Spark's analysis."""
        with self._lock:
            if self._plain is not None:
                return self._plain
            if self._made_shadow is None:
                shadow = self._new_shadow() if self._make_shadow is None else self._make_shadow()
                self._set_shadow(shadow, *self._sources)
            assert self._made_shadow is not None
            return self._made_shadow

    def _set_shadow(self, shadow: DataFrame, *sources: TwoSidedFrame) -> None:
        """Set the shadow, which Spark made in a call on the shadows of ``sources``."""
        self._made_shadow, self._column_groups = shadow, self._groups_of(shadow, sources)
        self._make_shadow, self._sources = None, ()  # they are no longer needed, and hold other frames

    def _new_shadow(self) -> DataFrame:
        chain = self._chain
        if isinstance(chain.origin, DataFrameOrigin) and not chain.steps:
            return chain.origin.source
        return twin(chain.context, chain.schema)

    def _by_spark(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Return what PySpark's own method returns, with frames of ours for DataFrames."""
        return self._wrap(getattr(super(), method)(*args, **kwargs), [*args, *kwargs.values()])

    def _delegated(self, method: str, result: Any, args: Sequence[Any]) -> Any:
        """Return the result of a method that only PySpark has (`delegation`)."""
        wrapped = self._wrap(result, args)
        if self._own_rows is not None and wrapped is not self:
            for frame in wrapped if isinstance(wrapped, list) else [wrapped]:
                if isinstance(frame, TwoSidedFrame):
                    frame._cross(method, "Spark", "only Spark has this method")
        return wrapped

    def _wrap(self, result: Any, args: Sequence[Any]) -> Any:
        """Return a method's result, with frames of ours for DataFrames. ``args``: those of the method."""
        if isinstance(result, list) and result and isinstance(result[0], DataFrame):
            return [self._wrap(each, args) for each in result]
        if not isinstance(result, DataFrame) or isinstance(result, TwoSidedFrame):
            return result
        frame = self._of_plain(result, self.sparkSession)
        sources = (self, *_frames_in(args))
        frame._crossings = _united(each._crossings for each in sources)
        frame._is_observed = any(each._is_observed for each in sources)
        return frame


def _translation(timezone: str) -> ArrowTranslation:
    return lambda nodes, names: arrow_expression(tree_of(nodes), names, timezone)


def rows_of(plain: DataFrame, *, adaptive: bool = False) -> Rows:
    """Return the rows of an ordinary DataFrame for Python, as Spark gives them. ``adaptive``: exchange small
    rows into fewer partitions, if adaptive execution is on.

    Raises `UnsupportedError` for streaming frames and for columns that Arrow cannot carry, and `OptionError`
    for a wrong ``spark.sortshuffle.*`` setting.
    """
    if plain.isStreaming:
        raise UnsupportedError(
            "a streaming DataFrame has no end, and this shuffle hands over only finished outputs: use"
            " foreachBatch and call frame() on each batch"
        )
    context = FrameContext.of(plain.sparkSession, adaptive=adaptive)
    wire = context.wire(plain.schema)
    return Rows(Chain(context, DataFrameOrigin(plain, wire), plain.schema, wire))


def in_python(method: Method) -> Method:
    """Decorate an operator of Python's side. It runs if the rows are there and it does not refuse the call.
    Otherwise PySpark's method of the same name runs, which also raises PySpark's errors for wrong calls."""
    return _operator(method, exchanges=False)


def exchanging(method: Method) -> Method:
    """Decorate an operator that moves rows between partitions: `in_python`, but a frame of Spark's side
    remembers the call. If a Python function takes the rows next, they cross before the exchange, and Python
    exchanges them: it does not know how rows lie that Spark exchanged, and would exchange them again."""
    return _operator(method, exchanges=True)


def _operator(method: Method, *, exchanges: bool) -> Method:
    name = method.__name__

    @functools.wraps(method)
    def call(self: TwoSidedFrame, *args: Any, **kwargs: Any) -> Any:
        # copied, because the call may be made again later: by the shadow, or when Python takes the rows
        args, kwargs = tuple(map(_copied, args)), {key: _copied(value) for key, value in kwargs.items()}
        if has_arrow(args, kwargs):  # PySpark does not know Arrow's expressions
            return method(self._taken(name), *args, **kwargs)
        by_spark = functools.partial(self._by_spark, name, *args, **kwargs)
        if self._own_rows is None:
            result = by_spark()
            if exchanges or (self._when_taken is not None and name in _ROW_BY_ROW):
                result._when_taken = lambda: _checked(method, self._taken(name), args, kwargs)
            return result
        shadow = functools.partial(_shadow_of_call, self, name, args, kwargs)
        sources = (self, *_frames_in([*args, *kwargs.values()]))
        return attempt(
            self, name, lambda frame: _checked(method, frame, args, kwargs), by_spark, shadow, sources
        )

    return cast(Method, call)


def taking_rows(method: Method) -> Method:
    """Decorate an operator that takes rows from Spark's side to Python's. If it refuses the call, PySpark's
    method of the same name runs."""
    name = method.__name__

    @functools.wraps(method)
    def call(self: TwoSidedFrame, *args: Any, **kwargs: Any) -> Any:
        by_spark = functools.partial(self._by_spark, name, *args, **kwargs)
        return attempt(self, name, lambda frame: method(frame, *args, **kwargs), by_spark)

    return cast(Method, call)


def attempt(
    frame: TwoSidedFrame,
    operator: str,
    in_python: Callable[[Any], Any],
    by_spark: Callable[[], Any],
    shadow: Callable[[], DataFrame] | None = None,
    sources: tuple[TwoSidedFrame, ...] = (),
) -> Any:
    """Return ``in_python(frame)``, with the frame's rows taken from Spark's side if they are there; or
    ``by_spark()`` if Python refuses the call. ``shadow``: makes the shadow of the result, if it has none, of
    the shadows of ``sources``."""
    try:
        result = in_python(frame if frame._own_rows is not None else frame._taken_by_function(operator))
    except OptionError:
        raise
    except UsageError as refusal:
        if shadow is not None and frame._own_rows is not None:
            shadow()  # a wrong call fails here, before Spark plans the rows
        result = by_spark()
        if isinstance(result, TwoSidedFrame) and frame._own_rows is not None:
            result._cross(operator, "Spark", str(refusal))
    if not isinstance(result, TwoSidedFrame) or result is frame:
        return result
    if result._plain is None and result._made_shadow is None and result._make_shadow is None:
        result._make_shadow, result._sources = shadow, sources
    for crossing in result._crossings:
        if crossing not in frame._crossings:
            _log.info("%s", crossing.describe())
    return result


# Operators whose result has the same rows on both sides, whatever exchange comes before them
_ROW_BY_ROW = frozenset(("select", "selectExpr", "filter", "drop", "alias", "hint"))
_ROW_BY_ROW |= {"withColumn", "withColumns", "withColumnRenamed", "withColumnsRenamed"}


def _copied(value: Any) -> Any:
    """Return a copy of a list or a dict, and anything else as it is."""
    if isinstance(value, list):
        return list(value)
    return dict(value) if isinstance(value, dict) else value


def _checked(
    method: Callable[..., Any], frame: TwoSidedFrame, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Call an operator of Python's side, which looks columns up by name, after `_check_columns`."""
    values = [*args, *kwargs.values()]
    frame._check_columns(list(_columns_in(values)), list(_frames_in(values)))
    return method(frame, *args, **kwargs)


def _columns_in(values: Iterable[Any]) -> Iterator[Column]:
    for value in values:
        if isinstance(value, Column):
            yield value
        elif isinstance(value, Mapping):
            yield from _columns_in(value.values())
        elif isinstance(value, list | tuple):
            yield from _columns_in(value)


def has_arrow(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Return whether the arguments of a call contain an Arrow expression."""
    values = [*args, *kwargs.values()]
    values += [each for value in values if isinstance(value, Mapping) for each in value.values()]
    return any(isinstance(value, pc.Expression) for value in values)


def _frames_in(args: Iterable[Any]) -> Iterator[TwoSidedFrame]:
    return (each for each in args if isinstance(each, TwoSidedFrame))


def _united(crossings: Iterable[tuple[Crossing, ...]]) -> tuple[Crossing, ...]:
    return tuple(dict.fromkeys(each for part in crossings for each in part))


def _shadow_of_call(
    frame: TwoSidedFrame, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> DataFrame:
    """Return what Spark makes of a call on the shadows of all frames in it."""
    arguments = [each._shadow() if isinstance(each, TwoSidedFrame) else each for each in args]
    named = {key: each._shadow() if isinstance(each, TwoSidedFrame) else each for key, each in kwargs.items()}
    shadow: DataFrame = getattr(frame._shadow(), method)(*arguments, **named)
    return shadow
