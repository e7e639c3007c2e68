"""Errors of this package on their way from a Python worker to the driver.

Spark passes the text of a worker's traceback on, and raises a `PythonException` with it: neither the class
nor the fields of the error come through. So a worker adds a note to each of its errors (`note_fields`): a
line of JSON after the message, the last line of the traceback. On the driver `cause` makes the error again
from that line, and `own_error` joins it with Spark's exception.

* Only a text with such a line is taken for an error of ours. A user's error that merely mentions one of our
  classes is not, and neither is a user's error that wraps one of ours.
* The line has values only: it names a class of `sortshuffle.errors`, and no code is run for it. A function
  that raises an error with a forged line gets the class that it wants, and nothing else.
* Python 3.10 has no notes: errors of its workers stay what Spark makes of them.
"""

from __future__ import annotations

import functools
import json
import re
from dataclasses import asdict
from typing import Any

from pyspark.errors import PySparkException

from sortshuffle import errors
from sortshuffle.errors import Place, SortShuffleError

_MARK = "[sortshuffle] "
_NOTE = re.compile(rf"^{re.escape(_MARK)}(\{{.*\}})\s*?$", re.MULTILINE)
_WRAPPED = re.compile(r"\s*(The above exception was the direct cause|During handling of the above exception)")
_BUILT_IN = ("errno", "strerror", "filename", "name", "path")  # fields of Python's own classes
_MOST_CAUSES = 10


def note_fields(error: BaseException) -> None:
    """Add the line to ``error`` from which the driver makes it again, if it is one of this package and does
    not have the line yet."""
    add_note = getattr(error, "add_note", None)
    if add_note is None or not isinstance(error, SortShuffleError):
        return
    if any(note.startswith(_MARK) for note in getattr(error, "__notes__", ())):
        return
    kind = _kind_of(type(error))
    note: dict[str, Any] = {"error": kind.__name__}
    fields = _fields_of(error)
    if fields:
        note["fields"] = fields
    if type(error) is not kind:
        note["shown"] = f"{type(error).__module__}.{type(error).__qualname__}"
    add_note(_MARK + json.dumps(note))


def cause(error: BaseException) -> SortShuffleError | None:
    """Return the error of this package that made a worker fail, if ``error`` is the exception that Spark then
    raises on the driver; None for any other. An error of this package is its own cause.

    The returned error has the class, the message and the fields of the worker's. Fields that are not plain
    values are text.
    """
    if isinstance(error, SortShuffleError):
        return error
    if not isinstance(error, PySparkException) and not hasattr(error, "java_exception"):
        return None
    each: BaseException | None = error
    for _ in range(_MOST_CAUSES):
        if each is None:
            return None
        found = _found_in(_text_of(each))
        if found is not None:
            return found
        each = getattr(each, "_cause", None)  # the cause in the JVM
    return None


def own_error(error: BaseException) -> SortShuffleError | None:
    """Return the exception to raise instead of one that Spark raises for an error of this package in a
    worker: it is an instance of the worker's class and of the class of ``error``. Return None if ``error``
    has another reason, and an error of this package as it is.

    It has the fields of both, and the methods of Spark's exception give what they gave. Its text is the
    worker's message and then Spark's text. A pickled copy is the worker's error alone, because Spark's
    exception belongs to a JVM.
    """
    found = cause(error)
    if found is None or found is error:
        return found
    fields = {**vars(error), **vars(found), **_built_in(found)}
    kinds: tuple[Any, Any] = type(found), type(error)
    joined = _make(_joined_class(*kinds), found.args, fields)
    joined._worker_error, joined._spark_error = found, error
    joined.__cause__ = error.__cause__
    joined.__suppress_context__ = True  # raised while ``error`` is handled, it says all that this says
    made: SortShuffleError = joined.with_traceback(error.__traceback__)
    return made


class _Joined:
    """What the classes of `own_error` add to their two bases."""

    _worker_error: SortShuffleError
    _spark_error: BaseException

    def __str__(self) -> str:
        return f"{self._worker_error}\n\n{self._spark_error}"

    def __reduce__(self) -> tuple[object, ...]:
        return _as_it_is, (self._worker_error,)


def _as_it_is(error: SortShuffleError) -> SortShuffleError:
    return error


@functools.lru_cache
def _joined_class(ours: Any, sparks: Any) -> type[Any]:
    names = {"__module__": ours.__module__, "__qualname__": ours.__qualname__, "__doc__": ours.__doc__}
    return type(ours.__name__, (_Joined, ours, sparks), names)


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # the text of a Java exception is in the JVM, which may be gone
        return ""


def _found_in(text: str) -> SortShuffleError | None:
    """Make the error again whose traceback is in ``text``."""
    notes = list(_NOTE.finditer(text))
    if not notes or _WRAPPED.match(text, notes[-1].end()):
        return None
    try:
        note = json.loads(notes[-1][1])
        kind = getattr(errors, note["error"])
        shown = note.get("shown", f"{errors.__name__}.{note['error']}")
        fields = {name: _field(value) for name, value in note.get("fields", {}).items()}
        is_ours = issubclass(kind, SortShuffleError)
    except (ValueError, TypeError, KeyError, AttributeError):  # not written by `note_fields`
        return None
    if not is_ours or any(not name.isidentifier() or name.startswith("_") for name in fields):
        return None
    message = text[: notes[-1].start()].rpartition(f"{shown}: ")[2].rstrip("\n")
    made: SortShuffleError = _make(kind, (message,), fields)
    return made


def _make(kind: type[Any], args: tuple[Any, ...], fields: dict[str, Any]) -> Any:
    """Make an error without its ``__init__``, whose arguments are not known."""
    layout: Any = next(each for each in (OSError, ImportError, Exception) if issubclass(kind, each))
    error = layout.__new__(kind)
    error.args = args
    for name, value in fields.items():
        setattr(error, name, value)
    return error


def _kind_of(kind: type) -> type:
    """Return the nearest class of `sortshuffle.errors`: ``kind`` itself, but for classes of other modules."""
    return next(each for each in kind.__mro__ if each.__module__ == errors.__name__)


def _fields_of(error: SortShuffleError) -> dict[str, Any]:
    own = {name: value for name, value in vars(error).items() if not name.startswith("_")}
    return {name: _plain(value) for name, value in {**_built_in(error), **own}.items()}


def _built_in(error: BaseException) -> dict[str, Any]:
    found = {name: getattr(error, name, None) for name in _BUILT_IN}
    return {name: value for name, value in found.items() if value is not None}


def _plain(value: object) -> Any:
    if isinstance(value, Place):
        return {"place": asdict(value)}
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def _field(value: Any) -> Any:
    return Place(**value["place"]) if isinstance(value, dict) else value
