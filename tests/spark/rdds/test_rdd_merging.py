"""Merging, grouping and combining in bounded memory, without Spark: whatever the memory is, everything of a
key comes out once, and what was put aside is gone."""

from __future__ import annotations

import operator
import pickle
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.errors import PySparkRuntimeError

from sortshuffle.errors import CorruptDataError
from sortshuffle.format.encryption import EncryptionKey
from sortshuffle.format.header import Codec, FileHeader
from sortshuffle.memory.budget import MemoryBudget
from sortshuffle.metrics import TaskMetrics
from sortshuffle.options import KIB
from sortshuffle.payload.pickled import Chunk, Pairs, PickledPayload
from sortshuffle.spark.rdds.aggregations import (
    Combine,
    Distinct,
    Group,
    GroupTable,
    PairAggregation,
    Reduce,
    ValueKind,
    pairs_of_kind,
)
from sortshuffle.spark.rdds.combining import TRIAL, MapSideCombiner
from sortshuffle.spark.rdds.grouping import LongGroup
from sortshuffle.spark.rdds.holding_steps import Join
from sortshuffle.spark.rdds.merging import BUCKETS, Merging
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.writer import PartitionedFileWriter

LISTS = Combine(lambda value: [value], lambda values, value: [*values, value], operator.add)
AGGREGATIONS: dict[str, PairAggregation] = {
    "reduce": Reduce(operator.add),
    "combine": LISTS,
    "group": Group(),
    "distinct": Distinct(),
}


class Files:
    """Makes files in a directory. ``made``: how many."""

    def __init__(self, directory: Path, key: EncryptionKey | None = None) -> None:
        self.directory = directory
        self.made = 0
        self.key = key

    def __call__(self, header: FileHeader) -> PartitionedFileWriter:
        self.made += 1
        file = PartitionedFile(str(self.directory / f"spill-{self.made}"))
        return PartitionedFileWriter(file, header, key=self.key)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def merging(table: Callable[[], Any], files: Files, memory: int, codec: Codec = Codec.LZ4) -> Merging:
    return Merging(table, files, PickledPayload(codec), MemoryBudget(memory), TaskMetrics())


def chunked(pairs: Sequence[tuple[Any, Any]], size: int) -> Iterator[Chunk]:
    """Lists and pairs in turn."""
    for at, start in enumerate(range(0, len(pairs), size)):
        part = list(pairs[start : start + size])
        yield part if at % 2 else Pairs([key for key, _ in part], [value for _, value in part])


def results(merging: Merging, inputs: Sequence[Iterable[Chunk]]) -> dict[Any, list[Any]]:
    """For each key what it became in each input; a key that comes twice is a fault."""
    found: dict[Any, list[Any]] = {}
    for tables in merging.tables(inputs):
        here: dict[Any, list[Any]] = defaultdict(lambda: [None] * len(inputs))
        for at, table in enumerate(tables):
            for keys, values in table.batches():
                for key, value in zip(keys, values, strict=True):
                    assert here[key][at] is None
                    here[key][at] = list(value) if isinstance(value, LongGroup) else value
        assert not found.keys() & here.keys()
        found |= here
    assert merging.memory.used == 0
    return found


PAIRS = [(key % 997 if key % 3 else f"key {key % 997}", key) for key in range(20_000)]


@pytest.mark.parametrize("memory", [2 * KIB, 64 * KIB, 1 << 30], ids=["tiny", "small", "plenty"])
@pytest.mark.parametrize("name", AGGREGATIONS)
def test_whatever_the_memory_each_key_comes_once(name: str, memory: int, files: Files) -> None:
    merge = merging(AGGREGATIONS[name].table, files, memory)
    found = results(merge, [chunked(PAIRS, 500)])

    groups: dict[Any, list[int]] = defaultdict(list)
    for key, value in PAIRS:
        groups[key].append(value)
    expected: dict[str, Callable[[list[int]], Any]] = {
        "reduce": sum,
        "combine": Counter,
        "group": Counter,
        "distinct": lambda values: None,
    }
    if name in ("combine", "group"):
        found = {key: [Counter(of)] for key, (of,) in found.items()}
    assert found == {key: [expected[name](values)] for key, values in groups.items()}
    spilled = merge.metrics.counts["bytes_spilled"]
    assert (spilled > 0, files.made > 0) == (memory < 1 << 30,) * 2
    assert not list(files.directory.iterdir())


def test_with_a_key_what_is_spilled_shows_nothing_of_the_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PartitionedFile, "delete", lambda self: None)
    pairs = [(f"known-marker {n % 500}", n) for n in range(5000)]
    contents = []
    for key in (None, EncryptionKey(bytes(16))):
        files = Files(tmp_path / str(key), key)
        files.directory.mkdir()
        found = results(
            merging(Reduce(operator.add).table, files, 2 * KIB, Codec.NONE), [chunked(pairs, 500)]
        )
        assert found == {f"known-marker {n}": [sum(range(n, 5000, 500))] for n in range(500)}
        contents.append(b"".join(path.read_bytes() for path in files.directory.iterdir()))
    assert [b"known-marker" in content for content in contents] == [True, False]


