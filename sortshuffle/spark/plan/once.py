"""`once`: an attribute that is computed on first use, and then kept.

It is `functools.cached_property` without a lock. In Python 3.10 and 3.11 that has one lock for all instances
of a class, which is held while the value is computed. Origins compute values that take the locks of
exchanges, and other origins compute values under these locks: two threads could deadlock. Here two threads
may compute a value at the same time. That only costs time: one of the values is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class once(Generic[T]):  # noqa: N801  it is used as `property` is
    """Decorates a method, whose value it keeps in the instance's ``__dict__``."""

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute = compute
        self._name = compute.__name__
        self.__doc__ = compute.__doc__

    def __get__(self, instance: Any, owner: type) -> T:
        if instance is None:
            return self  # type: ignore[return-value]  # accessed on the class, as introspection does
        value: T = instance.__dict__.setdefault(self._name, self._compute(instance))
        # from now on the instance's attribute takes precedence over this descriptor
        return value
