"""`TwoSidedFrame`: a DataFrame whose rows are Spark's or Python's, and how they cross from side to side.

    Spark's side    the frame is a plan of Spark's, as in PySpark, and Spark does every call
    Python's side   the frame is `Rows`. Operators that this package has continue there (`sides`). All other
                    calls go to Spark, and the frames that they return are on Spark's side

A Python function brings rows from Spark's side to Python's. Crossing plans nothing and moves no row: that
happens when Spark or an action needs them. `explain()` lists the crossings.

Spark analyses the calls of both sides: those of Python's side on the frames' shadows (`shadow`), which also
have the columns, such as ``frame.k``. `classic_frame` and `connect_frame` connect this to PySpark's two kinds
of DataFrame.
"""

from __future__ import annotations

import functools
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

from pyspark.sql import Column, DataFrame

from sortshuffle.errors import ColumnError, OptionError, UnsupportedError, UsageError
from sortshuffle.spark.frame.crossings import Crossing, Note, SparkFunction, log, united
from sortshuffle.spark.frame.delegation import dispatch_to
from sortshuffle.spark.frame.shadow import Base, Shadow, next_base
from sortshuffle.spark.operators.catalyst import tree_of
from sortshuffle.spark.operators.dataframe_facts import DataFrameFacts
from sortshuffle.spark.operators.parquet_scan import ArrowTranslation, NoScan, scan_of
from sortshuffle.spark.operators.scan_reasons import why_not_cached
from sortshuffle.spark.operators.translation import arrow_expression
from sortshuffle.spark.operators.twin import empty_twin
from sortshuffle.spark.plan.chain import Chain, FrameContext, Origin, Rows, next_number
from sortshuffle.spark.plan.coalescing import for_action
from sortshuffle.spark.plan.hints import for_spark
from sortshuffle.spark.plan.origins import DataFrameOrigin
from sortshuffle.spark.plan.spark_cache import reading_kept
from sortshuffle.spark.plan.staging import plan_stage
from sortshuffle.spark.session.requirements import has_profiler, require_running
from sortshuffle.spark.worker.stages import ToSpark

Frame = TypeVar("Frame", bound="TwoSidedFrame")