def test_what_fits_comes_in_the_order_of_the_keys(files: Files) -> None:
    found = results(merging(Group().table, files, 1 << 30), [chunked(PAIRS, 500)])

    assert list(found) == list(dict.fromkeys(key for key, _ in PAIRS))
    assert found[1] == [[value for key, value in PAIRS if key == 1]]


@settings(max_examples=40)  # each writes files
@given(
    st.lists(st.lists(st.tuples(st.integers(0, 9) | st.text(max_size=2), st.integers()), max_size=60)),
    st.integers(1, 4 * KIB),
    st.integers(1, 20),
)
def test_groups_of_several_inputs_meet(
    tmp_path_factory: pytest.TempPathFactory, inputs: list[list[tuple[Any, int]]], memory: int, size: int
) -> None:
    files = Files(tmp_path_factory.mktemp("files"))
    found = results(merging(GroupTable, files, memory), [chunked(of, size) for of in inputs])
    expected: dict[Any, list[Any]] = defaultdict(lambda: [None] * len(inputs))
    for at, of in enumerate(inputs):
        for key, value in of:
            expected[key][at] = (expected[key][at] or Counter()) + Counter([value])
    assert {key: [of and Counter(of) for of in groups] for key, groups in found.items()} == expected
    assert not list(files.directory.iterdir())


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.NONE])
def test_a_group_longer_than_the_memory_is_read_from_disk_as_often_as_asked(
    files: Files, codec: Codec
) -> None:
    hot = [("hot", f"value {n}") for n in range(20_000)]
    cold = [(n, "x") for n in range(3000)]
    pairs = [*cold[:1000], *hot[:9000], *cold, *hot[9000:], ("cold", 1)]
    merge = merging(GroupTable, files, 256 * KIB, codec)
    groups: dict[Any, Any] = {}
    for (table,) in merge.tables([chunked(pairs, 300)]):
        assert isinstance(table, GroupTable)
        groups |= table.groups
    group = groups.pop("hot")

    assert merge.memory.peak < 512 * KIB
    assert isinstance(group, LongGroup)
    assert group.in_memory < 2000
    assert len(group) == 20_000
    assert list(group) == list(group) == pickle.loads(pickle.dumps(group))
    assert Counter(group) == Counter(value for _, value in hot)
    assert all(type(each) is list for each in groups.values())
    assert {key: len(values) for key, values in groups.items()} == Counter(
        [key for key, _ in pairs if key != "hot"]
    )
    assert not list(files.directory.iterdir())


def test_the_last_values_of_very_many_long_groups_do_not_fill_the_memory(files: Files) -> None:
    """Each group's are too few to be put aside alone."""
    text, keys, memory = "x" * 100, range(50), 256 * KIB
    pairs = [(key, f"{n:03}{text}") for key in keys for n in range(300)]  # each makes its group long
    pairs += [(key, f"{n:03}{text}") for n in range(300, 410) for key in keys]
    tables: list[GroupTable] = []
    most = 0

    def table() -> GroupTable:
        tables.append(GroupTable())
        return tables[-1]

    def watched() -> Iterator[Chunk]:
        nonlocal most
        for chunk in chunked(pairs, 100):
            yield chunk
            groups = tables[0].groups.values()
            most = max(most, sum(getattr(each, "in_memory", len(each)) for each in groups))
            assert tables[0].held >= 0

    found = results(merging(table, files, memory), [watched()])
    assert most * len(pickle.dumps(text)) < memory
    assert found == {key: [[f"{n:03}{text}" for n in range(410)]] for key in keys}


def test_what_a_key_had_before_its_group_was_long_is_found_again(files: Files) -> None:
    rounds = 30
    pairs = [pair for n in range(rounds) for pair in [("hot", n), *((k, n) for k in range(400))]]
    pairs += [("hot", n) for n in range(50_000)]
    pairs += [pair for n in range(rounds) for pair in [("hot", n), *((k, n) for k in range(400))]]
    (hot,) = results(merging(GroupTable, files, 64 * KIB), [chunked(pairs, 100)])["hot"]

    assert Counter(hot) == Counter(value for key, value in pairs if key == "hot")


