"""What a reduce task reads through the engine of its host: ranges of subpartitions of many map outputs,
whatever their size; all that is lost is named at once; damaged data is never handed out."""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from engine import changed, open_files
from hypothesis import given, settings
from hypothesis import strategies as st
from jvm_client import (
    DONE,
    FAILED,
    HERE,
    LOST,
    SHUFFLE,
    Answer,
    Block,
    JvmClient,
    Output,
    Record,
    Serving,
    connected,
    serving,
    some,
    write_output,
)

from sortshuffle import calls
from sortshuffle.format.header import Codec
from sortshuffle.options import KIB, MIB
from sortshuffle.service.jvm import protocol
from sortshuffle.service.jvm.block_reader import READ_BYTES
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.files.reader import read_index

Frames = Sequence[Sequence[Record]]
SIZES = pytest.mark.parametrize("size", [100, 300 * KIB], ids=["small", "large"])


# Ranges


@settings(max_examples=40)
@given(
    codec=st.sampled_from(Codec),
    drawn=st.lists(
        st.lists(
            st.lists(
                st.tuples(st.integers(0, 11), st.one_of(st.binary(max_size=30), st.just(b"x" * 50_000))),
                min_size=1,
                max_size=25,
            ),
            max_size=3,
        ),
        min_size=1,
        max_size=4,
    ),
    ranges=st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 11), st.integers(1, 12)), min_size=1, max_size=8
    ),
)
def test_any_ranges_of_any_map_outputs_come_in_the_order_of_the_request(
    tmp_path: Path, codec: Codec, drawn: list[Frames], ranges: list[tuple[int, int, int]]
) -> None:
    root = tmp_path / "example"
    root.mkdir()
    try:
        with serving(root, codec=codec) as engine:
            client = engine.connect()
            outputs = [write_output(client, at, frames, 12) for at, frames in enumerate(drawn)]
            chosen = [
                (outputs[at % len(outputs)], first, min(12, first + count)) for at, first, count in ranges
            ]
            for _ in ("as they were kept", "as they stand in their files"):
                answer = client.read([output.block(first, end) for output, first, end in chosen])
                assert answer.data == b"".join(output.expected(first, end) for output, first, end in chosen)
                assert (answer.status, answer.totals[1:]) == (DONE, (len(ranges), 0, 0))
                for output in outputs:
                    engine.engine.outputs.forget(output.done.file_id)
    finally:
        shutil.rmtree(root)


