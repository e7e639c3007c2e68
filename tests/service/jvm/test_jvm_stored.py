"""The engine where map outputs lie at a URL: any engine reads what any other has written; lost ones are named
together; they go with their shuffle, or with the application. In a real S3-compatible store, a mounted
directory, and fsspec's own memory."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from jvm_client import (
    APPLICATION,
    DONE,
    LOST,
    SHUFFLE,
    TOKEN,
    JvmClient,
    Output,
    frames,
    serving,
    write_output,
)
from map_outputs import write_map
from stores import Store, s3_fixture, store_fixture  # noqa: F401

from sortshuffle.errors import DataLossError
from sortshuffle.format.header import Codec, FileHeader, PayloadKind
from sortshuffle.options import KIB, MIB
from sortshuffle.reading.stored_channel import StoredInputChannel
from sortshuffle.service.jvm import stored
from sortshuffle.service.jvm.engine import SharedHomes
from sortshuffle.service.jvm.lost_blocks import LostBlocksError
from sortshuffle.service.jvm.outputs import MapOutputCache, MapOutputs
from sortshuffle.service.jvm.protocol import EVERYTHING, ReadRequest
from sortshuffle.service.jvm.protocol import Block as AskedBlock
from sortshuffle.service.jvm.stored import StoredBlocks, StoredSettings
from sortshuffle.storage.files import urls
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.files.urls import is_url
from sortshuffle.storage.stored.stored_cleaning import sizes_of_exchange

NOWHERE = "sortshuffle.invalid:1"  # the location that Spark knows, which no engine is asked at
SUBPARTITIONS = 6
FAILED = 3  # the status of a request that failed for no fault of a map output


def home(store: Store) -> str:
    return f"{store.root}/{APPLICATION}-{TOKEN}"


def write(client: JvmClient, map_id: int, size: int = 100) -> Output:
    """Two records of about this size for each subpartition but the last."""
    chosen = random.Random(map_id)
    everywhere = [*range(SUBPARTITIONS - 1)] * 2
    frames = [[(at, b"%d " % map_id + chosen.randbytes(size + chosen.randrange(9))) for at in everywhere]]
    return write_output(client, map_id, frames, SUBPARTITIONS)


@contextmanager
def connected(store: Store, key: bytes = b"", **changed: object) -> Iterator[JvmClient]:
    """To an engine of the application, which knows nothing yet of what others have written."""
    with serving(store.root, **changed) as served:
        yield served.connect(key)
        assert not any(map(is_url, served.files())), "nothing is written to a directory of that name"


@pytest.fixture(name="outputs")
def outputs_fixture(store: Store) -> list[Output]:
    """Of an engine that has ended. The first and the last are small."""
    with connected(store) as client:
        return [write(client, map_id, size) for map_id, size in enumerate((100, 300 * KIB, 300 * KIB, 100))]


def test_another_engine_reads_what_an_engine_has_written(store: Store, outputs: list[Output]) -> None:
    names = [
        f"{APPLICATION}-{TOKEN}/exchange-{SHUFFLE}-map-{at}-attempt-{at}.{kind}"
        for at in range(4)
        for kind in ("data", "index")
    ]
    assert store.names() == names
    wanted = [(outputs[2], 0, 3), (outputs[1], 1, 6), (outputs[0], 2, 3), (outputs[3], 5, 6)]
    with connected(store) as client:
        for _ in range(2):  # the second time the indexes are known
            answer = client.read([each.block(first, end) for each, first, end in wanted], [NOWHERE])
            assert answer.data == b"".join(each.expected(first, end) for each, first, end in wanted)
            assert answer.status == DONE
            local_bytes, local_blocks, remote_bytes, remote_blocks = answer.totals
            assert (local_bytes, local_blocks, remote_blocks) == (0, 0, len(wanted))
            assert remote_bytes == sum(sum(each.done.sizes[first:end]) for each, first, end in wanted)


def test_encrypted_map_outputs_are_read_with_the_key(store: Store) -> None:
    key = bytes(range(32))
    with connected(store, key, codec=Codec.NONE) as client:
        outputs = [write(client, map_id, size) for map_id, size in enumerate((100, 300 * KIB))]
    for output in outputs:
        assert output.expected(0, 1)[:60] not in store.get(output.file(home(store)).data_path)
    with connected(store, key) as client:
        for output in outputs:
            assert client.read([output.block(1, 4)], [NOWHERE]).data == output.expected(1, 4)
    with connected(store) as client:
        for output in outputs:
            answer = client.read([output.block(1, 4)], [NOWHERE])
            assert (answer.status, answer.data) == (FAILED, b"")
            assert "the data is encrypted, and there is no key" in answer.text


def test_a_map_output_of_many_regions_and_parts_is_read_in_order(store: Store) -> None:
    chosen = random.Random(5)
    frames = [[(at % 3, chosen.randbytes(MIB)) for at in range(3)] for _ in range(12)]
    with connected(store, write_memory=16 * MIB) as client:
        output = write_output(client, 0, frames, SUBPARTITIONS)
        assert output.done.spills > 1
        answer = client.read([output.block(1, 2), output.block(0, 1)])
        assert answer.data == output.expected(1, 2) + output.expected(0, 1)
        # of several subpartitions at once they come by region, as they lie in the file
        together = client.read([output.block(0, 3)])
        assert (together.status, sorted(_records(together.data))) == (
            DONE,
            sorted(_records(output.expected())),
        )


def test_a_region_is_as_large_as_the_memory(store: Store) -> None:
    """Each part of one that a task reads is a request."""
    frames = [[(at % SUBPARTITIONS, b"%d" % at + bytes(MIB))] for at in range(48)]
    with connected(store, write_memory=256 * MIB) as client:
        assert client.write(frames, 0, SUBPARTITIONS).spills == 0


def _records(data: bytes) -> list[bytes]:
    return [data[at : at + MIB] for at in range(0, len(data), MIB)]


def data_gone(store: Store, file: PartitionedFile) -> None:
    store.remove(file.data_path)


def index_gone(store: Store, file: PartitionedFile) -> None:
    store.remove(file.index_path)


def cut_short(store: Store, file: PartitionedFile) -> None:
    store.put(file.data_path, store.get(file.data_path)[:-64])


def flipped(store: Store, file: PartitionedFile) -> None:
    data = bytearray(store.get(file.data_path))
    data[len(data) // 2] ^= 4
    store.put(file.data_path, bytes(data))


def index_flipped(store: Store, file: PartitionedFile) -> None:
    data = bytearray(store.get(file.index_path))
    data[len(data) // 2] ^= 4
    store.put(file.index_path, bytes(data))


def another(store: Store, file: PartitionedFile) -> None:
    """A map output of the same name, of another engine."""
    other = PartitionedFile.named(home(store), SHUFFLE, 1, 1)
    for path, source in ((file.data_path, other.data_path), (file.index_path, other.index_path)):
        store.put(path, store.get(source))


WAYS = [data_gone, index_gone, cut_short, flipped, index_flipped, another]


@pytest.mark.parametrize("lose", WAYS)
@pytest.mark.parametrize("known", [False, True])
def test_a_lost_map_output_is_named_alone(
    store: Store, outputs: list[Output], lose: Callable[[Store, PartitionedFile], None], known: bool
) -> None:
    blocks = [output.block() for output in outputs]
    with connected(store) as client:
        if known:
            assert client.read(blocks).status == DONE
        lose(store, outputs[2].file(home(store)))
        answer = client.read(blocks)
        if known and lose in (index_gone, index_flipped):  # what is known of the index still holds
            assert (answer.status, answer.data) == (DONE, b"".join(each.expected() for each in outputs))
            return
        assert (answer.status, answer.lost) == (LOST, (2,))
        assert f"exchange-{SHUFFLE}-map-2-attempt-2" in answer.text
        again = write(client, 9)  # by the same connection, as the task that runs again
        blocks[2] = again.block()
        answer = client.read(blocks)
        assert answer.data == b"".join(each.expected() for each in (*outputs[:2], again, outputs[3]))


def test_all_that_are_lost_are_named_together(store: Store, outputs: list[Output]) -> None:
    blocks = [output.block() for output in outputs]
    with connected(store) as client:
        assert client.read(blocks).status == DONE
        for at, lose in ((1, data_gone), (2, cut_short), (3, data_gone)):
            lose(store, outputs[at].file(home(store)))
        answer = client.read(blocks)
        assert (answer.status, answer.lost) == (LOST, (1, 2, 3))
    with connected(store) as client:  # which finds out by the index of one of them
        store.remove(outputs[0].file(home(store)).index_path)
        answer = client.read(blocks)
        assert (answer.status, answer.lost) == (LOST, (0, 1, 2, 3))


def test_a_small_map_output_is_read_once(store: Store) -> None:
    """All of it, with its index. So a thousand tasks that read some bytes of it make no requests."""
    with connected(store) as client:
        output = write(client, 0)
        assert client.read([output.block(1, 2)]).data == output.expected(1, 2)
        store.remove(output.file(home(store)).data_path)
        store.remove(output.file(home(store)).index_path)
        for first in range(SUBPARTITIONS):
            answer = client.read([output.block(first, first + 1)])
            assert (answer.status, answer.data) == (DONE, output.expected(first, first + 1))


def test_of_a_lost_directory_all_are_lost(store: Store, outputs: list[Output]) -> None:
    blocks = [output.block() for output in outputs]
    with connected(store) as client:
        for output in outputs:
            store.remove(output.file(home(store)).data_path)
            store.remove(output.file(home(store)).index_path)
        answer = client.read(blocks)
        assert (answer.status, answer.lost) == (LOST, (0, 1, 2, 3))


def test_a_store_that_cannot_be_read_loses_nothing() -> None:
    """Nothing listens there: the error says nothing of a map output, so no producer runs again."""
    request = ReadRequest(SHUFFLE, (NOWHERE,), (AskedBlock(1, 1, 0, 1, 0, bytes(16)),))
    settings = StoredSettings.at("http://127.0.0.1:9/shuffles", MapOutputCache())
    blocks = StoredBlocks(request, list(enumerate(request.blocks)), settings)
    with pytest.raises(OSError, match=r"reading an index failed") as failed:
        blocks.locate()
    assert not isinstance(failed.value, LostBlocksError)


@pytest.fixture(name="mounted")
def mounted_fixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setattr(urls, "FIRST_WAIT", 0.0)
    return Store(f"file://{tmp_path}/mounted")


@contextmanager
def failing(path: str) -> Iterator[None]:
    """A file whose server is away: it cannot be opened, and it is not said to be gone."""
    os.rename(path, f"{path}.aside")
    os.symlink(path, path)
    try:
        yield
    finally:
        os.rename(f"{path}.aside", path)


def test_a_mounted_directory_that_fails_for_a_moment_loses_nothing(mounted: Store) -> None:
    with connected(mounted) as client:
        outputs = [write(client, map_id, 300 * KIB) for map_id in range(2)]
        blocks = [output.block() for output in outputs]
        file = PartitionedFile(outputs[1].file(home(mounted)).base.removeprefix("file://"))
        for path in (file.index_path, file.data_path):
            with failing(path):
                answer = client.read(blocks)
                assert (answer.status, answer.lost) == (FAILED, ())
                assert "reading a map output failed: Too many levels of symbolic links" in answer.text
        assert client.read(blocks).data == b"".join(output.expected() for output in outputs)


def test_an_error_of_one_file_hides_no_loss_of_others(mounted: Store) -> None:
    """Spark runs the map tasks of the lost ones again. If nothing is lost, the error is the answer."""
    with connected(mounted) as client:
        outputs = [write(client, map_id, 300 * KIB) for map_id in range(4)]
    files = [PartitionedFile(each.file(home(mounted)).base.removeprefix("file://")) for each in outputs]
    blocks = [output.block() for output in outputs]
    os.unlink(files[2].index_path)
    with failing(files[0].index_path), connected(mounted) as client:
        answer = client.read(blocks)
        assert (answer.status, answer.lost) == (LOST, (2,))
        assert files[2].index_path in answer.text
        answer = client.read([blocks[0], blocks[1], blocks[3]])
        assert (answer.status, answer.lost) == (FAILED, ())
        assert "Too many levels of symbolic links" in answer.text


def asked_blocks(store: Store, outputs: Sequence[Output]) -> StoredBlocks:
    """All of them, for an engine that knows nothing yet."""
    request = ReadRequest(SHUFFLE, (NOWHERE,), tuple(each.block().received() for each in outputs))
    settings = StoredSettings.at(home(store), MapOutputCache())
    return StoredBlocks(request, list(enumerate(request.blocks)), settings)


@contextmanager
def before_the_list(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], object]) -> Iterator[None]:
    """Something happens right before a shuffle is listed."""

    def list_sizes(directory: str, exchange: int) -> dict[str, int]:
        happens()
        return sizes_of_exchange(directory, exchange)

    with monkeypatch.context() as patch:
        patch.setattr(stored, "sizes_of_exchange", list_sizes)
        yield


@pytest.mark.parametrize(("what", "size"), [("index", 300 * KIB), ("data", 100)])
def test_what_was_not_there_for_a_moment_is_not_lost(
    mounted: Store, monkeypatch: pytest.MonkeyPatch, what: str, size: int
) -> None:
    """When all map outputs are looked for, which is before any data is sent."""
    with connected(mounted) as client:
        outputs = [write(client, map_id, size) for map_id in range(3)]
    path = f"{outputs[1].file(home(mounted)).base.removeprefix('file://')}.{what}"
    blocks = asked_blocks(mounted, outputs)
    os.rename(path, f"{path}.aside")
    with before_the_list(monkeypatch, lambda: os.rename(f"{path}.aside", path)):
        blocks.locate()
    assert b"".join(map(bytes, blocks.pieces())) == b"".join(each.expected() for each in outputs)


def test_of_what_was_not_there_only_what_stays_away_is_lost(
    mounted: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connected(mounted) as client:
        outputs = [write(client, map_id, 300 * KIB) for map_id in range(4)]
    first, second = (f"{outputs[at].file(home(mounted)).base.removeprefix('file://')}.index" for at in (1, 2))
    for path in (first, second):
        os.rename(path, f"{path}.aside")
    with (
        before_the_list(monkeypatch, lambda: os.rename(f"{first}.aside", first)),
        pytest.raises(LostBlocksError) as lost,
    ):
        asked_blocks(mounted, outputs).locate()
    assert lost.value.blocks == (2,)
    assert second in str(lost.value)


def test_a_list_that_shows_what_is_gone_hides_no_loss(
    store: Store, outputs: list[Output], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store may show an object for a while that is deleted."""
    old = sizes_of_exchange(home(store), SHUFFLE)
    store.remove(outputs[1].file(home(store)).data_path)
    store.remove(outputs[2].file(home(store)).index_path)
    monkeypatch.setattr(stored, "sizes_of_exchange", lambda directory, exchange: old)
    with pytest.raises(LostBlocksError) as lost:
        asked_blocks(store, outputs).locate()
    assert lost.value.blocks == (2,)
    blocks = asked_blocks(store, [outputs[0], outputs[1]])
    blocks.locate()
    with pytest.raises(LostBlocksError) as lost:
        list(blocks.pieces())
    assert lost.value.blocks == (1,)


