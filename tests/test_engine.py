"""The engine without Spark: what producers write is what consumers read, from files or through a service;
misuse is refused by the package's own errors; nothing is left of what was not finished, or was released."""

from __future__ import annotations

import gc
import os
import pickle
import re
import signal
import subprocess
import sys
from collections import UserList
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest
import trustme
from engine import ENVIRONMENT, ROOT, names, open_files, printed
from map_outputs import reading_threads, rows_of

import sortshuffle
from sortshuffle import engine
from sortshuffle.cli.cleaning import judge_all
from sortshuffle.engine import (
    SUPERSTEP,
    Barrier,
    Home,
    MapOutput,
    Options,
    UserEvent,
    open_input,
    open_output,
    release,
)
from sortshuffle.engine import input as engine_input
from sortshuffle.errors import (
    AuthenticationError,
    CorruptDataError,
    DataLossError,
    MissingDataError,
    OutOfDiskError,
    Place,
    StateError,
    UnsupportedError,
    UsageError,
)
from sortshuffle.format.index import Index
from sortshuffle.homes.host import host_name
from sortshuffle.options import MIB
from sortshuffle.partitioner import (
    BroadcastSelector,
    FunctionSelector,
    GlobalSelector,
    HashSelector,
    IdSelector,
    KeyGroupSelector,
    RescaleSelector,
    RoundRobinSelector,
    RowHashSelector,
    forward,
)
from sortshuffle.payload.events import END_OF_DATA, END_OF_PARTITION, Event
from sortshuffle.service.server.transport import ServerTls
from sortshuffle.storage.files.reader import read_index
from sortshuffle.storage.writer import PartitionedFileWriter

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])
ENDS = [END_OF_DATA, END_OF_PARTITION]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    with Home.of(str(tmp_path)) as made:
        yield made
    assert names(tmp_path) == []


def column(values: list[Any]) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values)], ["k"])


def rows(start: int, stop: int) -> pa.RecordBatch:
    return pa.record_batch(
        [pa.array(range(start, stop)), pa.array([f"v{n}" for n in range(start, stop)])], schema=SCHEMA
    )


def written(home: Home, records: list[Any], selector: Any, map_index: int = 0, **more: Any) -> MapOutput:
    """Of records that are their own keys."""
    with open_output(home, selector, map_index, **more) as output:
        output.write(records, column(records))
        return output.finish()


def written_rows(
    home: Home, batch: pa.RecordBatch, selector: Any, map_index: int = 0, **more: Any
) -> MapOutput:
    with open_output(home, selector, map_index, schema=batch.schema, **more) as output:
        output.write_batch(batch)
        return output.finish()


def read(outputs: list[MapOutput], subpartitions: Any, **more: Any) -> list[Any]:
    with open_input(outputs, subpartitions, **more) as stream:
        return list(stream.records())


# ---- the module -----------------------------------------------------------------------------------------


def test_its_page_tells_all_its_names() -> None:
    page = (ROOT / "docs" / "engine.md").read_text()
    told = re.findall(r"^\| `(\w+)", page, re.MULTILINE)
    assert sorted(told) == sorted(engine.__all__)


def test_it_does_not_import_spark() -> None:
    loaded = printed("import sys, sortshuffle.engine; print(*sys.modules)")
    assert "sortshuffle.engine" in loaded
    assert [name for name in loaded if name.split(".")[0] in ("pyspark", "py4j", "pandas")] == []
    assert [name for name in loaded if name.startswith("sortshuffle.spark")] == []


@pytest.mark.parametrize(
    ("number", "printed"),
    [
        (0, "[('be', 2), ('not', 2), ('or', 1), ('to', 2)]\n"),
        (
            1,
            "3\nUserEvent(name='unit', data=b'cent')\n500\n250\nSuperstep()\nEndOfData()\nEndOfPartition()\n",
        ),
    ],
)
def test_the_programs_of_its_page_run(tmp_path: Path, number: int, printed: str) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / "engine.md").read_text(), re.M | re.S)
    (tmp_path / "program.py").write_text(blocks[number])
    done = subprocess.run(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stderr, done.stdout, len(blocks)) == ("", printed, 2)
    assert names(tmp_path / "scratch") == []


# ---- records --------------------------------------------------------------------------------------------


def test_records_go_where_their_keys_say(home: Home) -> None:
    selector = HashSelector((0,), 3)
    outputs = [written(home, list(range(n, 300, 2)), selector, n) for n in range(2)]
    places = selector.assign(column(list(range(300)))).tolist()
    for subpartition in range(3):
        expected = [n for start in range(2) for n in range(start, 300, 2) if places[n] == subpartition]
        assert read(outputs, subpartition) == expected
        assert read(outputs[::-1], subpartition) == expected  # the order is that of map indexes


def test_a_map_output_travels(home: Home) -> None:
    output = written(home, [1, 2, 3], GlobalSelector())
    copy = pickle.loads(pickle.dumps(output))
    assert copy == output
    assert read([copy], 0) == [1, 2, 3]
    assert str(output) == f"attempt {output.attempt} of map 0 on {host_name()}"