@pytest.mark.parametrize("codec", Codec)
def test_a_subpartition_of_many_regions_comes_in_its_order(tmp_path: Path, codec: Codec) -> None:
    frames = [
        [(at % 3, b"%d " % at + random.Random(at).randbytes(MIB)) for at in range(n, n + 3)]
        for n in range(12)
    ]
    with serving(tmp_path, write_memory=16 * MIB, codec=codec) as engine:
        client = engine.connect()
        output = write_output(client, 1, frames)
        assert read_index(output.file(engine.homes[0])).regions > 2
        for subpartition in range(4):
            found = client.read([output.block(subpartition, subpartition + 1)])
            assert found.data == output.expected(subpartition, subpartition + 1)
            assert found.totals == (output.done.sizes[subpartition], 1, 0, 0)
        everything = client.read([output.block(0, 4)]).data
        assert len(everything) == len(output.expected(0, 4))
        for subpartition in range(3):
            records = [record for each in frames for at, record in each if at == subpartition]
            found = [everything.index(record) for record in records]
            assert found == sorted(found), "a subpartition's records keep their order"


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("size", [READ_BYTES // 4 - 1, READ_BYTES, READ_BYTES + 1, 3 * READ_BYTES])
def test_extents_of_any_size_come_whole(tmp_path: Path, codec: Codec, size: int) -> None:
    """Up to `READ_BYTES` neighbours are read together, larger ones in parts."""
    chosen = random.Random(2)
    frames = [[(0, b"first")], [(1, chosen.randbytes(size))], [(2, bytes(size))], [(3, b"last")]]
    with serving(tmp_path, codec=codec, write_memory=128 * MIB) as engine:
        client = engine.connect()
        output = write_output(client, 1, frames, subpartitions=64)  # whose regions may be that large
        assert read_index(output.file(engine.homes[0])).regions == 1
        for first, end in ((0, 4), (1, 2), (2, 3), (1, 4)):
            answer = client.read([output.block(first, end)])
            assert answer.data == output.expected(first, end)
            assert answer.totals == (sum(output.done.sizes[first:end]), 1, 0, 0)


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
@pytest.mark.parametrize("neighbours", [1, 8], ids=["one", "several"])
def test_what_compresses_well_is_not_held_at_once(tmp_path: Path, codec: Codec, neighbours: int) -> None:
    """What is read together is limited by its size in the file, which says little of what it becomes."""
    frames = [[(at % neighbours, bytes(MIB))] for at in range(64)]
    with serving(tmp_path, codec=codec, write_memory=128 * MIB) as engine:
        output = write_output(engine.connect(), 1, frames, 128)  # whose region may be that large
        assert sum(output.done.sizes) < MIB
        asked = output.block(0, neighbours).received()
        request = protocol.ReadRequest(SHUFFLE, (engine.engine.settings.address,), (asked,))
        before = pa.total_allocated_bytes()
        with closing(engine.engine.read(request)) as reader:
            reader.locate()
            total = 0
            for piece in reader.pieces():
                total += len(piece)
                assert pa.total_allocated_bytes() - before < 8 * MIB
        assert total == 64 * MIB


@SIZES
def test_empty_subpartitions_are_passed_over(client: JvmClient, size: int) -> None:
    frames = [[(at, random.Random(at).randbytes(size)) for at in (2, 3, 7, 11)]]
    outputs = [write_output(client, 1, [], 12), write_output(client, 2, frames, 12)]
    answer = client.read([each.block(0, 12) for each in outputs])
    assert answer.data == outputs[1].expected(0, 12)
    assert answer.totals == (sum(outputs[1].done.sizes), 2, 0, 0)
    assert client.read([outputs[1].block(4, 7), outputs[1].block(0, 2)]).data == b""
    assert client.read([outputs[0].block(3, 4)]).data == b""


def test_the_totals_on_the_way_are_of_what_was_read_by_then(engine: Serving, client: JvmClient) -> None:
    """A task that reads no further reports them."""
    chosen = random.Random(1)
    frames = [[(0, chosen.randbytes(3 * READ_BYTES))], [(1, b"small")]]
    large, small = write_output(client, 1, frames, 2), write_output(client, 2, [[(0, b"small")]], 2)
    asked = [large.block(0, 1), large.block(1, 2), small.block(0, 1), small.block(1, 2)]
    request = protocol.ReadRequest(SHUFFLE, (HERE,), tuple(each.received() for each in asked))
    with closing(engine.engine.read(request)) as reader:
        reader.locate()
        assert reader.totals() == protocol.ReadTotals()
        found, sizes = [], []
        for piece in reader.pieces():
            found.append(reader.totals())
            sizes.append(len(piece))
        assert sum(sizes) == 3 * READ_BYTES + len(b"smallsmall")
        of_large = [each for each in found if each.local_blocks == 1]
        assert 0 < of_large[0].local_bytes <= READ_BYTES
        assert of_large[-1].local_bytes == large.done.sizes[0]
        for at, each in enumerate(of_large):
            assert sum(sizes[: at + 1]) <= each.local_bytes <= sum(sizes[: at + 1]) + READ_BYTES
        assert [each.local_blocks for each in found[len(of_large) :]] == [2, 3, 4]
        total = sum(large.done.sizes) + small.done.sizes[0]
        assert reader.totals() == protocol.ReadTotals(total, 4, 0, 0)


def test_a_request_for_nothing_is_answered(client: JvmClient) -> None:
    answer = client.read([], [])
    assert (answer.data, answer.totals) == (b"", (0, 0, 0, 0))


@pytest.mark.parametrize("size", [20, 2000], ids=["small", "large"])
def test_many_small_blocks_come_in_few_pieces(engine: Serving, size: int) -> None:
    client = engine.connect()
    outputs = [write_output(client, at, some(at, size, 400), 400) for at in range(20)]
    answer = client.read([each.block(3, 400) for each in outputs])
    assert answer.data == b"".join(each.expected(3, 400) for each in outputs)
    assert answer.pieces <= max(20, len(answer.data) // (100 * KIB))


def test_thousands_of_tiny_blocks_come_in_one_piece_and_a_large_one_behind_them_in_another(
    client: JvmClient,
) -> None:
    tiny, large = write_output(client, 1, some(1, 20, 400), 400), write_output(client, 2, some(2, MIB))
    blocks = [tiny.block(at, at + 1) for at in range(400)] * 4
    answer = client.read(blocks)
    assert (answer.data, answer.pieces) == (tiny.expected(0, 400) * 4, 1)
    answer = client.read([*blocks, large.block(1, 2), *blocks])
    assert answer.data == tiny.expected(0, 400) * 4 + large.expected(1, 2) + tiny.expected(0, 400) * 4
    assert answer.status == DONE


@SIZES
@pytest.mark.parametrize(("first", "end"), [(4, 5), (0, 5), (3, 2**31 - 1), (100, 101)])
def test_subpartitions_that_there_are_not_are_no_empty_ones(
    client: JvmClient, size: int, first: int, end: int
) -> None:
    output = write_output(client, 1, some(1, size))
    for _ in range(2):  # when it is found, and when it is known
        answer = client.read([output.block(first, end)])
        assert answer.status not in (DONE, LOST)
        assert "4" in answer.text
        assert client.read([output.block(0, 4)]).data == output.expected(0, 4)


# Losses


def outputs_of(client: JvmClient, count: int, size: int) -> list[Output]:
    return [write_output(client, at, some(at, size)) for at in range(count)]


@SIZES
@pytest.mark.parametrize("suffix", ["data", "index", "both"])
def test_all_that_are_lost_are_named_at_once_and_before_any_data(
    engine: Serving, client: JvmClient, size: int, suffix: str
) -> None:
    outputs = outputs_of(client, 8, size)
    lost = [outputs[at] for at in (1, 4, 5)]
    for each in lost:
        paths = {"data": each.file(engine.homes[0]).data_path, "index": each.file(engine.homes[0]).index_path}
        for path in paths.values() if suffix == "both" else [paths[suffix]]:
            os.unlink(path)
    answer = client.read([each.block(at, at + 1) for at in (0, 2) for each in outputs])
    assert (answer.status, answer.data, answer.lost) == (LOST, b"", (1, 4, 5, 9, 12, 13))
    assert outputs[1].file(engine.homes[0]).base in answer.text
    rest = [each for each in outputs if each not in lost]
    assert client.read([each.block(0, 4) for each in rest]).data == b"".join(
        each.expected(0, 4) for each in rest
    )


def test_known_ones_are_named_with_those_that_are_looked_for(engine: Serving, client: JvmClient) -> None:
    outputs = outputs_of(client, 4, 300 * KIB)
    blocks = [each.block(0, 4) for each in outputs]
    assert client.read(blocks[:2]).status == DONE
    for each in outputs[1:3]:
        os.truncate(each.file(engine.homes[0]).data_path, 400)
    answer = client.read(blocks)
    assert (answer.status, answer.lost) == (LOST, (1, 2))


def refuse_to_open(monkeypatch: pytest.MonkeyPatch, path: str, number: int) -> None:
    """The system gives this error when the file is opened."""
    opens = calls.open

    def failing(name: str, *arguments: Any) -> int:
        if name == path:
            raise OSError(number, os.strerror(number), name)
        return opens(name, *arguments)

    monkeypatch.setattr(calls, "open", failing)


@pytest.fixture
def unreadable(engine: Serving, client: JvmClient, monkeypatch: pytest.MonkeyPatch) -> list[Output]:
    """Five map outputs. The first, fourth and fifth are gone, and the engine has no descriptor left for the
    second. All but the last were read before."""
    outputs = outputs_of(client, 5, 300 * KIB)
    assert client.read([each.block(0, 4) for each in outputs[:4]]).status == DONE
    files = [each.file(engine.homes[0]) for each in outputs]
    for at in (0, 3, 4):
        os.unlink(files[at].data_path)
    second = files[1].data_path
    shutil.copy(second, f"{second}.copy")
    os.replace(f"{second}.copy", second)  # now a file that is not open: the engine must open it again
    refuse_to_open(monkeypatch, files[1].index_path, errno.EMFILE)
    return outputs


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("ask", [JvmClient.read, JvmClient.look])
def test_a_file_that_cannot_be_opened_hides_no_loss_of_others(
    engine: Serving,
    client: JvmClient,
    unreadable: list[Output],
    known: bool,
    ask: Callable[..., Answer],
    caplog: pytest.LogCaptureFixture,
) -> None:
    if not known:
        for each in unreadable:
            engine.engine.outputs.forget(each.done.file_id)
    answer = ask(client, [each.block(0, 4) for each in unreadable])
    assert (answer.status, answer.lost) == (LOST, (0, 3, 4))
    assert len([each for each in caplog.messages if "cannot be told" in each]) == 1


def test_a_file_that_cannot_be_opened_is_no_loss(client: JvmClient, unreadable: list[Output]) -> None:
    answer = client.look([unreadable[at].block(0, 4) for at in (1, 2)])
    assert (answer.status, answer.lost) == (FAILED, ())
    assert "Too many open files" in answer.text
    assert "ulimit -n" in answer.text


def test_a_file_whose_disk_fails_is_lost(
    engine: Serving, client: JvmClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The map task runs again, and writes to another disk."""
    outputs = outputs_of(client, 3, 300 * KIB)
    file = outputs[1].file(engine.homes[0])
    refuse_to_open(monkeypatch, file.index_path, errno.EIO)
    answer = client.read([each.block(0, 4) for each in outputs])
    assert (answer.status, answer.lost) == (LOST, (1,))
    assert file.base in answer.text


def test_a_look_finds_what_is_lost_of_known_map_outputs(engine: Serving, client: JvmClient) -> None:
    outputs = outputs_of(client, 6, 300 * KIB)
    blocks, ids = [each.block(0, 4) for each in outputs], [each.done.file_id for each in outputs]
    assert client.read(blocks).status == DONE
    known = engine.engine.outputs.known(ids)
    answer = client.look(blocks)
    assert (answer.status, answer.data, answer.totals) == (DONE, b"", (0, 0, 0, 0))
    files = [each.file(engine.homes[0]) for each in outputs]
    os.unlink(files[1].data_path)
    os.truncate(files[2].data_path, 400)
    os.replace(files[5].data_path, files[4].data_path)
    answer = client.look(blocks)
    assert (answer.status, answer.data, answer.lost) == (LOST, b"", (1, 2, 4, 5))
    for at, now in enumerate(engine.engine.outputs.known(ids)):
        assert now is (None if at in answer.lost else known[at]), "sound ones stay open"


def test_a_disk_that_is_lost_loses_all_that_was_on_it_at_once(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    with serving(tmp_path, tmp_path / "b") as engine:
        client = engine.connect()
        outputs = outputs_of(client, 12, 100)
        shutil.rmtree(tmp_path / "b")
        answer = client.read([each.block(0, 4) for each in outputs])
        assert (answer.status, answer.lost) == (LOST, tuple(range(1, 12, 2)))
        assert "none of the application's directories on this host" in answer.text
        assert engine.homes[0] in answer.text


@SIZES
def test_another_file_of_that_name_is_not_taken(engine: Serving, client: JvmClient, size: int) -> None:
    output = write_output(client, 1, some(1, size))
    other = Block(1, 1, 0, 1, bytes(16))
    answer = client.read([output.block(0, 1), other])
    assert (answer.status, answer.lost, answer.data) == (LOST, (1,), b"")
    assert bytes(16).hex() in answer.text
    assert client.read([output.block(0, 1)]).data == output.expected(0, 1)


def test_another_file_of_that_name_does_not_hide_the_right_one(tmp_path: Path) -> None:
    """An attempt that began before the engine died, say, and was left in another home."""
    (tmp_path / "b").mkdir()
    with serving(tmp_path, tmp_path / "b") as engine:
        client = engine.connect()
        stray, output = write_output(client, 2, some(2, 100)), write_output(client, 3, some(3, 100))
        wrong = PartitionedFile.named(engine.homes[0], SHUFFLE, 3, 3)
        os.rename(stray.file(engine.homes[0]).data_path, wrong.data_path)
        os.rename(stray.file(engine.homes[0]).index_path, wrong.index_path)
        assert os.path.exists(PartitionedFile.named(engine.homes[1], SHUFFLE, 3, 3).data_path)
        assert client.read([output.block(0, 4)]).data == output.expected(0, 4)


def test_one_that_comes_back_is_found(engine: Serving, client: JvmClient) -> None:
    output = write_output(client, 1, some(1, 100))
    path = output.file(engine.homes[0]).index_path
    os.rename(path, path + ".aside")
    assert client.read([output.block(0, 1)]).lost == (0,)
    os.rename(path + ".aside", path)
    assert client.read([output.block(0, 1)]).data == output.expected(0, 1)


@pytest.mark.parametrize("suffix", ["data", "index"])
def test_damage_anywhere_is_a_loss_or_does_not_matter_and_is_never_handed_out(
    engine: Serving, client: JvmClient, suffix: str
) -> None:
    """A changed byte in any place, before the map output is known."""
    sound, output = write_output(client, 0, some(0, 40)), write_output(client, 1, some(1, 40))
    file = output.file(engine.homes[0])
    path = file.data_path if suffix == "data" else file.index_path
    for offset in range(0, os.path.getsize(path), 7):
        with changed(path, offset, 0x10):
            answer = client.read([sound.block(0, 4), output.block(1, 3)])
        engine.engine.outputs.forget(output.done.file_id)
        if answer.status == DONE:  # in an extent that nobody asked for
            assert answer.data == sound.expected(0, 4) + output.expected(1, 3)
        else:
            assert (answer.status, answer.lost) == (LOST, (1,)), offset
            assert (sound.expected(0, 4) + output.expected(1, 3)).startswith(answer.data)
    assert client.read([output.block(0, 4)]).data == output.expected(0, 4)


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("size", [300 * KIB, 10 * MIB], ids=["neighbours", "parts"])
def test_damage_in_the_middle_of_an_answer_is_told_behind_sound_data(
    tmp_path: Path, codec: Codec, size: int
) -> None:
    with serving(tmp_path, codec=codec, write_memory=256 * MIB) as engine:
        client = engine.connect()
        outputs = [
            write_output(client, at, [[(s, random.Random(s).randbytes(size))] for s in range(2)], 2)
            for at in range(3)
        ]
        blocks = [each.block(0, 2) for each in outputs]
        everything = b"".join(each.expected(0, 2) for each in outputs)
        path = outputs[1].file(engine.homes[0]).data_path
        before = len(outputs[0].expected(0, 2))
        assert client.read(blocks).data == everything  # all of them are known now
        for at in (0.1, 0.5, 0.9):
            with changed(path, int(at * os.path.getsize(path)), 0x01):
                answer = client.read(blocks)
            assert (answer.status, answer.lost) == (LOST, (1,))
            assert before <= len(answer.data) < len(everything)
            assert everything.startswith(answer.data)
            assert path in answer.text
        assert client.read(blocks).data == everything


@pytest.mark.parametrize("kept", [0.0, 0.3, 0.99])
def test_a_map_output_that_is_cut_short_is_a_loss(engine: Serving, client: JvmClient, kept: float) -> None:
    outputs = outputs_of(client, 3, 300 * KIB)
    for known in (False, True):
        path = outputs[2].file(engine.homes[0]).data_path
        whole = Path(path).read_bytes()
        os.truncate(path, int(kept * len(whole)))
        answer = client.read([each.block(0, 4) for each in outputs])
        assert (answer.status, answer.lost) == (LOST, (2,)), known
        Path(path).write_bytes(whole)
        everything = b"".join(each.expected(0, 4) for each in outputs)
        assert client.read([each.block(0, 4) for each in outputs]).data == everything


@pytest.mark.parametrize("is_known", [False, True])
def test_all_that_are_cut_short_are_named_at_once(engine: Serving, client: JvmClient, is_known: bool) -> None:
    """A disk ran full, or a machine went down: Spark gives up if it hears of one at a time."""
    outputs = outputs_of(client, 6, 300 * KIB)
    if is_known:
        assert client.read([each.block(0, 4) for each in outputs]).status == DONE
    for each in outputs[1:]:
        os.truncate(each.file(engine.homes[0]).data_path, 500 * KIB)
    answer = client.read([each.block(0, 4) for each in outputs])
    assert (answer.status, answer.lost) == (LOST, (1, 2, 3, 4, 5))
    assert is_known or answer.data == b""


# What is kept


def test_data_files_stay_open_for_the_next_request_and_are_closed_with_the_shuffle(
    engine: Serving, client: JvmClient
) -> None:
    outputs = outputs_of(client, 5, 300 * KIB)
    for _ in range(3):
        client.read([each.block(0, 4) for each in outputs])
        assert len(open_files(engine.homes[0])) == 5
    with connected(engine.path) as other:
        other.read([outputs[0].block(0, 4)])
    assert len(open_files(engine.homes[0])) == 5
    client.remove()
    assert open_files(engine.homes[0]) == []