class Same:
    """All of one hash: no level of buckets tells them apart."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __hash__(self) -> int:
        return 7

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and other.number == self.number


def test_keys_of_one_hash_come_to_an_end(files: Files) -> None:
    pairs = [(Same(n % 40), n) for n in range(400)]
    found = results(merging(Reduce(operator.add).table, files, KIB), [chunked(pairs, 7)])

    assert {key.number: value for key, (value,) in found.items()} == {
        n: sum(range(n, 400, 40)) for n in range(40)
    }


def test_keys_come_in_one_order_wherever_their_objects_lie(files: Files) -> None:
    """A task that runs again must not place other records elsewhere. Python hashes NaN by its address."""

    def order() -> list[int]:
        pairs = [((float("nan"), n), n) for n in range(2000)]
        merge = merging(GroupTable, files, 8 * KIB)
        return [
            n
            for (table,) in merge.tables([chunked(pairs, 100)])
            for keys, _ in table.batches()
            for _, n in keys
        ]

    first = order()
    assert sorted(first) == list(range(2000))
    assert first != sorted(first), "they were put aside by their hash"
    assert order() == first


class Name(NamedTuple):
    """Equal whatever the letters' case."""

    text: str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Name) and self.text.lower() == other.text.lower()

    def __hash__(self) -> int:
        return hash(self.text.lower())


def test_keys_with_an_equality_of_their_own_come_once(files: Files) -> None:
    pairs = [(Name(f"key {n % 1000}".upper() if n % 2 else f"key {n % 1000}"), n) for n in range(5000)]
    pairs += [(Name(key.text.swapcase()), n) for key, n in pairs]
    found = results(merging(Group().table, files, 8 * KIB), [chunked(pairs, 100)])
    assert len(found) == 1000


class HashedOnce(tuple[Any, ...]):
    """Equal to a tuple of the same parts, and with its hash. Each process has another one for None."""

    def __hash__(self) -> int:
        return hash(tuple(self))


def test_keys_of_two_types_that_are_equal_come_once(files: Files) -> None:
    pairs = [(kind((None, n % 1000)), n) for kind in (tuple, HashedOnce) for n in range(5000)]
    found = results(merging(Group().table, files, 8 * KIB), [chunked(pairs, 100)])
    assert len(found) == 1000


def test_keys_with_nan_are_put_aside_in_all_buckets(files: Files) -> None:
    keys = [(float("nan"), n) for n in range(1000)] + [float("nan") for _ in range(1000)]
    keys += [np.datetime64("NaT") for _ in range(1000)]
    merge = merging(Group().table, files, 8 * KIB)
    tables = [table for (table,) in merge.tables([chunked([(key, 1) for key in keys], 100)])]
    assert len(tables) > BUCKETS


def test_what_was_put_aside_goes_when_nobody_wants_more(files: Files) -> None:
    merge = merging(GroupTable, files, 8 * KIB)
    tables = merge.tables([chunked(PAIRS, 500)])
    next(tables)
    tables.close()

    assert merge.memory.used == 0
    assert not list(files.directory.iterdir())


def test_what_was_put_aside_goes_when_the_input_fails(files: Files) -> None:
    def failing() -> Iterator[Chunk]:
        yield from chunked(PAIRS, 500)
        raise KeyError("on purpose")

    merge = merging(GroupTable, files, 8 * KIB)
    with pytest.raises(KeyError, match="on purpose"):
        next(merge.tables([failing()]))
    assert merge.memory.used == 0
    assert not list(files.directory.iterdir())


def test_a_combiner_that_grows_is_noticed(files: Files) -> None:
    """A hot key among many others: measured, though few combiners are looked at."""
    pairs = [("hot" if n % 2 else n, b"x" * 100) for n in range(40_000)]
    table = LISTS.table()
    for chunk in chunked(pairs, 400):
        table.add(chunk)
    least = 40_000 * 100
    assert least < table.held < 6 * least


def test_stopiteration_out_of_a_function_is_an_error(files: Files) -> None:
    def stops(*_: Any) -> Any:
        raise StopIteration("too early")

    for aggregation in (Reduce(stops), Combine(stops, stops, stops)):
        with pytest.raises(PySparkRuntimeError, match="too early"):
            results(merging(aggregation.table, files, KIB), [[Pairs([1, 1], [1, 1])]])