def test_the_sizes_of_subpartitions_are_told(home: Home) -> None:
    empty = written(home, [], GlobalSelector(4, 2))
    full = written(home, ["x" * 1000] * 50, GlobalSelector(4, 2), options=Options(codec="none"))
    ends = empty.subpartition_bytes[0]
    assert empty.subpartition_bytes == (ends,) * 4
    assert [size - ends for size in full.subpartition_bytes][:2] == [0, 0]
    assert full.subpartition_bytes[2] - ends > 50
    assert full.subpartition_bytes[3] == ends


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        (forward(1, 3), [[], [0, 1, 2, 3, 4], []]),
        (RescaleSelector(4, 1, 2), [[], [], [0, 2, 4], [1, 3]]),
        (RescaleSelector(2, 3, 4), [[], [0, 1, 2, 3, 4]]),
        (RoundRobinSelector(2, 1), [[1, 3], [0, 2, 4]]),
        (BroadcastSelector(2), [[0, 1, 2, 3, 4], [0, 1, 2, 3, 4]]),
    ],
    ids=["forward", "rescale to more", "rescale to fewer", "round robin", "broadcast"],
)
def test_selectors_that_look_at_no_keys_need_none(
    home: Home, selector: Any, expected: list[list[int]]
) -> None:
    with open_output(home, selector, 0) as output:
        output.write([0, 1, 2])
        output.write([3, 4])
        outputs = [output.finish()]
    assert [read(outputs, s) for s in range(selector.subpartitions)] == expected


@pytest.mark.parametrize(
    "selector",
    [
        HashSelector((0,), 2),
        KeyGroupSelector((0,), 2, 8),
        RowHashSelector(2),
        FunctionSelector(lambda batch: batch["k"], 2),
    ],
)
def test_selectors_that_look_at_keys_need_them(home: Home, selector: Any) -> None:
    with open_output(home, selector, 0) as output, pytest.raises(UsageError, match="by their keys"):
        output.write([1, 2])


def test_a_selector_of_ones_own_takes_what_it_likes(home: Home) -> None:
    class ByLength:
        is_broadcast: ClassVar[bool] = False
        subpartitions = 2

        def assign(self, keys: list[str]) -> np.ndarray:
            return np.array([len(key) % 2 for key in keys], np.uint8)

    with open_output(home, ByLength(), 0) as output:
        output.write([10, 20, 30], ["a", "bb", "ccc"])
        outputs = [output.finish()]
    assert [read(outputs, 0), read(outputs, 1)] == [[20], [10, 30]]


class ByCount:
    """Places as many records as there are, and looks at no keys."""

    is_broadcast: ClassVar[bool] = False
    subpartitions = 2

    def assign(self, keys: Any) -> np.ndarray:
        return np.arange(len(keys), dtype=np.uint8) % 2


class Wrong(ByCount):
    def assign(self, keys: Any) -> np.ndarray:
        return np.full(len(keys), 2, np.uint8)


def test_a_selector_of_ones_own_may_ask_how_many_keys_there_are(home: Home) -> None:
    with open_output(home, ByCount(), 0) as output:
        output.write([10, 20, 30])
        assert read([output.finish()], 0) == [10, 30]


def test_what_a_selector_gives_is_looked_at(home: Home) -> None:
    with open_output(home, Wrong(), 0) as output:
        with pytest.raises(UsageError, match="sent a row to subpartition 2: they are 0 to 1"):
            output.write([10])
        output.broadcast(1)  # nothing was changed
        assert read([output.finish()], 1) == [1]


@pytest.mark.parametrize(
    ("records", "said"),
    [
        ((n for n in range(2)), "as a list, not as a generator: pass list"),
        ({1: 2}, "not as a dict:"),
        ({1: 2}.items(), "not as a dict_items:"),
        ({1, 2}, "not as a set:"),
        (7, "not as a int:"),
        (np.arange(2), "not as a ndarray:"),
        (column([1, 2]), "RecordBatch is no list of records: .*write_batch"),
        (pa.Table.from_batches([column([1, 2])]), "Table is no list of records: .*write_batch"),
    ],
)
def test_records_are_written_as_a_list(home: Home, records: Any, said: str) -> None:
    with open_output(home, GlobalSelector(), 0) as output:
        with pytest.raises(UsageError, match=said):
            output.write(records)
        output.write((1, 2))
        output.write(range(3, 5))
        output.write(UserList([5, 6]))
        assert read([output.finish()], 0) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    "selector",
    [
        HashSelector((0,), 2),
        KeyGroupSelector((0,), 2, 8),
        RowHashSelector(2),
        FunctionSelector(lambda batch: batch["k"], 2),
        GlobalSelector(2),
    ],
)
@pytest.mark.parametrize("keys", [[1], np.array([1]), {"k": [1]}, pa.array([1]), pa.table({"k": [1]})])
def test_keys_in_another_form_are_refused(home: Home, selector: Any, keys: Any) -> None:
    with open_output(home, selector, 0) as output:
        said = f"{type(selector).__name__} takes keys as an Arrow record batch"
        with pytest.raises(UsageError, match=said):
            output.write([1], keys)
        output.write([1], column([1]))
        assert read([output.finish()], range(2)) == [1]