class TwoSidedFrame(DataFrame):
    """The base of `ShuffleFrame`. What it adds to PySpark's DataFrame is private, because a public attribute
    would hide a column of its name."""

    # Attributes have defaults in the class, because PySpark looks for missing ones among the columns.
    _own_rows: Rows | None = None  # on Python's side
    _plain: DataFrame | None = None  # Spark's form of the rows; on Python's side, once it is planned
    _read_at_once: DataFrame | None = None  # on Python's side: the same for actions
    _facts: DataFrameFacts | None = None  # on Python's side: of a DataFrame of files, which may be a scan
    _scanned_rows: Rows | None = None  # what `_scanned` found
    _pending_call: PendingCall | None = None  # on Spark's side: what makes the rows if Python needs them
    _own_shadow: Shadow | None = None  # made by `_shadow`, unless the call that made the frame has set it
    _notes: tuple[Note, ...] = ()  # crossings, and functions that Spark runs
    _is_new = False  # made by PySpark itself, so that it does not know the frames that it was made of
    _is_kept = False  # in Spark's cache
    _is_observed = False  # by `observe`, whose figures only arrive if Spark runs the plan as a query
    _runs: list[int]  # numbers of the result stages
    # of `_plain`, `_read_at_once`, `_own_shadow`, `_scanned_rows`, `_pending_call`; taken before the locks of
    # other frames
    _lock: threading.RLock
    _shadow_class: type[Shadow]

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        return object.__new__(cls)  # the parent's would make an ordinary DataFrame

    # ---- making frames ------------------------------------------------------------------------------

    @classmethod
    @abstractmethod
    def _without_rows(cls: type[Frame], session: Any) -> Frame:
        """Return a frame for the caller to fill. ``session``: its `sparkSession`."""

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

    def _as_frame(self: Frame, df: DataFrame) -> Frame:
        """Return ``df``, or a frame of Spark's side if it is an ordinary DataFrame."""
        own = isinstance(df, TwoSidedFrame)
        return cast(Frame, df) if own else self._of_plain(df, self.sparkSession)

    def _derive(self: Frame, rows: Rows, *others: TwoSidedFrame) -> Frame:
        """Return a frame of Python's side, made from this frame and ``others``."""
        frame = self._of_rows(rows, self.sparkSession)
        sources: tuple[TwoSidedFrame, ...] = (self, *others)
        frame._notes = united(each._notes for each in sources)
        return frame

    # ---- Python's side ------------------------------------------------------------------------------

    @property
    def _is_in_python(self) -> bool:
        """Whether the frame is on Python's side."""
        return self._own_rows is not None

    @property
    def _rows(self) -> Rows:
        """The rows with which frames derived in Python begin. Nothing is known of where rows in Spark's cache
        are placed, because they come from no exchange of ours."""
        own = self._own_rows
        if own is None:
            return self._to_python("rows")._rows
        if self._facts is not None and not self._is_kept:
            own = self._scanned(own, self._facts)
        chain = reading_kept(own.chain)
        if chain is own.chain and self._is_kept:
            origin = DataFrameOrigin(self._to_spark(), chain.wire)
            chain = Chain(own.context, origin, own.schema, chain.wire)
        return own if chain is own.chain else Rows(chain, broadcast=own.broadcast)

    def _scanned(self, own: Rows, facts: DataFrameFacts) -> Rows:
        """Return the rows of Parquet files as a scan by the workers, if Spark's plan is nothing else. It is
        looked at when the first operator needs it, because that takes longer than to make a frame."""
        origin = own.chain.origin
        assert isinstance(origin, DataFrameOrigin)
        with self._lock:
            if self._scanned_rows is None:
                scan = scan_of(origin.source, facts, own.context, _translation(own.context.conf.timezone))
                self._scanned_rows = scan if isinstance(scan, Rows) else own
            is_scan = self._scanned_rows is not own
            # the DataFrame may have been cached since the first operator
            return own if is_scan and why_not_cached(origin.source) else self._scanned_rows

    @property
    def _chain(self) -> Chain:
        return self._rows.chain

    def _to_python(self: Frame, operator: str) -> Frame:
        """Return a frame of the same rows on Python's side. ``operator``: what needs them there. Raises
        `UnsupportedError` if Arrow cannot carry the rows."""
        if self._is_in_python:
            return self
        made = self._by_pending_calls()
        if made is not None:
            frame = self._derive(made._rows, made)
        else:
            plain = self._to_spark()
            facts = DataFrameFacts.of(plain)
            rows = rows_of(plain, facts)
            scan = scan_of(plain, facts, rows.context, _translation(rows.context.conf.timezone))
            frame = self._derive(scan if isinstance(scan, Rows) else rows)
            if isinstance(scan, NoScan):
                frame._cross(operator, "Python", f"Spark makes them, because {scan.reason}")
        frame._set_shadow(self._shadow)
        return frame

    def _by_pending_calls(self) -> TwoSidedFrame | None:
        """Return the same rows, made in Python by the calls that this frame remembers; None if Python refuses
        one, or if there are none. All frames derived from the result share its exchange."""
        frames: list[TwoSidedFrame] = []  # the last call comes first; no recursion, because there may be many
        frame = self
        # each attribute is read once, because another thread may forget the call
        while (call := frame._pending_call) is not None and call.made is None and not frame._is_kept:
            frames.append(frame)
            frame = call.source
        for frame in reversed(frames):
            frame._make_pending_call()
        call = self._pending_call
        return None if call is None or self._is_kept else call.made

    def _make_pending_call(self) -> None:
        with self._lock:
            if self._pending_call is None or self._pending_call.made is not None:
                return
            try:
                self._pending_call.make()
            except OptionError:
                raise
            except UsageError:
                self._pending_call = None

    def _has_observation(self) -> bool:
        """Return whether Spark must run the plan, because it has an observation."""
        return self._is_observed  # the plan is not known over Spark Connect, where views hide it

    def _for_function(self: Frame, operator: str) -> Frame:
        """Return `_to_python`, for a function that the user did not ask to run on this package.

        Raises `UnsupportedError` if the session's settings leave such functions to Spark.
        """
        if self._has_observation():
            raise UnsupportedError("Spark reports what observe() asks for only of plans that it runs itself")
        frame = self._to_python(operator)
        if frame._rows.context.options.session_python == "off":
            raise UnsupportedError("spark.sortshuffle.session.python is off")
        if frame._rows.context.conf.worker_logs:
            raise UnsupportedError("the logs of Spark's workers name only functions that Spark calls itself")
        if frame._rows.context.conf.profiled or has_profiler(self.sparkSession):
            raise UnsupportedError("Spark's profiler sees only functions that Spark calls itself")
        return frame

    # ---- Spark's side -------------------------------------------------------------------------------

    def _to_spark(self) -> DataFrame:
        """Return the rows as an ordinary DataFrame. On Python's side the first call plans the stage."""
        with self._lock:
            if self._plain is None:
                shadow = self._own_shadow
                self._plain = self._planned() if shadow is None else self._planned_with_ids(shadow)
            return self._plain

    def _planned_with_ids(self, shadow: Shadow) -> DataFrame:
        """Return `_planned` with the shadow's column ids: columns of this frame, and of those that it was
        derived from, resolve in it."""
        plain = shadow.with_ids(self._planned())
        if shadow.has_ids_of(plain):
            return plain
        origin = self._rows_for_spark.chain.origin
        if isinstance(origin, DataFrameOrigin):
            other = replace(origin, dataframe=shadow.renewed(origin.dataframe))
            plain = shadow.with_ids(self._planned(other))
        if not shadow.has_ids_of(plain):
            self._own_shadow = shadow.replaced_by(plain)
        return plain

    def _planned(self, begin: Origin | None = None) -> DataFrame:
        """Return the plan of the rows. ``begin``: an origin in place of the chain's."""
        rows = self._rows_for_spark
        plain = _plain_source(rows.chain)
        if plain is not None:
            return plain
        if begin is not None:
            rows = replace(rows, chain=replace(rows.chain, origin=begin))
        planned = self._planned_for_spark(rows)
        rows.chain.leave_to_spark()
        return planned

    def _planned_for_spark(self, rows: Rows) -> DataFrame:
        """Return a new result stage of these rows, with claims about them for Spark (`plan.hints`)."""
        chain, run = rows.chain, self._new_run()
        planned = plan_stage(chain, run, ToSpark(), chain.schema)
        return for_spark(planned, chain, rows.layout, run)

    @property
    def _rows_for_spark(self) -> Rows:
        own = self._own_rows
        assert own is not None  # a frame of Spark's side has `_plain` from the beginning
        return self._rows if self._facts is None else own  # Spark itself reads files that no operator follows

    def _for_action(self) -> DataFrame:
        """Return the rows for an action, which reads them before it returns: small partitions are coalesced.
        May run the map stages of exchanges (`plan.coalescing`). The plan is another one than that of
        `_to_spark`, so that no one else has it: its exchanges go with the frame. The caller holds the frame
        until the action's end."""
        if self._plain is not None:
            return self._plain
        rows = self._rows_for_spark
        chain = rows.chain
        if _plain_source(chain) is not None:
            return self._to_spark()
        coalesced = for_action(chain)  # without the lock: frames can be derived meanwhile
        with self._lock:
            if self._read_at_once is None and coalesced is chain:
                # a writer by partitions sorts rows, unless Spark knows that they are sorted
                self._read_at_once = self._planned_for_spark(rows)
            elif self._read_at_once is None:
                self._read_at_once = plan_stage(coalesced, self._new_run(), ToSpark(), chain.schema)
            return self._read_at_once

    def _new_run(self) -> int:
        """Return a number for a new result stage of this frame."""
        self._runs.append(next_number())
        return self._runs[-1]

    def _by_spark(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Return what PySpark's own method returns, with frames of ours for DataFrames."""
        own: Any = self._for_spark()
        values = [*args, *kwargs.values()]
        arguments = [_for_spark(each) for each in args]
        named = {key: _for_spark(value) for key, value in kwargs.items()}
        return self._wrap(method, getattr(own, method)(*arguments, **named), values)

    def _for_spark(self) -> DataFrame:
        """Return the DataFrame on which Spark makes calls that Python does not."""
        return self._to_spark()

    def _on_bases(self) -> DataFrame:
        """Return the rows as what Spark makes of those of the shadow's bases. The plans of frames that were
        made of one base then begin alike."""
        if not self._is_in_python:
            return self._to_spark()
        return self._shadow.with_rows(self._shadow.dataframe(), _bases([self]))

    def _delegated(self, method: str, result: Any, args: Sequence[Any]) -> Any:
        """Return the result of a method that only PySpark has (`delegation`)."""
        wrapped = self._wrap(method, result, args)
        if not self._is_in_python or isinstance(result, TwoSidedFrame):
            return wrapped
        results = wrapped if isinstance(wrapped, list) else [wrapped]
        frames = [each for each in results if isinstance(each, TwoSidedFrame)]
        for frame in frames:
            frame._cross(method, "Spark", _ONLY_SPARK)
        if frames:  # what crosses for several frames of one call is logged once
            frames[0]._log_new(self, *frames_in(args))
        if method in _READERS:
            self._log_read(method)
        return wrapped

    def _wrap(self, method: str, result: Any, args: Sequence[Any]) -> Any:
        """Return a method's result, with frames of ours for DataFrames. ``args``: those of the method."""
        if isinstance(result, list) and result and isinstance(result[0], DataFrame):
            return [self._wrap(method, each, args) for each in result]
        if not isinstance(result, DataFrame) or (isinstance(result, TwoSidedFrame) and not result._is_new):
            return result
        frame = self._as_frame(result)
        frame._is_new = False
        others = list(frames_in(args))
        frame._notes = united(each._notes for each in (self, *others))
        frame._is_observed = any(each._is_observed for each in (self, *others))
        if not self._is_in_python and any(each._is_in_python for each in others):
            frame._cross(method, "Spark", _LEFT_IS_SPARKS)
            frame._log_new(self, *others)
        return frame

    # ---- columns ------------------------------------------------------------------------------------

    @property
    def _shadow(self) -> Shadow:
        """The shadow, with the frame's columns."""
        with self._lock:
            if self._own_shadow is None:
                self._own_shadow = self._first_shadow()
            return self._own_shadow

    @property
    def _twin(self) -> DataFrame:
        """A DataFrame with the frame's columns, on which Spark analyses calls. Raises `StateError` if the
        session was stopped."""
        require_running(self.sparkSession)
        return self._shadow.dataframe()

    def _set_shadow(self, shadow: Shadow) -> None:
        """Set the shadow, of a new frame or of one that Spark keeps from now on."""
        self._own_shadow = shadow

    def _first_shadow(self) -> Shadow:
        """Return the shadow of a frame that no call of Spark's made."""
        if self._plain is not None:
            return self._shadow_class.of_plan(self._plain)
        own = self._own_rows
        assert own is not None
        chain, plain = own.chain, _plain_source(own.chain)
        if plain is not None:
            return self._shadow_class.of_plan(plain)
        return self._shadow_class(
            functools.partial(empty_twin, chain.context, chain.schema), base=next_base()
        )

    def _shadow_of(self, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Shadow:
        """Return the shadow of what a call on this frame returns: what Spark makes of the call on the shadows
        of all frames in it."""
        frames = (self, *frames_in([*args, *kwargs.values()]))
        own, values = self._shadow, [_shadow_or_value(each) for each in args]
        named = {key: _shadow_or_value(value) for key, value in kwargs.items()}

        def make() -> DataFrame:
            arguments = map(_dataframe_or_value, values)
            keywords = {key: _dataframe_or_value(value) for key, value in named.items()}
            made: DataFrame = getattr(own.dataframe(), method)(*arguments, **keywords)
            return made

        sources = [each._shadow for each in frames]
        base = next_base() if method in _CHOOSES_ROWS else None
        bases = None if method in self._shadow_class.impassable else _bases(frames)
        return self._shadow_class(make, sources, base=base, bases=bases)

    def _shadow_by(self, call: Callable[[DataFrame], DataFrame]) -> Shadow:
        """Return the shadow that ``call`` makes of this frame's shadow, as Spark makes the rows."""
        own = self._shadow
        return self._shadow_class(lambda: call(own.dataframe()), [own], bases=_bases([self]))

    def _base_shadow(self, call: Callable[[DataFrame], DataFrame]) -> Shadow:
        """Return the shadow that ``call`` makes of this frame's shadow, in a node of its own, for rows that
        Spark cannot make."""
        own = self._shadow
        return self._shadow_class(lambda: call(own.dataframe()), [own], base=next_base())

    def _check_columns(self, columns: Sequence[Column], others: Sequence[TwoSidedFrame] = ()) -> None:
        """Raise `ColumnError` if one of ``columns`` belongs neither to this frame nor to ``others``."""
        if columns and not self._has(columns, others):
            raise ColumnError("a column of another DataFrame is used, which only Spark may resolve")

    @abstractmethod
    def _has(self, columns: Sequence[Column], others: Sequence[TwoSidedFrame]) -> bool:
        """Return whether ``columns`` are columns of this frame or of ``others``, or of no DataFrame. If so,
        Python may look them up by name. May raise `ColumnError`, if that says more than no."""

    # ---- crossings, and functions that Spark runs ---------------------------------------------------

    @property
    def _crossings(self) -> tuple[Crossing, ...]:
        return tuple(each for each in self._notes if isinstance(each, Crossing))

    @property
    def _spark_functions(self) -> tuple[SparkFunction, ...]:
        return tuple(each for each in self._notes if isinstance(each, SparkFunction))

    def _cross(self, operator: str, to: str, reason: str) -> None:
        self._note(Crossing(operator, to, reason))

    def _refuse(self, operator: str, reason: str, *, crosses: bool) -> None:
        """Note, and log, that Spark made this frame because Python's side refused the call. ``crosses``: rows
        go to Spark for it; otherwise Spark runs a function on rows of its own."""
        before = self._notes
        self._note(Crossing(operator, "Spark", reason) if crosses else SparkFunction(operator, reason))
        self._log_all_but(before)

    def _note(self, note: Note) -> None:
        self._notes = united([self._notes, (note,)])

    def _log_new(self, *sources: TwoSidedFrame) -> None:
        """Log the crossings and functions that none of ``sources`` has, of which the frame was made."""
        self._log_all_but(note for source in sources for note in source._notes)

    def _log_all_but(self, known: Iterable[Note]) -> None:
        """Log the crossings and functions that are not among ``known``."""
        logged = set(known)
        for note in self._notes:
            if note not in logged:
                log(note)

    def _log_read(self, method: str) -> None:
        """Log that an action of Spark's reads the rows."""
        if self._is_in_python:
            self._log_crossing(method, "Spark", _READ_BY_SPARK)

    def _log_crossing(self, operator: str, to: str, reason: str) -> None:
        """Log a crossing that belongs to no frame, because the operator is an action."""
        log(Crossing(operator, to, reason))


dispatch_to(DataFrame, TwoSidedFrame)


class PendingCall:
    """A call on a frame of Spark's side, which Python makes if it needs the result's rows. ``source``: the
    frame. ``made``: what Python has made, which the frame's lock guards."""

    __slots__ = ("_call", "made", "source")

    def __init__(self, source: TwoSidedFrame, call: Callable[[TwoSidedFrame], TwoSidedFrame]) -> None:
        self.source = source
        self._call = call
        self.made: TwoSidedFrame | None = None

    def make(self) -> None:
        """Make the call in Python. Raises `UsageError` if Python refuses it."""
        self.made = self._call(self.source)


def _plain_source(chain: Chain) -> DataFrame | None:
    """Return the DataFrame that a chain is, if it is nothing else."""
    origin = chain.origin
    return origin.source if isinstance(origin, DataFrameOrigin) and not chain.steps else None


def _translation(timezone: str) -> ArrowTranslation:
    return lambda nodes, names: arrow_expression(tree_of(nodes), names, timezone)


def rows_of(plain: DataFrame, facts: DataFrameFacts) -> Rows:
    """Return the rows of an ordinary DataFrame for Python, as Spark gives them. ``facts``: of ``plain``.

    Raises `UnsupportedError` for streaming frames and for columns that Arrow cannot carry, and `OptionError`
    for a wrong ``spark.sortshuffle.*`` setting.
    """
    if facts.is_streaming:
        raise UnsupportedError(
            "a streaming DataFrame has no end, and this shuffle hands over only finished outputs: use"
            " foreachBatch and call frame() on each batch"
        )
    context = FrameContext.of(plain.sparkSession)
    wire = context.wire(facts.schema)
    origin = DataFrameOrigin(plain, wire)
    return Rows(Chain(context, origin, facts.schema, wire))


# Why rows go to Spark, and what would keep them in Python
_ONLY_SPARK = "only Spark has this method; those that keep rows in Python are listed in docs/spark.md"
_LEFT_IS_SPARKS = "the rows of the frame on which it is called are there; frame() takes those to Python"
_READ_BY_SPARK = "Spark passes them on; count(), write.parquet() and mapInArrow() keep them in Python"
# PySpark's methods that read the rows at once; others call `rdd`, `collect` or `take`
ACTIONS = frozenset(("isEmpty", "tail", "toArrow", "toLocalIterator", "toPandas"))
# The same; the first is lazy, and the others may refuse their columns first
_READERS = ACTIONS | {"toJSON", "approxQuantile", "corr", "cov"}
# Operators that keep some of several rows, where Spark may keep others
_CHOOSES_ROWS = frozenset(("limit", "sample", "distinct", "dropDuplicates"))


def frames_in(args: Iterable[Any]) -> Iterator[TwoSidedFrame]:
    """Yield the frames among the arguments of a call."""
    return (each for each in args if isinstance(each, TwoSidedFrame))


def _for_spark(argument: Any) -> Any:
    return argument._for_spark() if isinstance(argument, TwoSidedFrame) else argument


def _shadow_or_value(argument: Any) -> Any:
    return argument._shadow if isinstance(argument, TwoSidedFrame) else argument


def _dataframe_or_value(argument: Any) -> Any:
    return argument.dataframe() if isinstance(argument, Shadow) else argument


def _bases(frames: Iterable[TwoSidedFrame]) -> dict[int, Base]:
    """Return the bases in the shadows of ``frames``, by number."""
    bases: dict[int, Base] = {}
    for frame in frames:
        shadow = frame._shadow
        bases |= shadow.bases
        if shadow.base is not None:
            bases[shadow.base] = Base(frame, shadow.is_passable)
    return bases