def test_a_list_that_does_not_show_what_is_there_loses_nothing(
    store: Store, outputs: list[Output], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mount may give an old list, of a time before another host wrote."""
    names = [os.path.basename(each.file(home(store)).data_path) for each in outputs]
    old = sizes_of_exchange(home(store), SHUFFLE)
    del old[names[0]], old[names[2]]
    old[names[1]] -= 64
    store.remove(outputs[2].file(home(store)).data_path)
    store.remove(outputs[3].file(home(store)).index_path)
    monkeypatch.setattr(stored, "sizes_of_exchange", lambda directory, exchange: old)
    with pytest.raises(LostBlocksError) as lost:
        asked_blocks(store, outputs).locate()
    assert lost.value.blocks == (2, 3)
    assert all(f"map-{at}-attempt-{at}" in str(lost.value) for at in (2, 3))


def test_what_cannot_be_looked_at_is_not_lost_because_the_list_does_not_show_it(
    mounted: Store, caplog: pytest.LogCaptureFixture
) -> None:
    with connected(mounted) as client:
        outputs = [write(client, map_id, 300 * KIB) for map_id in range(3)]
    files = [PartitionedFile(each.file(home(mounted)).base.removeprefix("file://")) for each in outputs]
    os.unlink(files[2].index_path)
    with failing(files[1].data_path), pytest.raises(LostBlocksError) as lost:
        asked_blocks(mounted, outputs).locate()
    assert lost.value.blocks == (2,)
    assert f"what else is lost of shuffle {SHUFFLE} cannot be told" in caplog.text


def test_where_the_home_goes_after_it_was_listed_nothing_is_lost(
    mounted: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each data file that the list does not show is looked for, and none is there then."""
    with connected(mounted) as client:
        outputs = [write(client, map_id, 300 * KIB) for map_id in range(3)]
    mounted.remove(outputs[1].file(home(mounted)).index_path)
    os.unlink(outputs[2].file(home(mounted)).data_path.removeprefix("file://"))
    expect_data = StoredInputChannel.expect_data

    def go_away(channel: StoredInputChannel, size: int) -> None:
        (tmp_path / "mounted").rename(tmp_path / "away")
        expect_data(channel, size)

    monkeypatch.setattr(StoredInputChannel, "expect_data", go_away)
    with pytest.raises(OSError, match="the driver has made this directory"):
        asked_blocks(mounted, outputs).locate()


@pytest.mark.parametrize("lose", [data_gone, index_gone, index_flipped, flipped])
def test_the_answers_of_a_look_hold_no_frames(
    store: Store, outputs: list[Output], lose: Callable[[Store, PartitionedFile], None]
) -> None:
    """One error may be the answer for several requests, which keep it."""
    lose(store, outputs[0].file(home(store)))
    blocks = asked_blocks(store, outputs)
    answer = blocks._look_up(blocks._blocks)[0]
    assert isinstance(answer, DataLossError)
    assert frames(answer) == []


def test_a_look_finds_what_is_lost_of_known_map_outputs(store: Store, outputs: list[Output]) -> None:
    blocks = asked_blocks(store, outputs)
    blocks.locate()
    store.remove(outputs[1].file(home(store)).index_path)
    blocks.locate()
    blocks.forget()
    with pytest.raises(LostBlocksError) as lost:
        blocks.locate()
    assert lost.value.blocks == (1,)


def test_where_the_home_goes_while_it_is_listed_nothing_is_lost(
    mounted: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A directory that is not there looks as an empty one."""
    with connected(mounted) as client:
        outputs = [write(client, map_id, 300 * KIB) for map_id in range(2)]
    mounted.remove(outputs[1].file(home(mounted)).index_path)
    blocks = asked_blocks(mounted, outputs)
    with (
        before_the_list(monkeypatch, lambda: (tmp_path / "mounted").rename(tmp_path / "away")),
        pytest.raises(OSError, match="the driver has made this directory"),
    ):
        blocks.locate()
    (tmp_path / "away").rename(tmp_path / "mounted")
    with pytest.raises(LostBlocksError) as lost:
        asked_blocks(mounted, outputs).locate()
    assert lost.value.blocks == (1,)


def test_a_home_that_is_gone_is_not_made_by_who_writes(mounted: Store, tmp_path: Path) -> None:
    """The application has ended, or the mount has: what was written there nobody would find or remove."""
    header = FileHeader(bytes(16), 2, 0, Codec.NONE, PayloadKind.RECORD_BYTES)
    outputs = MapOutputs(lambda: (home(mounted),))
    with pytest.raises(FileNotFoundError):
        outputs.new(SHUFFLE, 0, 1, header)
    assert list(tmp_path.iterdir()) == []


def test_a_host_that_has_not_mounted_the_directory_writes_nothing_and_loses_nothing(
    mounted: Store, tmp_path: Path
) -> None:
    with connected(mounted) as client:
        outputs = [write(client, map_id, 300 * KIB) for map_id in range(2)]
    (tmp_path / "mounted").rename(tmp_path / "elsewhere")
    with serving(f"file://{tmp_path}/elsewhere") as served:
        served.engine._homes_now = lambda: SharedHomes((home(mounted),), TOKEN)
        client = served.connect()
        answer = client.read([output.block() for output in outputs])
        assert (answer.status, answer.lost) == (FAILED, ())
        client.begin()
        status, text = client.refusal()
        assert (status, answer.text) == (FAILED, text)
        assert "the driver has made this directory" in text
    assert [path.name for path in tmp_path.iterdir()] == ["elsewhere"]


def test_what_an_engine_has_written_it_does_not_read_back(store: Store) -> None:
    with connected(store) as client:
        output = write(client, 0)
        for path in (output.file(home(store)).data_path, output.file(home(store)).index_path):
            store.remove(path)
        answer = client.read([output.block()])
        assert (answer.status, answer.data) == (DONE, output.expected())
        assert answer.totals[2:] == (sum(output.done.sizes), 1)


def test_of_what_it_has_written_it_tells_what_is_lost(store: Store) -> None:
    """Together with others. So the size of a small one's data object is known, too."""
    with connected(store) as client:
        outputs = [write(client, map_id, size) for map_id, size in enumerate((100, 100, 300 * KIB))]
        for output in outputs[1:]:
            store.remove(output.file(home(store)).data_path)
        answer = client.read([output.block() for output in outputs])
        assert (answer.status, answer.lost) == (LOST, (1, 2))


def test_registrations_that_somebody_deletes_lose_nothing(store: Store) -> None:
    """They lie below the temporary directory, which is tidied on some systems."""
    with serving(store.root) as served:
        client = served.connect()
        output = write(client, 0, 300 * KIB)
        served.engine._homes_now = lambda: SharedHomes(())
        answer = client.read([output.block()], [NOWHERE])
        assert (answer.status, answer.data) == (DONE, output.expected())


def test_what_is_known_of_a_removed_shuffle_is_forgotten(store: Store, outputs: list[Output]) -> None:
    ids = [each.done.file_id for each in outputs]
    with serving(store.root) as served:
        client, known = served.connect(), served.engine._stored.known
        client.read([each.block() for each in outputs])
        assert list(known.get_all(ids)) == ids
        client.remove(SHUFFLE)
        assert known.get_all(ids) == {}


def test_a_shuffle_is_removed_alone(store: Store) -> None:
    """Frames of the application have an exchange of the same number, in a directory of their own."""
    schema = pa.schema([("number", pa.int64())])
    of_frames = write_map(
        f"{store.root}/{APPLICATION}", schema, [{0: [pa.record_batch([[1]], schema=schema)]}]
    )
    with connected(store) as client:
        for shuffle in (1, 2, 10):
            client.write([[(0, b"x")]], 8, shuffle=shuffle)
        before = store.names()
        assert any(name.startswith(f"{APPLICATION}/exchange-1-") for name in before)
        assert client.remove(1) == (DONE, b"")
        assert client.remove(1) == (DONE, b"")
    gone = f"{APPLICATION}-{TOKEN}/exchange-1-map-0-attempt-8"
    assert set(before) - set(store.names()) == {f"{gone}.data", f"{gone}.index"}
    assert store.get(of_frames.file.data_path)


@pytest.mark.parametrize("keep", [False, True])
def test_at_the_end_of_the_application_all_goes_unless_it_is_kept(
    store: Store, outputs: list[Output], keep: bool
) -> None:
    store.put(f"{home(store)}/exchange-{SHUFFLE}-map-9-attempt-9.data.partial", b"unfinished")
    store.put(f"{store.root}/{APPLICATION}/other", b"another's")
    before = store.names()
    with connected(store, keep=keep) as client:
        assert client.remove(EVERYTHING) == (DONE, b"")
    assert store.names() == (before if keep else [f"{APPLICATION}/other"])


def test_a_map_output_that_is_not_finished_leaves_nothing(store: Store) -> None:
    with connected(store) as client:
        client.begin(7)
        client.frame([(0, bytes(12 * MIB))])  # more than a part of an upload
        client.frame([(1, b"x")])
    assert store.names() == []
    assert store.uploads() == []


def test_what_cannot_be_written_is_not_written_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    with serving(f"file://{tmp_path}/file/below") as served:
        client = served.connect()
        client.begin(7)
        client.refuses(FAILED, f"{tmp_path}/file")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