def test_keys_without_the_column_are_refused(home: Home) -> None:
    with (
        open_output(home, HashSelector((0, 1), 2), 0) as output,
        pytest.raises(UsageError, match="HashSelector looks at column 1, and the keys have 1"),
    ):
        output.write([1], column([1]))


def test_keys_of_another_number_are_refused(home: Home) -> None:
    with open_output(home, HashSelector((0,), 2), 0) as output:
        with pytest.raises(UsageError, match="gave 2 ids for 3 rows"):
            output.write([1, 2, 3], column([1, 2]))
        output.write([4], column([4]))  # what was refused changed nothing
        assert read([output.finish()], range(2)) == [4]


@pytest.mark.parametrize("ids", [np.zeros(1, np.uint8), np.zeros(4, np.uint8), np.full(3, -1), [0, 0, 0]])
@pytest.mark.parametrize("map_index", [0, 1])
def test_wrong_ids_for_the_rows_of_a_batch_lose_none(home: Home, ids: Any, map_index: int) -> None:
    class Wrong:
        is_broadcast: ClassVar[bool] = False
        subpartitions = 2

        def assign(self, keys: Any) -> Any:
            return ids

    batch = pa.record_batch({"k": [1, 2, 3]})
    output = open_output(home, Wrong(), map_index, schema=batch.schema)
    with output, pytest.raises(UsageError, match=r"Wrong (must give|gave|sent)"):
        output.write_batch(batch)
        output.finish()


@pytest.mark.parametrize(
    "selector", [HashSelector((5,), 2), IdSelector(1, 2), KeyGroupSelector((0, 1), 2, 8)], ids=repr
)
def test_a_selector_of_columns_that_batches_do_not_have_is_refused_at_once(home: Home, selector: Any) -> None:
    with pytest.raises(UsageError, match=r"looks at column \d, and the batches have 1"):
        open_output(home, selector, 0, schema=pa.schema([("k", pa.int32())]))


@pytest.mark.parametrize("keys", [("k",), {17, 4242}, None])
def test_what_the_keys_of_a_selector_of_ones_own_are_is_its_affair(home: Home, keys: Any) -> None:
    selector = Everywhere()
    selector.keys = keys  # type: ignore[attr-defined]
    batch = pa.record_batch({"k": [1, 2, 3]})
    with open_output(home, selector, 0, schema=batch.schema) as output:
        output.write_batch(batch)
        found = output.finish()
    with open_input([found], 1) as stream:
        assert [row for each in stream.batches() for row in each["k"].to_pylist()] == [1, 2, 3]


class Everywhere:
    """Sends all rows to subpartition 1."""

    is_broadcast: ClassVar[bool] = False
    subpartitions = 2

    def assign(self, keys: Any) -> Any:
        return np.ones(keys.num_rows, np.uint64)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int16, np.uint64])
def test_ids_of_any_integers_find_their_subpartition(home: Home, dtype: Any) -> None:
    class Own:
        is_broadcast: ClassVar[bool] = False
        subpartitions = 300

        def assign(self, keys: Any) -> Any:
            return keys["k"].to_numpy().astype(dtype)

    batch = pa.record_batch({"k": [100, 3, 100]})
    with open_output(home, Own(), 280, schema=batch.schema) as output:
        output.write_batch(batch)
        rows = output.finish()
    with open_output(home, Own(), 280, exchange=1) as output:
        output.write(["a", "b", "c"], batch)
        records = output.finish()
    with open_input([rows], 100) as stream:
        assert [row for each in stream.batches() for row in each["k"].to_pylist()] == [100, 100]
    assert [read([records], at) for at in (100, 3, 0)] == [["a", "c"], ["b"], []]


@pytest.mark.parametrize("keys", [0, ["k"], ("k",), (-1,), [0], (np.int64(0),), (True,)])
def test_key_columns_are_positions(keys: Any) -> None:
    for make in (lambda: HashSelector(keys, 2), lambda: KeyGroupSelector(keys, 2, 128)):
        with pytest.raises(UsageError, match="key columns are a tuple of positions"):
            make()


def test_what_is_broadcast_comes_to_all(home: Home) -> None:
    with open_output(home, GlobalSelector(3, 1), 0) as output:
        output.write(["a"])
        output.broadcast("to all")
        output.write(["b"])
        outputs = [output.finish()]
    assert [read(outputs, s) for s in range(3)] == [["to all"], ["a", "to all", "b"], ["to all"]]


def test_one_consumer_may_read_a_range_of_key_groups(home: Home) -> None:
    fine, coarse = KeyGroupSelector((0,), 8, 64), KeyGroupSelector((0,), 2, 64)
    outputs = [written(home, list(range(n, 400, 2)), fine, n) for n in range(2)]
    places = coarse.assign(column(list(range(400)))).tolist()
    for consumer in range(2):
        expected = sorted(n for n in range(400) if places[n] == consumer)
        assert sorted(read(outputs, range(4 * consumer, 4 * consumer + 4))) == expected


