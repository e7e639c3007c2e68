"""Names, arguments and type hints of users' functions, read on the driver."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeAlias

from pyspark.sql.pandas import typehints
from pyspark.util import PythonEvalType

from sortshuffle.errors import UsageError

Function: TypeAlias = Callable[..., Any]

_NUMBERS = ("none", "one", "two", "three")
_ARGUMENTS = ("no argument", "one argument", "two arguments")


def function_name(function: Any) -> str:
    """Return the name of a function for errors."""
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__))


def takes_key(method: str, function: Function, *rows: str) -> bool:
    """Return whether ``function`` takes a key before the arguments ``rows``. As in PySpark, parameters with a
    default are counted. Raises `UsageError` if it takes neither these arguments nor these and one more."""
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    try:
        parameters = inspect.signature(function, follow_wrapped=False).parameters.values()
    except (TypeError, ValueError) as error:  # some functions written in C do not tell
        raise UsageError(
            f"the arguments of {function_name(function)}, given to {method}, are unknown. Wrap it in a lambda"
        ) from error
    count = sum(parameter.kind in positional for parameter in parameters)
    without = len(rows)
    if count not in (without, without + 1):
        names = ", ".join(rows)
        raise UsageError(
            f"the function of {method} must take {_ARGUMENTS[without]} ({names}) or {_NUMBERS[without + 1]}"
            f" (key, {names}), but {function_name(function)} takes {count} by position. Wrap it in a lambda"
        )
    return count > without


def iterates_in_arrow(function: Function) -> bool:
    """Return whether hints map ``Iterator[pa.RecordBatch]``, or a key and such an iterator, to another."""
    return _is_of_form(function, "infer_group_arrow_eval_type_from_func", "SQL_GROUPED_MAP_ARROW_ITER_UDF")


def iterates_in_pandas(function: Function) -> bool:
    """Return whether hints map ``Iterator[pd.DataFrame]``, or a key and such an iterator, to another."""
    return _is_of_form(function, "infer_group_pandas_eval_type_from_func", "SQL_GROUPED_MAP_PANDAS_ITER_UDF")


def _is_of_form(function: Function, infer: str, form: str) -> bool:
    """Return whether PySpark infers ``form`` from the hints. Early releases lack the iterator forms."""
    inferred_by, wanted = getattr(typehints, infer, None), getattr(PythonEvalType, form, None)
    if inferred_by is None or wanted is None:
        return False
    try:
        return bool(inferred_by(function) == wanted)
    except Exception:  # PySpark cannot interpret these hints: it warns and takes the plain form
        return False
