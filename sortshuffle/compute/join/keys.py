"""Finds the rows of one side of a join whose keys equal those of the other side's rows.

Keys are compared as in Spark: -0.0 equals 0.0, NaN equals NaN, strings and binaries compare by their bytes,
structs field by field with null equal to null. A null key has no match, unless that key is compared
null-safely (``<=>``).

    key columns --> Keys: rank columns of the rows that can have a match --> 64-bit hashes
    Keys of the build side --> KeyTable: rows grouped by key, groups in a hash table

The hash table uses open addressing in NumPy arrays and is searched for a batch of keys at once: first at each
key's home slot, then at the next slot for the keys that found another key, and so on. A single plain key of
up to 64 bits is hashed by a bijection, so equal hashes mean equal keys; other keys are also compared, once
for each row that is looked up.

1.5 million int64 keys, looked up for 6 million rows, on one core: this table 0.20 to 0.33 s, Arrow's hash
join of keys and row numbers 0.44 to 0.53, Arrow's index_in 0.45 (without the rows of equal keys), NumPy's
searchsorted 0.59 after sorting the looked-up keys. Twenty bytes of text: this table 1.5 s, Arrow 1.05 to 1.4
on a busy machine; but Arrow rebuilds its table in every call, so it cannot be used batch by batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from sortshuffle.partitioner.row_hash import hash_rows
from sortshuffle.payload.ordering import SIGN, Int64s, RankColumn, Ranks, RowOrder
from sortshuffle.payload.stable_order import changes_in, stable_order

Hashes = npt.NDArray[np.uint64]
Groups = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]

NO_GROUP = -1
SLOTS_PER_GROUP = 2  # at least; 1.5 million groups, 6 million look-ups: 0.42 s with 1, 0.20 with 2
MOSTLY = 0.5  # reasoned, not measured: a comparison takes rows of one side or of both
TABLE_BYTES_PER_ROW = 96
"""Most bytes per row that making a table takes beside the keys: 12 bytes for each of up to four slots, and
the hashes, order and starts while the rows are grouped."""

_GOLDEN = np.uint64(0x9E37_79B9_7F4A_7C15)  # odd, so that multiplying by it is a bijection
_HALF = np.uint64(32)


@dataclass(frozen=True, slots=True)
class JoinKeyColumns:
    """The columns by which two sides are joined. ``left``, ``right``: positions of the columns; each pair has
    one type. ``null_safe``: for each pair, whether null equals null."""

    left: tuple[int, ...]
    right: tuple[int, ...]
    null_safe: tuple[bool, ...]

    def of(self, *, left: bool) -> tuple[int, ...]:
        """Return the positions of one side's columns."""
        return self.left if left else self.right


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of those of ``rows`` rows that can have a match. ``at``: positions of these, None for all."""

    columns: Sequence[RankColumn]
    rows: int
    at: Int64s | None

    @staticmethod
    def of(batch: pa.RecordBatch, columns: Sequence[int], null_safe: Sequence[bool]) -> Keys:
        """Return the keys that a batch has in ``columns``."""
        keys = pa.record_batch([batch.column(at) for at in columns], [str(at) for at in range(len(columns))])
        valid: Bools | None = None
        for column, safe in zip(keys.columns, null_safe, strict=True):
            if column.null_count and not safe:
                column_valid = np.asarray(column.is_valid())
                valid = column_valid if valid is None else valid & column_valid
        at = None
        if valid is not None:
            at = np.flatnonzero(valid)
            keys = keys.take(pa.array(at))
        ranks: list[RankColumn] = []
        for position, safe in enumerate(null_safe):
            key_ranks = RowOrder((position,)).ranks(keys).columns
            # if a type has several rank columns, the first is the validity, and here every key is valid
            ranks += key_ranks if safe or len(key_ranks) == 1 else key_ranks[1:]
        return Keys(ranks, batch.num_rows, at)

    @property
    def count(self) -> int:
        """Number of rows that can have a match."""
        return self.rows if self.at is None else len(self.at)

    @property
    def nbytes(self) -> int:
        return Ranks(self.columns, self.count).nbytes

    @property
    def are_hashes(self) -> bool:
        """Whether different keys always have different hashes. Depends on the types alone."""
        return len(self.columns) == 1 and isinstance(self.columns[0], np.ndarray)

    def hashes(self) -> Hashes:
        """Return hashes that are equal for equal keys and evenly spread in the high bits. Shape (count,)."""
        if not self.columns:  # structs without fields are all equal
            return np.zeros(self.count, np.uint64)
        first = self.columns[0]
        if len(self.columns) == 1 and isinstance(first, np.ndarray):
            hashes: Hashes = first.view(np.uint64) * _GOLDEN
            hashes ^= hashes >> _HALF
            hashes *= _GOLDEN
            return hashes
        names = [str(position) for position in range(len(self.columns))]
        return hash_rows(pa.record_batch([_array(each) for each in self.columns], names))

    def take(self, rows: Int64s) -> Keys:
        """Select keys by position among the rows that can have a match."""
        ranks = Ranks(self.columns, self.count).take(rows)
        return Keys(ranks.columns, len(rows), None)

    def equal(self, other: Keys) -> Bools:
        """Compare row by row with as many other keys."""
        same = np.ones(self.count, np.bool_)
        for column, other_column in zip(self.columns, other.columns, strict=True):
            if isinstance(column, np.ndarray):
                same &= column == other_column
            else:
                same &= np.asarray(pc.equal(_array(column), _array(other_column)))
        return same


def copied_bytes(batch: pa.RecordBatch, columns: Sequence[int]) -> int:
    """Return the bytes of a batch's keys that a table copies: none if their hashes tell them apart."""
    keys = [batch.column(at) for at in columns]
    if len(keys) == 1 and pat.is_primitive(keys[0].type):
        return 0
    return sum(key.nbytes for key in keys)