def test_more_records_than_memory_come_in_order(home: Home) -> None:
    records = [bytes([n % 251]) * 10_000 for n in range(600)]
    options = Options(memory=MIB, read_memory=MIB)
    output = written(home, records, GlobalSelector(2, 1), options=options)
    assert read([output], 1, options=options) == records
    assert read([output], 0, options=options) == []


# ---- events ---------------------------------------------------------------------------------------------


def told(stream: engine.Input) -> list[Any]:
    """Records and events, in their order."""
    found: list[Any] = []
    for buffer in stream.buffers():
        found += [(buffer.map_index, record) for chunk in buffer.chunks for record in chunk]
        found += [(buffer.map_index, buffer.event)] if buffer.event is not None else []
    return found


def test_events_keep_their_place_and_come_to_all(home: Home) -> None:
    sent: list[Event] = [SUPERSTEP, Barrier(7, 1_000_000, b"x"), UserEvent("unit", b"cent")]
    with open_output(home, GlobalSelector(2, 1), 5) as output:
        for number, event in enumerate(sent):
            output.write([number])
            output.send(event)
        outputs = [output.finish()]
    with open_input(outputs, 0) as stream:
        assert told(stream) == [(5, event) for event in [*sent, *ENDS]]
    with open_input(outputs, 1) as stream:
        expected = [(5, each) for number, event in enumerate(sent) for each in (number, event)]
        assert told(stream) == expected + [(5, event) for event in ENDS]
    assert read(outputs, [0, 1]) == [0, 1, 2]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (END_OF_DATA, r"END_OF_DATA is what finish\(\) sends"),
        (END_OF_PARTITION, r"END_OF_PARTITION is what finish\(\) sends"),
        (UserEvent, "no event"),
        (Barrier, "no event"),
        ("unit", "no event"),
        (None, "no event"),
    ],
)
def test_what_is_no_event_to_be_sent_changes_nothing(home: Home, wrong: Any, said: str) -> None:
    with open_output(home, GlobalSelector(), 0) as output:
        output.write(["before"])
        with pytest.raises(UsageError, match=said):
            output.send(wrong)
        output.write(["behind"])
        output.send(SUPERSTEP)
        outputs = [output.finish()]
    with open_input(outputs, 0) as stream:
        assert told(stream) == [(0, each) for each in ["before", "behind", SUPERSTEP, *ENDS]]


# ---- batches --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["none", "lz4", "zstd"])
def test_rows_go_where_the_selector_says(home: Home, codec: str) -> None:
    options = Options(codec=codec)
    outputs = [
        written_rows(home, rows(100 * n, 100 * n + 100), HashSelector((0,), 3), n, options=options)
        for n in range(2)
    ]
    places = HashSelector((0,), 3).assign(rows(0, 200)).tolist()
    for subpartition in range(3):
        with open_input(outputs, subpartition) as stream:
            found = list(stream.batches())
        assert [batch.schema for batch in found] == [SCHEMA] * len(found)
        assert rows_of(found) == [{"k": n, "v": f"v{n}"} for n in range(200) if places[n] == subpartition]


def test_rows_are_broadcast(home: Home) -> None:
    output = written_rows(home, rows(0, 5), BroadcastSelector(3))
    for subpartition in range(3):
        with open_input([output], subpartition) as stream:
            assert rows_of(stream.batches()) == rows(0, 5).to_pylist()
    assert len(set(output.subpartition_bytes)) == 1


def test_batches_of_another_schema_are_refused(home: Home) -> None:
    with open_output(home, GlobalSelector(), 0, schema=SCHEMA) as output:
        with pytest.raises(UsageError, match=r"is \(k int64, v string\), the batch's \(k int64\)"):
            output.write_batch(column([1]))
        output.write_batch(rows(0, 2))
        outputs = [output.finish()]
    with open_input(outputs, 0) as stream:
        assert rows_of(stream.batches()) == rows(0, 2).to_pylist()


DICTIONARY = pa.dictionary(pa.int8(), pa.string())


@pytest.mark.parametrize(
    "kind",
    [
        DICTIONARY,
        pa.list_(DICTIONARY),
        pa.map_(pa.string(), DICTIONARY),
        pa.struct([("n", pa.int64()), ("deep", pa.list_(pa.struct([("word", DICTIONARY)])))]),
    ],
    ids=["column", "in a list", "in a map", "deep"],
)
def test_columns_of_dictionaries_are_refused(home: Home, kind: pa.DataType) -> None:
    """A message of theirs has no dictionary, so nobody could read it."""
    schema = pa.schema([("k", pa.int64()), ("word", kind)])
    with pytest.raises(UnsupportedError, match=r"the column word has a dictionary.* cast .*value type"):
        open_output(home, GlobalSelector(), 0, schema=schema)
    assert names(home.path) == ["owner.json"]


