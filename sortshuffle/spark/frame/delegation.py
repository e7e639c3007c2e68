"""`delegating`: makes PySpark's own methods return objects of ours, and raise errors of ours.

PySpark's methods name their own classes when they make a result. This is the one place where such results are
replaced: by each class's ``_delegated``. An error of ours that a task raised reaches the driver as PySpark's;
`own_errors` raises one that is both.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from sortshuffle.spark.worker_errors import own_error

Class = TypeVar("Class", bound=type)


def delegating(parent: type, target: Callable[[Any], Any] | None = None) -> Callable[[Class], Class]:
    """Decorate a subclass of ``parent``. Every public method that it inherits from ``parent`` unchanged then
    returns ``self._delegated(name, result, args)``. ``target``: returns the object of PySpark's on which
    these methods run; None: this object itself."""

    def decorate(cls: Class) -> Class:
        for name in dir(parent):
            inherited = inspect.getattr_static(parent, name)
            if _is_method(name, inherited) and inspect.getattr_static(cls, name) is inherited:
                setattr(cls, name, _wrapping(name, inherited, target))
        return cls

    return decorate


@contextmanager
def own_errors() -> Iterator[None]:
    """Raise errors of ours for those of PySpark's that a task of ours caused."""
    try:
        yield
    except Exception as error:
        own = own_error(error)
        if own is None or own is error:
            raise
        raise own  # noqa: B904  it refers to ``error`` itself


def _is_method(name: str, attribute: Any) -> bool:
    return not name.startswith("_") and inspect.isfunction(attribute)


def _wrapping(
    name: str, method: Callable[..., Any], target: Callable[[Any], Any] | None
) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        with own_errors():
            if target is None:
                result = method(self, *args, **kwargs)
            else:
                result = getattr(target(self), name)(*args, **kwargs)
        return self._delegated(name, result, [*args, *kwargs.values()])

    return call
