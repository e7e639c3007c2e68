"""Rows whose memory is watched: a test sees when nothing refers to it any longer."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pyarrow as pa


def watched_numbers(count: int, value: int = 0) -> tuple[pa.Array, weakref.ref[Any]]:
    """So many int64 of one value, and a reference that is dead when their memory is free."""
    memory = np.full(count, value, np.int64)
    return pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(memory)]), weakref.ref(memory)