@pytest.mark.parametrize(
    "kind",
    [
        pa.string_view(),
        pa.list_(pa.binary_view()),
        pa.list_view(pa.int64()),
        pa.struct([("deep", pa.large_list_view(pa.int64()))]),
    ],
    ids=str,
)
def test_columns_of_views_are_refused(home: Home, kind: pa.DataType) -> None:
    """Each message of theirs would have the text of the whole batch."""
    schema = pa.schema([("k", pa.int64()), ("word", kind)])
    with pytest.raises(UnsupportedError, match=r"the column word has views .* cast .* without views"):
        open_output(home, GlobalSelector(), 0, schema=schema)
    assert names(home.path) == ["owner.json"]


def test_columns_of_runs_are_refused(home: Home) -> None:
    """Arrow has no `take` for them, so they could be written for one subpartition only."""
    runs = pa.run_end_encoded(pa.int32(), pa.int64())
    schema = pa.schema([("k", pa.int64()), ("word", pa.struct([("deep", runs)]))])
    with pytest.raises(UnsupportedError, match=r"the column word has runs .*run_end_decode"):
        open_output(home, GlobalSelector(), 0, schema=schema)
    assert names(home.path) == ["owner.json"]


@pytest.mark.parametrize("wrong", [pa.table({"k": [1]}), [{"k": 1}], {"k": [1]}])
def test_what_is_no_batch_is_refused(home: Home, wrong: Any) -> None:
    with open_output(home, GlobalSelector(), 0, schema=SCHEMA) as output:
        with pytest.raises(UsageError, match=r"an Arrow record batch is written, no .*to_batches\(\)"):
            output.write_batch(wrong)
        output.write_batch(rows(0, 1))


def test_a_batch_with_other_nulls_is_told_how_to_be_written(home: Home) -> None:
    schema = pa.schema([pa.field("k", pa.int64(), nullable=False)])
    with open_output(home, GlobalSelector(), 0, schema=schema) as output:
        said = r"is \(k int64 not null\), the batch's \(k int64\):.* write batch\.cast\(schema\)"
        with pytest.raises(UsageError, match=said):
            output.write_batch(column([1]))
        output.write_batch(column([1]).cast(schema))
        outputs = [output.finish()]
    with open_input(outputs, 0) as stream:
        assert rows_of(stream.batches()) == [{"k": 1}]


def test_records_and_batches_are_told_apart(home: Home) -> None:
    with open_output(home, GlobalSelector(), 0) as of_records:
        with pytest.raises(UsageError, match="takes records"):
            of_records.write_batch(rows(0, 1))
        records = of_records.finish()
    with open_output(home, GlobalSelector(), 1, schema=SCHEMA) as of_batches:
        for refused in (
            lambda: of_batches.write([1]),
            lambda: of_batches.broadcast(1),
            lambda: of_batches.send(SUPERSTEP),
        ):
            with pytest.raises(UsageError, match="takes batches"):
                refused()
        batches = of_batches.finish()
    with open_input([records], 0) as stream, pytest.raises(UsageError, match="hold records"):
        stream.batches()
    with open_input([batches], 0) as stream:
        with pytest.raises(UsageError, match="hold batches"):
            stream.records()
        with pytest.raises(UsageError, match="hold batches"):
            stream.buffers()
    with pytest.raises(UsageError, match="hold other things"):
        open_input([records, batches], 0)


# ---- what is refused, and what is lost ------------------------------------------------------------------


def test_outputs_of_one_exchange_one_schema_one_codec(home: Home) -> None:
    one = written_rows(home, rows(0, 1), GlobalSelector())
    other = written_rows(home, column([1]), GlobalSelector(), 1)
    packed = written_rows(home, rows(0, 1), GlobalSelector(), 2, options=Options(codec="zstd"))
    for wrong in ([one, other], [one, packed]):
        with pytest.raises(UsageError, match="hold other things"):
            open_input(wrong, 0)
    with pytest.raises(UsageError, match="two exchanges, 0 and 1"):
        open_input([one, replace(other, exchange=1)], 0)


def test_outputs_of_different_numbers_of_subpartitions_are_not_opened_together(home: Home) -> None:
    one, other = (written(home, [1], GlobalSelector(n + 1), n) for n in range(2))
    with pytest.raises(UsageError, match=r"map 0 .* 1 subpartitions, .*map 1 .* 2:"):
        open_input([one, other], 0)


