"""Checks of arguments, before anything is written or read. Errors name what was passed, and a remedy."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

from sortshuffle.errors import UnsupportedError, UsageError
from sortshuffle.partitioner import ChannelSelector, IdSelector
from sortshuffle.payload.events import (
    Barrier,
    EndOfData,
    EndOfPartition,
    Superstep,
    UserEvent,
)
from sortshuffle.writing.record_writer import KeySelector

_SELECTORS = ChannelSelector.__module__.rpartition(".")[0]  # the package of the selectors that place rows
AS_BATCHES = ": each of table.to_batches() or pa.RecordBatch.from_pylist(rows) is one"


def expect_sequence(records: Any) -> None:
    """Require a sequence: records are counted and iterated repeatedly, and an iterator would lose some."""
    if isinstance(records, pa.RecordBatch | pa.Table):
        raise UsageError(
            f"a {type_name(records)} is no list of records: open_output(schema=...), and write_batch"
        )
    if not isinstance(records, Sequence) or isinstance(records, str | bytes):
        raise UsageError(f"records are written as a list, not as a {type_name(records)}: pass list(...)")


def expect_keys(selector: KeySelector, keys: Any) -> None:
    """Check keys for a selector of this package, which takes rows and names columns by position."""
    if selector.is_broadcast or not _is_of_this_package(selector):
        return
    name = type_name(selector)
    if not isinstance(keys, pa.RecordBatch):
        raise UsageError(
            f"{name} takes keys as an Arrow record batch, one row for each record, not as a"
            f" {type_name(keys)}:"
            ' pa.record_batch([keys], ["key"])'
        )
    expect_columns(selector, keys.num_columns, "keys")


def expect_columns(selector: KeySelector, count: int, what: str) -> None:
    """Check that a selector of this package names only columns below ``count``. A foreign selector's ``keys``
    may mean anything, so they are not checked."""
    if not _is_of_this_package(selector):
        return
    columns = [getattr(key, "column", key) for key in getattr(selector, "keys", ())]
    columns += [selector.column] if isinstance(selector, IdSelector) else []
    if columns and max(columns) >= count:
        raise UsageError(f"{type_name(selector)} looks at column {max(columns)}, and the {what} have {count}")


def _is_of_this_package(selector: KeySelector) -> bool:
    return type(selector).__module__.startswith(_SELECTORS)


def type_name(thing: object) -> str:
    return type(thing).__name__


def expect_sendable(event: object) -> None:
    if isinstance(event, EndOfData | EndOfPartition):
        raise UsageError(f"{event.data_type.name} is what finish() sends")
    if not isinstance(event, Superstep | Barrier | UserEvent):
        raise UsageError(f"{event!r} is no event: send SUPERSTEP, a Barrier or a UserEvent")


def expect_storable(schema: pa.Schema) -> None:
    """Refuse columns that cannot be stored: of dictionaries, which messages do not have; of views, each
    message of which would have all text of the batch that it is a part of; and of runs, whose rows Arrow does
    not take."""
    for field in schema:
        if _has(pat.is_dictionary, field.type):
            raise UnsupportedError(
                f"the column {field.name} has a dictionary ({field.type}), which is not stored: cast the"
                " column to its value type"
            )
        if _has(pat.is_run_end_encoded, field.type):
            raise UnsupportedError(
                f"the column {field.name} has runs ({field.type}), which are not stored: decode its values"
                " (pyarrow.compute.run_end_decode)"
            )
        if any(_has(is_view, field.type) for is_view in _VIEWS):
            raise UnsupportedError(
                f"the column {field.name} has views ({field.type}), which are not stored: cast the column to"
                " the type without views"
            )


_VIEWS = (pat.is_string_view, pat.is_binary_view, pat.is_list_view, pat.is_large_list_view)


def _has(is_one: Callable[[pa.DataType], bool], kind: pa.DataType) -> bool:
    """Return whether a type, or one within it, is of this kind."""
    if isinstance(kind, pa.BaseExtensionType):
        return _has(is_one, kind.storage_type)
    within = (kind.field(number).type for number in range(kind.num_fields))
    return bool(is_one(kind)) or any(_has(is_one, each) for each in within)


def text_of_schema(schema: pa.Schema) -> str:
    return ", ".join(
        f"{field.name} {field.type}" + ("" if field.nullable else " not null") for field in schema
    )


def as_int(what: str, given: Any) -> int:
    """Return ``given`` as an int; NumPy's integers are accepted. Raises `UsageError`."""
    try:
        return operator.index(given)
    except TypeError:
        raise UsageError(f"a number of a {what} is an int, not {given!r}") from None
