"""Rows of a number and some KiB of bytes that tell it, made and looked at without a loop over rows."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

ROW_BYTES = 16 << 10
_BINARY = pa.binary()
SCHEMA = pa.schema([("id", pa.int64()), ("bytes", _BINARY)])
_TEMPLATE = np.random.default_rng(1).integers(0, 256, ROW_BYTES, np.uint8)


def rows(first: int, count: int, kind: pa.DataType = _BINARY) -> pa.RecordBatch:
    """Rows with the numbers from ``first`` on. Their bytes do not compress: each is turned by its number."""
    ids = np.arange(first, first + count)
    payload = np.empty((count, ROW_BYTES), np.uint8)
    np.bitwise_xor(_TEMPLATE, (ids % 251).astype(np.uint8)[:, None], out=payload)
    payload[:, :8] = ids.astype("<i8").view(np.uint8).reshape(count, 8)
    width = np.int64 if pa.types.is_large_binary(kind) else np.int32
    offsets = np.arange(0, (count + 1) * ROW_BYTES, ROW_BYTES, dtype=width)
    column = pa.Array.from_buffers(kind, count, [None, pa.py_buffer(offsets), pa.py_buffer(payload)])
    return pa.record_batch([pa.array(ids), column], names=["id", "bytes"])


def are_right(batch: pa.RecordBatch) -> bool:
    """Whether the bytes of every row are those of its number."""
    ids = batch["id"].to_numpy()
    column = batch["bytes"]
    _, offsets, data = column.buffers()
    width = np.int64 if pa.types.is_large_binary(column.type) else np.int32
    bounds = np.frombuffer(offsets, width)[column.offset : column.offset + len(column) + 1]
    if (np.diff(bounds) != ROW_BYTES).any():
        return False
    payload = np.frombuffer(data, np.uint8)[bounds[0] : bounds[-1]].reshape(len(ids), ROW_BYTES)
    numbers = payload[:, :8].copy().view("<i8").ravel()
    bits = payload[:, 8::1024] ^ _TEMPLATE[8::1024]
    return bool((numbers == ids).all() and (bits == (ids % 251).astype(np.uint8)[:, None]).all())
