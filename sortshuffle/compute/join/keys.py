"""Finding the rows of one side of a join that have the key of a row of the other.

Keys are compared as Spark compares them: -0.0 equals 0.0, NaN equals NaN, strings and binaries by their
bytes, structs field by field with null equal to null. A null key has no partner, unless that key is compared
null-safely (``<=>``).

    key columns --> Keys: rank columns of the rows that can have a partner --> 64-bit hashes
    Keys of the build side --> KeyTable: rows grouped by key, groups in a hash table

The table is one of open addressing, in NumPy arrays, searched for a batch of keys at once: first every key's
own slot, then for those that found another key there the next slot, and so on. One plain key of up to 64 bits
is hashed by a bijection, so its hash is the key; others are compared, once for each row that is searched.

1.5 million int64 keys, searched by 6 million, on one core: this 0.20 to 0.33 s, Arrow's hash join of keys and
row numbers 0.44 to 0.53, Arrow's index_in 0.45 (without the rows of equal keys), NumPy's searchsorted 0.59
with the searched keys sorted first. Of twenty bytes of text: this 1.5 s, Arrow's 1.1; but Arrow makes
its tables anew in every call, and so cannot be asked batch by batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sortshuffle.partitioner.row_hash import hash_rows
from sortshuffle.payload.ordering import Int64s, RankColumn, Ranks, RowOrder

Hashes = npt.NDArray[np.uint64]
Groups = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]

NO_GROUP = -1
SLOTS_PER_GROUP = 2  # at least; 1.5 million groups searched by 6 million took 0.42 s with 1, 0.20 with 2
MOSTLY = 0.5  # reasoned: a comparison takes from one side or from both
TABLE_BYTES_PER_ROW = 96
"""What making a table takes for each row at most, beside the rank columns: 12 bytes for each of up to four
slots, and hashes, order and starts while the rows are grouped."""

_GOLDEN = np.uint64(0x9E37_79B9_7F4A_7C15)  # odd, so that multiplying by it is a bijection
_HALF = np.uint64(32)


@dataclass(frozen=True, slots=True)
class JoinKeyColumns:
    """What two sides are joined by. ``left``, ``right``: positions of the columns, pair by pair of one type.
    ``null_safe``: whether a null of that pair equals a null."""

    left: tuple[int, ...]
    right: tuple[int, ...]
    null_safe: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of those of ``rows`` rows that can have a partner. ``at``: their positions, None for all."""

    columns: Sequence[RankColumn]
    rows: int
    at: Int64s | None

    @staticmethod
    def of(batch: pa.RecordBatch, columns: Sequence[int], null_safe: Sequence[bool]) -> Keys:
        """The keys of a batch that are in these columns."""
        keys = pa.record_batch([batch.column(at) for at in columns], [str(at) for at in range(len(columns))])
        valid: Bools | None = None
        for column, safe in zip(keys.columns, null_safe, strict=True):
            if column.null_count and not safe:
                its = np.asarray(column.is_valid())
                valid = its if valid is None else valid & its
        at = None
        if valid is not None:
            at = np.flatnonzero(valid)
            keys = keys.take(pa.array(at))
        ranks: list[RankColumn] = []
        for position, safe in enumerate(null_safe):
            its_ranks = RowOrder((position,)).ranks(keys).columns
            # where a type has several the first is the validity, and here every key is valid
            ranks += its_ranks if safe or len(its_ranks) == 1 else its_ranks[1:]
        return Keys(ranks, batch.num_rows, at)

    @property
    def count(self) -> int:
        """How many rows can have a partner."""
        return self.rows if self.at is None else len(self.at)

    @property
    def nbytes(self) -> int:
        return Ranks(self.columns, self.count).nbytes

    @property
    def are_hashes(self) -> bool:
        """Whether different keys have different hashes. A matter of type alone."""
        return len(self.columns) == 1 and isinstance(self.columns[0], np.ndarray)

    def hashes(self) -> Hashes:
        """Equal for equal keys, and evenly spread in the high bits. Shape (count,)."""
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
        """Those at these places among the ones that can have a partner."""
        ranks = Ranks(self.columns, self.count).take(rows)
        return Keys(ranks.columns, len(rows), None)

    def equal(self, other: Keys) -> Bools:
        """Row by row, of as many."""
        same = np.ones(self.count, np.bool_)
        for mine, its in zip(self.columns, other.columns, strict=True):
            if isinstance(mine, np.ndarray):
                same &= mine == its
            else:
                same &= np.asarray(pc.equal(_array(mine), _array(its)))
        return same