def test_one_index_is_held_at_a_time(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = [written(home, [n], GlobalSelector(), n) for n in range(5)]
    held = []

    def counting(*given: Any) -> Index:
        held.append(sum(type(each) is Index for each in gc.get_objects()))
        return read_index(*given)

    before = sum(type(each) is Index for each in gc.get_objects())
    monkeypatch.setattr(engine_input, "read_index", counting)
    assert read(outputs, 0) == [0, 1, 2, 3, 4]
    assert [count - before for count in held] == [0] * 5


def test_files_of_another_host_are_not_taken_for_lost(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    output = written(home, [1], GlobalSelector())
    there = replace(output, host="node9")
    assert read([there], 0) == [1]  # what all hosts have mounted needs no service
    away = replace(there, path="/nowhere" + output.path)
    with pytest.raises(UsageError, match="its files are on node9: name its service"):
        open_input([away], 0)
    with pytest.raises(MissingDataError):
        open_input([replace(away, host="127.0.0.1")], 0)


def test_a_producer_may_run_again(home: Home) -> None:
    first, again = (written(home, [1], GlobalSelector()) for _ in range(2))
    with pytest.raises(UsageError, match=r"two outputs of map 0.*would come twice"):
        open_input([first, again], 0)
    release([first])
    assert read([again], 0) == [1]


@pytest.mark.parametrize("subpartition", [-1, 2])
def test_a_subpartition_that_is_not_there(home: Home, subpartition: int) -> None:
    output = written(home, [1], GlobalSelector(2))
    with pytest.raises(UsageError, match=rf"no subpartition {subpartition}: they are 0 to 1"):
        open_input([output], subpartition)


@pytest.mark.parametrize("numbers", [{"map_index": -1}, {"map_index": 0, "exchange": -1}])
def test_numbers_count_from_0_on(home: Home, numbers: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="count from 0 on"):
        open_output(home, GlobalSelector(), **numbers)  # type: ignore[arg-type]


def test_numbers_may_be_numpys(home: Home) -> None:
    outputs = [written(home, [1, 2, 3], ByCount(), np.int64(4), exchange=np.uint8(2))]  # type: ignore[arg-type]
    assert (outputs[0].map_index, outputs[0].exchange) == (4, 2)
    assert type(outputs[0].map_index) is int
    assert read(outputs, np.int32(0)) == [1, 3]
    assert read(outputs, np.array([1, 0])) == [2, 1, 3]  # in the order given


@pytest.mark.parametrize("wrong", ["0", "", b"\0", 1.0, None, ["0"], [0.0]])
def test_what_is_no_number_is_refused(home: Home, wrong: Any) -> None:
    outputs = [written(home, [1], GlobalSelector())]
    with pytest.raises(UsageError, match="a number of a subpartition is an int, not"):
        open_input(outputs, wrong)
    with pytest.raises(UsageError, match="a number of a map index is an int, not"):
        open_output(home, GlobalSelector(), wrong)
    with pytest.raises(UsageError, match="a number of a exchange is an int, not"):
        open_output(home, GlobalSelector(), 0, exchange=wrong)


def test_a_subpartition_is_read_once(home: Home) -> None:
    outputs = [written(home, [1], GlobalSelector(2))]
    with pytest.raises(UsageError, match="twice"):
        open_input(outputs, [0, 1, 0])


def test_map_outputs_are_given_as_a_list(home: Home) -> None:
    output = written(home, [1], GlobalSelector())
    wrongs: list[Any] = [output, None, [None], "output", [output, 1]]
    for wrong in wrongs:
        with pytest.raises(UsageError, match=r"a list of what finish\(\) returned, not"):
            open_input(wrong, 0)
        with pytest.raises(UsageError, match=r"a list of what finish\(\) returned, not"):
            release(wrong)
    assert read([output], 0) == [1]


def test_of_no_outputs_there_is_nothing() -> None:
    assert read([], 0) == []


def test_a_home_is_one_step_of_a_path(tmp_path: Path) -> None:
    for wrong in ("../elsewhere", ""):
        with pytest.raises(UsageError, match="one step of a path"):
            Home.of(str(tmp_path), wrong)
    assert names(tmp_path) == []


def damage(path: str, position: int) -> None:
    with open(path, "r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 1]))


@contextmanager
def ways(home: Home, kind: str) -> Iterator[dict[str, Any]]:
    """How to read: from files, or through a service."""
    if kind == "files":
        yield {}
        return
    with sortshuffle.serve([home.directory]) as service:
        yield {"services": {host_name(): service.address}}


def lost(outputs: list[MapOutput], error: type[DataLossError], **way: Any) -> Place:
    """Of what an input finds lost. The error says whose output it is."""
    with pytest.raises(error) as found:
        read(outputs, 0, **way)
    assert found.value.place.writer == str(outputs[1])
    assert found.value.what
    return found.value.place


@pytest.mark.parametrize("kind", ["files", "service"])
def test_what_is_lost_is_told_with_its_place(home: Home, kind: str) -> None:
    outputs = [written(home, [n], GlobalSelector(), n) for n in range(2)]
    with ways(home, kind) as way:
        for path in (outputs[1].file.data_path, outputs[1].file.index_path):
            os.unlink(path)
            assert os.path.basename(outputs[1].path) in lost(outputs, MissingDataError, **way).file


@pytest.mark.parametrize("kind", ["files", "service"])
def test_damage_is_told_with_its_place(home: Home, kind: str) -> None:
    outputs = [written(home, list(range(1000)), GlobalSelector(), n) for n in range(2)]
    with ways(home, kind) as way:
        damage(outputs[1].file.data_path, 200)
        assert lost(outputs, CorruptDataError, **way).file == outputs[1].file.data_path
        damage(outputs[1].file.index_path, 70)
        assert lost(outputs, CorruptDataError, **way).file == outputs[1].file.index_path


# ---- ends -----------------------------------------------------------------------------------------------


def test_an_output_that_is_left_is_abandoned(home: Home) -> None:
    with pytest.raises(ZeroDivisionError), open_output(home, GlobalSelector(), 0) as output:
        output.write([1])
        assert len(names(home.path)) == 3
        raise ZeroDivisionError
    assert names(home.path) == ["owner.json"]
    assert open_files(home.directory) == []
    for call in (lambda: output.write([2]), output.finish):
        with pytest.raises(StateError, match="abandoned"):
            call()


@pytest.mark.parametrize("schema", [None, SCHEMA])
def test_a_finished_output_takes_no_more(home: Home, schema: pa.Schema | None) -> None:
    with open_output(home, GlobalSelector(), 0, schema=schema) as output:
        made = output.finish()
        with pytest.raises(StateError, match="finished"):
            output.finish()
        with pytest.raises(StateError, match="finished"):
            output.write([1]) if schema is None else output.write_batch(rows(0, 1))
    output.abandon()  # does nothing
    assert os.path.exists(made.file.data_path)


@pytest.mark.parametrize("schema", [None, SCHEMA])
def test_an_output_that_fails_when_it_is_finished_has_failed(
    home: Home, schema: pa.Schema | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OutOfDiskError("/d", 1, 0)

    output = open_output(home, GlobalSelector(), 0, schema=schema)
    with monkeypatch.context() as patched:
        patched.setattr(PartitionedFileWriter, "finish", full)
        with pytest.raises(OutOfDiskError):
            output.finish()
    assert names(home.path) == ["owner.json"]
    with pytest.raises(StateError, match="has failed when it was to be finished"):
        output.finish()
    output.abandon()


def test_a_closed_input_reads_no_more(home: Home) -> None:
    outputs = [written(home, [n] * 1000, GlobalSelector(), n) for n in range(6)]
    with open_input(outputs, 0) as stream:
        records = stream.records()
        assert next(records) == 0
    with pytest.raises(StateError, match="the input is closed: read inside it"):
        next(records)
    assert reading_threads() == []
    assert open_files(home.directory) == []
    with pytest.raises(StateError, match="closed"):
        stream.records()
    stream.close()  # may be called again


@pytest.mark.parametrize("way", ["records", "buffers", "batches"])
def test_an_iterator_does_not_outlive_its_input(home: Home, way: str) -> None:
    """It would look as if there were nothing more."""
    outputs = [
        written_rows(home, rows(0, 5), GlobalSelector())
        if way == "batches"
        else written(home, [1], forward(0, 1))
    ]
    with open_input(outputs, 0) as stream:
        unread = getattr(stream, way)()
    with pytest.raises(StateError, match="the input is closed: read inside it"):
        list(unread)
    with open_input(outputs, 0) as stream:
        whole = getattr(stream, way)()
        assert list(whole)
    assert list(whole) == []  # there is nothing more


def test_an_object_that_cannot_be_pickled_leaves_nothing(home: Home) -> None:
    with (
        open_output(home, GlobalSelector(), 0) as output,
        pytest.raises((AttributeError, pickle.PicklingError)),
    ):
        output.write([lambda: 1])
    assert names(home.path) == ["owner.json"]


def test_what_is_released_is_gone(home: Home) -> None:
    outputs = [written(home, [n], GlobalSelector(), n) for n in range(2)]
    release(outputs[:1])
    release(outputs[:1])
    assert read(outputs[1:], 0) == [1]
    assert len(names(home.path)) == 3
    with pytest.raises(UsageError, match="cannot be released on"):
        release([outputs[1], replace(outputs[0], host="elsewhere")])
    assert read(outputs[1:], 0) == [1]  # all or nothing
    release([replace(outputs[1], host="127.0.0.1")])  # this host by another name
    assert names(home.path) == ["owner.json"]


def test_who_reads_what_is_released_finds_it_lost(home: Home) -> None:
    """Files are opened one by one, while others are read."""
    outputs = [written(home, [n], GlobalSelector(), n) for n in range(3)]
    with open_input(outputs, 0, options=Options(read_threads=1)) as stream:
        records = stream.records()
        release(outputs)
        with pytest.raises(DataLossError):
            list(records)


def test_a_home_goes_with_all_that_is_in_it(tmp_path: Path) -> None:
    with Home.of(str(tmp_path / "new"), "job") as home:
        assert home.application.startswith("job-")
        written(home, [1], GlobalSelector())
        left = open_output(home, GlobalSelector(), 1)
    assert names(tmp_path / "new") == []
    left.abandon()
    home.remove()  # may be called again


def test_what_a_killed_producer_left_goes_with_the_home(tmp_path: Path) -> None:
    program = (
        "import os, pickle, signal, sys; from sortshuffle.engine import *;"
        " from sortshuffle.partitioner import GlobalSelector;"
        " output = open_output(pickle.load(sys.stdin.buffer), GlobalSelector(), 0);"
        " output.write([b'x' * 1000]); os.kill(os.getpid(), signal.SIGKILL)"
    )
    with Home.of(str(tmp_path)) as home:
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, env=ENVIRONMENT, input=pickle.dumps(home), check=False)
        assert done.returncode == -signal.SIGKILL
        assert len(names(home.path)) > 1
        assert read([written(home, [1], GlobalSelector())], 0) == [1]  # the same map again
    assert names(tmp_path) == []


def test_nothing_is_taken_where_the_home_is_gone(tmp_path: Path) -> None:
    with Home.of(str(tmp_path)) as gone:
        pass
    with pytest.raises(FileNotFoundError):
        open_output(gone, GlobalSelector(), 0)
    assert names(tmp_path) == []


def test_a_home_that_cannot_be_made_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        Home.of(str(tmp_path / "file"))
    assert names(tmp_path) == ["file"]


def test_homes_of_one_process_are_apart(tmp_path: Path) -> None:
    with Home.of(str(tmp_path)) as one, Home.of(str(tmp_path)) as other:
        output = written(one, [1], GlobalSelector())
        other.remove()
        assert read([output], 0) == [1]


def test_clean_keeps_the_home_of_a_live_process_and_removes_that_of_a_killed_one(
    tmp_path: Path, home: Home
) -> None:
    program = (
        "import os, sys; from sortshuffle.engine import Home;"
        " print(Home.of(sys.argv[1]).path, flush=True); os._exit(1)"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(command, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True, check=False)
    left = done.stdout.strip()
    verdicts = {verdict.path: verdict.is_dead for verdict in judge_all(str(tmp_path), None, print)}
    assert verdicts == {home.path: False, left: True}
    Home(str(tmp_path), "", left).remove()


# ---- through a service ----------------------------------------------------------------------------------


def test_through_a_service_it_is_the_same(home: Home, tmp_path: Path) -> None:
    selector = KeyGroupSelector((0,), 4, 16)
    outputs = [written(home, list(range(n, 2000, 2)), selector, n) for n in range(2)]
    tables = [written_rows(home, rows(0, 500), HashSelector((0,), 2), n, exchange=1) for n in range(2)]
    with sortshuffle.serve([home.directory]) as service:
        services = {host_name(): service.address}
        assert read(outputs, 3, services=services) == read(outputs, 3)
        assert read(outputs, range(1, 3), services=services) == read(outputs, range(1, 3))
        with open_input(tables, 1, services=services) as there, open_input(tables, 1) as here:
            assert rows_of(there.batches()) == rows_of(here.batches())
        assert service.status().bytes_sent_total > sum(outputs[0].subpartition_bytes[1:])
        moved = replace(outputs[0], path="/nowhere/" + os.path.basename(outputs[0].path))
        assert read([moved], 3, services=services) == read(outputs[:1], 3)  # by its name, not by its path
        read_locally = service.status().requests_total
        assert read(outputs, 3, services={"elsewhere": service.address}) == read(outputs, 3)
        assert service.status().requests_total == read_locally


def test_a_service_asks_for_the_secret(home: Home, tmp_path: Path) -> None:
    output = written(home, [1, 2], GlobalSelector())
    secrets = []
    for name in ("right", "wrong"):
        secrets.append(tmp_path / name)
        secrets[-1].write_bytes(name.encode() * 8)
        secrets[-1].chmod(0o600)
    right, wrong = (Options(service_secret_file=str(path)) for path in secrets)
    try:
        with sortshuffle.serve([home.directory], secret=b"right" * 8) as service:
            services = {host_name(): service.address}
            assert read([output], 0, services=services, options=right) == [1, 2]
            for options in (wrong, Options()):
                with pytest.raises(AuthenticationError):
                    read([output], 0, services=services, options=options)
    finally:
        for path in secrets:
            path.unlink()


def test_a_service_with_tls_is_trusted_by_its_authority(
    home: Home, tmp_path_factory: pytest.TempPathFactory
) -> None:
    output = written(home, [1, 2], GlobalSelector())
    authority, other = trustme.CA(), trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    directory = tmp_path_factory.mktemp("tls")
    paths = {name: str(directory / name) for name in ("certificate", "key", "authority", "other")}
    issued.cert_chain_pems[0].write_to_path(paths["certificate"])
    issued.private_key_pem.write_to_path(paths["key"])
    authority.cert_pem.write_to_path(paths["authority"])
    other.cert_pem.write_to_path(paths["other"])

    def trusting(name: str) -> Options:
        return Options(service_tls_authority=paths[name])

    with sortshuffle.serve([home.directory], tls=ServerTls(paths["certificate"], paths["key"])) as service:
        services = {host_name(): service.address}
        assert read([output], 0, services=services, options=trusting("authority")) == [1, 2]
        with pytest.raises(AuthenticationError):
            read([output], 0, services=services, options=trusting("other"))


def test_what_a_service_does_not_have_is_lost(home: Home) -> None:
    output = written(home, [1], GlobalSelector())
    release([output])
    with sortshuffle.serve([home.directory]) as service, pytest.raises(MissingDataError):
        open_input([output], 0, services={host_name(): service.address})