def test_damage_to_what_was_put_aside_is_named(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    merge = merging(GroupTable, files, 8 * KIB, Codec.NONE)
    finish = PartitionedFileWriter.finish

    def damaged(writer: PartitionedFileWriter, *arguments: Any) -> PartitionedFile:
        file = finish(writer, *arguments)
        content = bytearray(Path(file.data_path).read_bytes())
        content[200] ^= 1
        Path(file.data_path).write_bytes(content)
        return file

    monkeypatch.setattr(PartitionedFileWriter, "finish", damaged)
    with pytest.raises(CorruptDataError, match="spill"):
        results(merge, [chunked(PAIRS, 500)])


class Counted(LongGroup):
    """A group on disk that counts how often it is read."""

    __slots__ = ("reads",)

    def __init__(self, values: list[Any]) -> None:
        super().__init__(values)
        self.reads = 0

    def __iter__(self) -> Iterator[Any]:
        self.reads += 1
        return super().__iter__()


@pytest.mark.parametrize("count", [3, 100])  # fewer and more pairs than a chunk has
def test_a_group_on_disk_is_read_once_if_the_other_is_in_memory(count: int) -> None:
    short, long = list(range(count)), [f"value {n}" for n in range(100)]
    for long_side in (0, 1):
        group = Counted(long)
        groups: list[Any] = [group, short] if long_side == 0 else [short, group]
        chunks = list(Join((False, False))._pairs([("key", groups)]))
        expected = Counter(("key", pair) for pair in product(*(list(each) for each in groups)))
        assert Counter(record for chunk in chunks for record in chunk) == expected
        assert group.reads == 2  # one of them for `expected`


@pytest.mark.parametrize("keeps", list(product((False, True), repeat=2)))
@pytest.mark.parametrize("long_side", [0, 1])
def test_a_group_on_disk_is_read_for_an_empty_one_only_if_its_values_stay(
    keeps: tuple[bool, bool], long_side: int
) -> None:
    group = Counted(list(range(100)))
    groups: list[Any] = [group, []] if long_side == 0 else [[], group]
    records = [record for chunk in Join(keeps)._pairs([("key", groups)]) for record in chunk]
    pairs = [(n, None) if long_side == 0 else (None, n) for n in range(100)]
    assert records == ([("key", pair) for pair in pairs] if keeps[long_side] else [])
    assert group.reads == int(keeps[long_side])


# ---- before the shuffle -------------------------------------------------------------------------------


class Sent:
    """What a combiner sent."""

    def __init__(self, aggregation: PairAggregation, memory: int) -> None:
        self.chunks: list[Pairs] = []
        self.metrics = TaskMetrics()
        self.memory = MemoryBudget(memory)
        self.combiner = MapSideCombiner(aggregation, self.memory, self._send, self.metrics)
        self._aggregation = aggregation

    def _send(self, keys: Sequence[Any], results: Sequence[Any], kind: ValueKind) -> None:
        self.chunks.append(pairs_of_kind(kind, list(keys), list(results)))

    def add(self, pairs: Iterable[tuple[Any, Any]], size: int = 1000) -> Sent:
        for chunk in chunked(list(pairs), size):
            self.combiner.add(list(chunk))
        self.combiner.finish()
        return self

    @property
    def records(self) -> int:
        return sum(map(len, self.chunks))

    def merged(self) -> dict[Any, Any]:
        table = self._aggregation.table()
        for chunk in self.chunks:
            table.add(chunk)
        return {key: of for keys, results in table.batches() for key, of in zip(keys, results, strict=True)}


@pytest.mark.parametrize("memory", [KIB, 64 * KIB, 1 << 30])
@pytest.mark.parametrize("name", AGGREGATIONS)
def test_what_was_combined_and_what_was_not_come_to_the_same(name: str, memory: int) -> None:
    aggregation = AGGREGATIONS[name]
    sent = Sent(aggregation, memory).add(PAIRS)
    expected = aggregation.table()
    expected.add(Pairs(*map(list, zip(*PAIRS, strict=True))))

    assert sent.merged() == dict(zip(expected.keys(), expected.results(list(expected.keys())), strict=True))
    assert sent.metrics.counts["rows_combined"] == len(PAIRS) - sent.records
    assert sent.memory.used == 0


def test_keys_that_come_again_are_combined() -> None:
    sent = Sent(Reduce(operator.add), 1 << 30).add((n % 100, 1) for n in range(200_000))
    assert sent.records == 100
    assert sent.merged() == dict.fromkeys(range(100), 2000)


def test_keys_that_are_all_different_are_not_held() -> None:
    sent = Sent(Group(), 1 << 30).add((n, n) for n in range(200_000))
    assert sent.records == 200_000
    assert sent.memory.peak < 300 * (TRIAL + 2000)


def test_a_full_table_is_sent_and_begun_anew() -> None:
    sent = Sent(Reduce(operator.add), 64 * KIB).add((n % 200 + n // 5000 * 1000, 1) for n in range(50_000))
    assert 10 * 200 <= sent.records < 3 * 10 * 200
    assert sent.memory.peak < 128 * KIB


def test_a_few_large_values_do_not_stop_combining_for_long() -> None:
    large = ((-n, bytes(64 * KIB)) for n in range(1, 41))
    small = ((n % 100, b"x") for n in range(20_000))
    sent = Sent(Reduce(max), 1024 * KIB).add(chain(large, small), 10)
    assert sent.records < 1000
    assert sent.memory.peak < 2048 * KIB