def _array(column: RankColumn) -> pa.Array:
    return pa.array(column) if isinstance(column, np.ndarray) else column.values


class KeyTable:
    """The rows of one side, grouped by key. Rows of a group are in ascending order.

    ``group_starts``: where the rows of each group begin among `rows`, and behind the last its end.
    """

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
        """How many different keys there are."""
        return len(self.group_starts) - 1

    @property
    def is_unique(self) -> bool:
        """Whether every key is that of one row."""
        return self.groups == len(self.rows)

    def find(self, keys: Keys) -> Groups:
        """The group of each row's key, `NO_GROUP` where there is none. Shape (keys.rows,)."""
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
            behind = slots[wrong] + 1
            found[wrong] = self._with_hash(hashes[wrong], behind)
            slots[wrong] = behind
            wrong = wrong[self._other_keys(self._first, keys.take(wrong), found[wrong])]
        return found

    def _with_hash(self, hashes: Hashes, slots: Int64s) -> Groups:
        """The next group of each hash from a slot on, `NO_GROUP` where there is none. ``slots`` become those
        of the groups."""
        found = self._slot_group[slots]
        missed = self._slot_hash[slots] != hashes
        # another hash in the slot; an empty one says that there is no such key, and may have any hash
        rest = np.flatnonzero(missed & (found >= 0))
        found[missed] = NO_GROUP
        at, hashes = slots[rest], hashes[rest]
        while len(rest):
            at += 1
            groups = self._slot_group[at]
            missed = self._slot_hash[at] != hashes
            hits = rest[~missed]
            found[hits], slots[hits] = groups[~missed], at[~missed]
            on = missed & (groups >= 0)
            rest, at, hashes = rest[on], at[on], hashes[on]
        return found

    @staticmethod
    def _other_keys(first: Keys, keys: Keys, groups: Groups) -> Int64s:
        """Which of the keys were given the group of another key."""
        found = groups >= 0
        if np.count_nonzero(found) > MOSTLY * len(found):  # cheaper than taking the searched keys, too
            same = first.take(np.maximum(groups, 0).astype(np.int64)).equal(keys)
            return np.flatnonzero(found & ~same)
        hits = np.flatnonzero(found)
        return hits[~first.take(groups[hits].astype(np.int64)).equal(keys.take(hits))]

    def _home(self, hashes: Hashes) -> Int64s:
        slots: Int64s = (hashes >> np.uint64(64 - self._bits)).astype(np.int64)
        return slots

    def _slots(self, hashes: Hashes) -> tuple[Hashes, Groups]:
        """The hash and the group in every slot: a group's own, or the next that is free. The groups come in
        the order of their hashes, so that is the slot behind the group before or a later one."""
        groups = len(hashes)
        numbers = np.arange(groups)
        slots = np.maximum.accumulate(self._home(hashes) - numbers) + numbers
        last = int(slots[-1]) if groups else 0
        size = max(1 << self._bits, last + 1) + 1  # the last is empty: there every search ends
        slot_hash = np.zeros(size, np.uint64)
        slot_group = np.full(size, NO_GROUP, np.int32)
        slot_hash[slots] = hashes
        slot_group[slots] = numbers
        return slot_hash, slot_group


def _grouped(keys: Keys, hashes: Hashes) -> tuple[Int64s, Int64s]:
    """Rows in the order of (hash, key, row), and where among them each key begins."""
    order = np.argsort(hashes)
    begins = _changes(hashes[order])
    if len(begins) == len(order):
        return order, begins
    order = _ascending_within(order, begins)
    if keys.are_hashes:
        return order, begins
    counts = np.diff(np.append(begins, len(order)))
    same = keys.take(order).equal(keys.take(np.repeat(order[begins], counts)))
    if same.all():
        return order, begins
    # different keys of one hash are rare: their rows are told apart by the full order
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
    begins = np.flatnonzero(_is_change(hashes[order]) | _is_change(part[order]))
    return order, begins


def _ascending_within(order: Int64s, begins: Int64s) -> Int64s:
    """The same groups of rows, each with its rows ascending."""
    starts = np.zeros(len(order), np.int64)
    starts[begins] = 1
    packed: Int64s = np.sort(np.cumsum(starts) << 32 | order)  # a table has less than 2**31 rows
    packed &= 0xFFFF_FFFF
    return packed


def _changes(ordered: npt.NDArray[np.generic]) -> Int64s:
    return np.flatnonzero(_is_change(ordered))


def _is_change(ordered: npt.NDArray[np.generic]) -> Bools:
    """Whether a value differs from the one before; the first does."""
    changed = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=changed[1:])
    return changed
