"""`delegating`: makes PySpark's own methods return objects of ours, and raise errors of ours.

PySpark's methods construct PySpark's classes by name. The decorator wraps each method, and passes its result
to the class's ``_delegated``, which returns an object of ours instead of PySpark's. `shuffle_session` does
the same for readers, and for DataFrames that libraries make. `own_errors` turns a task's error, which arrives
as PySpark's, into one that is of both classes.

A method that is called as a function, such as ``DataFrame.union(frame, other)``, reaches PySpark's own
classes. `dispatch_to` leads such calls to ours.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias, TypeVar

from sortshuffle.spark.worker_errors import own_error

Class = TypeVar("Class", bound=type)


Target: TypeAlias = "Callable[[Any, str, tuple[Any, ...], dict[str, Any]], Any]"


def delegating(parent: type, target: Target | None = None) -> Callable[[Class], Class]:
    """Decorate a subclass of ``parent``. Every public method that it inherits from ``parent`` unchanged then
    returns ``self._delegated(name, result, args)``. ``target``: gets the call, and returns the object of
    PySpark's on which it is made; None: this object itself."""

    def decorate(cls: Class) -> Class:
        for name in dir(parent):
            inherited = inspect.getattr_static(parent, name)
            if _is_method(name, inherited) and inspect.getattr_static(cls, name) is inherited:
                setattr(cls, name, _wrapping(name, inherited, target))
        return cls

    return decorate


def dispatch_to(parent: type, subclass: type) -> None:
    """Make calls of the public methods of ``parent`` as functions, such as ``DataFrame.union(frame, other)``,
    reach the methods of the object's own class, if it is a ``subclass``."""
    for name, method in list(vars(parent).items()):
        if _is_method(name, method):
            setattr(parent, name, _dispatching(name, method, subclass))


def _dispatching(name: str, method: Callable[..., Any], subclass: type) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        own = getattr(type(args[0]), name) if args and isinstance(args[0], subclass) else method
        return (method if own is call else own)(*args, **kwargs)

    return call


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


def _wrapping(name: str, method: Callable[..., Any], target: Target | None) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        with own_errors():
            own = self if target is None else target(self, name, args, kwargs)
            result = method(self, *args, **kwargs) if own is self else getattr(own, name)(*args, **kwargs)
        return self._delegated(name, result, [*args, *kwargs.values()])

    return call