def _array(column: RankColumn) -> pa.Array:
    return pa.array(column) if isinstance(column, np.ndarray) else column.values


class KeyTable:
    """A hash table of the rows of one side, grouped by key. The rows of a group are in ascending order.
    ``rows``: row numbers, group after group. ``group_starts``: where each group begins in `rows`, then the
    end of the last group."""

    __slots__ = ("_bits", "_exact", "_first", "_slot_group", "_slot_hash", "group_starts", "rows")

    def __init__(self, keys: Keys) -> None:
        hashes = keys.hashes()
        order, begins = _grouped(keys, hashes)
        groups = len(begins)
        self.rows: Int64s = order if keys.at is None else keys.at[order]
        self.group_starts: Int64s = np.append(begins, len(order))
        self._exact = keys.are_hashes
        self._first = keys.take(order[begins]) if not self._exact else None
        self._bits = max(1, (SLOTS_PER_GROUP * groups - 1).bit_length())
        self._slot_hash, self._slot_group = self._slots(hashes[order[begins]])

    @property
    def groups(self) -> int:
        """Number of distinct keys."""
        return len(self.group_starts) - 1

    @property
    def is_unique(self) -> bool:
        """Whether each key has a single row."""
        return self.groups == len(self.rows)

    def find(self, keys: Keys) -> Groups:
        """Return the group of each row's key, or `NO_GROUP` if there is none. Shape (keys.rows,)."""
        if keys.at is None:
            return self._find(keys)
        found = np.full(keys.rows, NO_GROUP, np.int32)
        found[keys.at] = self._find(keys)
        return found

    def _find(self, keys: Keys) -> Groups:
        hashes = keys.hashes()
        slots = self._home(hashes)
        found = self._with_hash(hashes, slots)
        if self._first is None:
            return found
        wrong = self._other_keys(self._first, keys, found)
        while len(wrong):
            next_slots = slots[wrong] + 1
            found[wrong] = self._with_hash(hashes[wrong], next_slots)
            slots[wrong] = next_slots
            wrong = wrong[self._other_keys(self._first, keys.take(wrong), found[wrong])]
        return found

    def _with_hash(self, hashes: Hashes, slots: Int64s) -> Groups:
        """Return each hash's next group from its slot on, or `NO_GROUP`; set ``slots`` to those groups'."""
        found = self._slot_group[slots]
        missed = self._slot_hash[slots] != hashes
        # go on where another hash is; an empty slot, which may hold any hash, shows that there is no such key
        rest = np.flatnonzero(missed & (found >= 0))
        found[missed] = NO_GROUP
        at, hashes = slots[rest], hashes[rest]
        while len(rest):
            at += 1
            groups = self._slot_group[at]
            missed = self._slot_hash[at] != hashes
            hits = rest[~missed]
            found[hits], slots[hits] = groups[~missed], at[~missed]
            unfinished = missed & (groups >= 0)
            rest, at, hashes = rest[unfinished], at[unfinished], hashes[unfinished]
        return found

    @staticmethod
    def _other_keys(first: Keys, keys: Keys, groups: Groups) -> Int64s:
        """Return the positions of keys whose group, found by hash, is that of another key."""
        found = groups >= 0
        if np.count_nonzero(found) > MOSTLY * len(found):  # cheaper than also taking the looked-up keys
            same = first.take(np.maximum(groups, 0).astype(np.int64)).equal(keys)
            return np.flatnonzero(found & ~same)
        hits = np.flatnonzero(found)
        return hits[~first.take(groups[hits].astype(np.int64)).equal(keys.take(hits))]

    def _home(self, hashes: Hashes) -> Int64s:
        slots: Int64s = (hashes >> np.uint64(64 - self._bits)).astype(np.int64)
        return slots

    def _slots(self, hashes: Hashes) -> tuple[Hashes, Groups]:
        """Return the hash and the group in each slot. A group is in its home slot or in the next free one.
        The groups are in the order of their hashes, so each goes to a later slot than the previous group."""
        groups = len(hashes)
        numbers = np.arange(groups)
        slots = np.maximum.accumulate(self._home(hashes) - numbers) + numbers
        last = int(slots[-1]) if groups else 0
        size = max(1 << self._bits, last + 1) + 1  # the last slot is empty: every search ends there
        slot_hash = np.zeros(size, np.uint64)
        slot_group = np.full(size, NO_GROUP, np.int32)
        slot_hash[slots] = hashes
        slot_group[slots] = numbers
        return slot_hash, slot_group


def _grouped(keys: Keys, hashes: Hashes) -> tuple[Int64s, Int64s]:
    """Return the rows in the order of (hash, key, row), and where each key begins among them."""
    order, changes = stable_order((hashes ^ SIGN).view(np.int64))
    begins = np.flatnonzero(changes)
    if keys.are_hashes or len(begins) == len(order):
        return order, begins
    counts = np.diff(np.append(begins, len(order)))
    same = keys.take(order).equal(keys.take(np.repeat(order[begins], counts)))
    if same.all():
        return order, begins
    # different keys with one hash are rare: separate their rows by a full sort
    groups = np.repeat(np.arange(len(begins)), counts)
    mixed = np.unique(groups[~same])
    rows = np.sort(order[np.isin(groups, mixed)])
    ranks = Ranks(keys.columns, keys.count).take(rows)
    in_order = ranks.sort_indices()
    part = np.zeros(len(order), np.int64)
    starts = np.zeros(len(rows), np.int64)
    starts[ranks.take(in_order).group_starts()] = 1
    part[rows[in_order]] = np.cumsum(starts)
    order = np.lexsort((np.arange(len(order)), part, hashes))
    begins = np.flatnonzero(changes_in(hashes[order]) | changes_in(part[order]))
    return order, begins
