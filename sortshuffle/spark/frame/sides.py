"""Which side makes a call on a frame: decorators for the methods that Python's side has (`two_sided`).

    python_operator    Python, if the rows are there, or if an argument is an expression of Arrow
    python_exchange    the same; a frame of Spark's side remembers the call, in case a Python function follows
    python_function    Python, wherever the rows are: they go there

Python refuses a call with a `UsageError`. Then PySpark's method of the same name makes it, and the result is
on Spark's side. A wrong setting of this package (`OptionError`) is no refusal, and neither is an error in a
call with an expression of Arrow, which PySpark does not know.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar, cast

import pyarrow.compute as pc
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame

from sortshuffle.errors import OptionError, UsageError
from sortshuffle.spark.frame.shadow import HiddenColumnError, Shadow
from sortshuffle.spark.frame.two_sided import PendingCall, TwoSidedFrame, frames_in

Method = TypeVar("Method", bound=Callable[..., Any])

# Operators that take over Spark's analysis of the call, in which columns are resolved
_READS_ANALYSIS = frozenset(("filter", "selectExpr", "withColumn", "withColumns"))
# Operators whose result has the same rows on both sides, whatever exchange comes before them
_ROW_BY_ROW = frozenset(("select", "selectExpr", "filter", "drop", "alias", "hint"))
_ROW_BY_ROW |= {"withColumn", "withColumns", "withColumnRenamed", "withColumnsRenamed"}
_TOO_NARROW = (
    "A column that was dropped before sample(), or before a call with an Arrow expression, cannot be used"
    " after it: the rows are Python's, and have only the columns that were there. Drop the column later."
)


def python_operator(method: Method) -> Method:
    """Decorate an operator of Python's side. It runs if the rows are there and it does not refuse the call.
    Otherwise PySpark's method of the same name runs, which also raises PySpark's errors for wrong calls."""
    return _operator(method, exchanges=False)


def python_exchange(method: Method) -> Method:
    """Decorate an operator that moves rows between partitions: `python_operator`, but a frame of Spark's side
    remembers the call. If a Python function needs the rows next, they cross before the exchange, and Python
    exchanges them: it does not know how rows lie that Spark exchanged, and would exchange them again."""
    return _operator(method, exchanges=True)


def _operator(method: Method, *, exchanges: bool) -> Method:
    name = method.__name__

    @functools.wraps(method)
    def call(self: TwoSidedFrame, *args: Any, **kwargs: Any) -> Any:
        # copied, because the call may be made again later: by the shadow, or when Python needs the rows
        args, kwargs = copied(args), {key: copied(value) for key, value in kwargs.items()}
        if _has_arrow(args, kwargs):  # PySpark does not know Arrow's expressions
            return method(self._to_python(name), *args, **kwargs)
        by_spark = functools.partial(self._by_spark, name, *args, **kwargs)
        if self._is_in_python:
            shadow = self._shadow_of(name, args, kwargs)
            others = frames_in([*args, *kwargs.values()])
            return attempt(
                self, name, lambda frame: _checked(method, frame, args, kwargs), by_spark, shadow, others
            )
        result = by_spark()
        if exchanges or (self._pending_call is not None and name in _ROW_BY_ROW):
            result._pending_call = PendingCall(
                self, lambda source: _checked(method, source._to_python(name), args, kwargs)
            )
        return result

    return cast(Method, call)


def python_function(method: Method) -> Method:
    """Decorate an operator that brings rows from Spark's side to Python's. If it refuses the call, PySpark's
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
    shadow: Shadow | None = None,
    others: Iterable[TwoSidedFrame] = (),
) -> Any:
    """Return ``in_python(frame)``, with the frame's rows brought from Spark's side if they are there; or
    ``by_spark()`` if Python refuses the call. ``shadow``: of the result, if it is the same call in Spark.
    ``others``: frames among the arguments, whose crossings have been logged."""
    try:
        result = in_python(frame if frame._is_in_python else frame._for_function(operator))
    except OptionError:
        raise
    except UsageError as refusal:
        result = _made_by_spark(frame, operator, by_spark, shadow)
        if isinstance(result, TwoSidedFrame):
            result._refuse(operator, str(refusal), crosses=frame._is_in_python)
        return result
    if isinstance(result, TwoSidedFrame) and result is not frame:
        if result._is_in_python and result._own_shadow is None and shadow is not None:
            result._set_shadow(shadow)
        result._log_new(frame, *others)
    return result


def _made_by_spark(
    frame: TwoSidedFrame, operator: str, by_spark: Callable[[], Any], shadow: Shadow | None
) -> Any:
    """Return what Spark makes of a call that Python refused. ``shadow``: as in `attempt`."""
    if shadow is None or not frame._is_in_python:
        return by_spark()
    without_rows = shadow.dataframe()  # a wrong call fails here, before Spark plans the rows
    if not frame._shadow.needs_hidden(without_rows):
        return by_spark()
    try:
        return frame._wrap(operator, frame._shadow.with_rows(without_rows, shadow.bases), [])
    except HiddenColumnError:
        try:
            return by_spark()
        except AnalysisException as error:
            add_note = getattr(error, "add_note", None)  # since Python 3.11
            if add_note is not None:
                add_note(_TOO_NARROW)
            raise


def copied(value: Any) -> Any:
    """Return a copy of a list, a dict or a tuple of such, and anything else as it is."""
    if type(value) is tuple:  # a Row stays one
        return tuple(map(copied, value))
    if isinstance(value, list):
        return list(value)
    return dict(value) if isinstance(value, dict) else value


def _checked(
    method: Callable[..., Any], frame: TwoSidedFrame, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Call an operator of Python's side, after `_check_columns` if it looks columns up by name."""
    if method.__name__ not in _READS_ANALYSIS:
        values = [*args, *kwargs.values()]
        others = [frame._as_frame(each) for each in values if isinstance(each, DataFrame)]
        frame._check_columns(list(columns_in(values)), others)
    return method(frame, *args, **kwargs)


def columns_in(values: Iterable[Any]) -> Iterator[Column]:
    """Yield the columns among the arguments of a call, also those in lists, tuples and dicts."""
    for value in values:
        if isinstance(value, Column):
            yield value
        elif isinstance(value, Mapping):
            yield from columns_in(value.values())
        elif isinstance(value, list | tuple):
            yield from columns_in(value)


def _has_arrow(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Return whether the arguments of a call contain an Arrow expression."""
    values = [*args, *kwargs.values()]
    values += [each for value in values if isinstance(value, Mapping) for each in value.values()]
    return any(isinstance(value, pc.Expression) for value in values)
