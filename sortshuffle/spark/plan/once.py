"""`once`: a value that is computed when it is first asked for, and kept.

`functools.cached_property` without its lock. In Python 3.10 and 3.11 that is one lock for all instances of a
class, held while the value is computed; and what origins compute takes the locks of exchanges, under which
other origins compute theirs: two threads would wait for each other. Here two threads that ask at once may
both compute it, which costs time and nothing else: one value is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class once(Generic[T]):  # noqa: N801  it is used as `property` is
    """Decorates a method of a class whose instances have a ``__dict__``."""

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute = compute
        self._name = compute.__name__
        self.__doc__ = compute.__doc__

    def __get__(self, instance: Any, owner: type) -> T:
        if instance is None:
            return self  # type: ignore[return-value]  # asked of the class, by what describes it
        value: T = instance.__dict__.setdefault(self._name, self._compute(instance))
        # from now on the instance's own attribute is found first
        return value
