"""An engine whose JVMs give a key: what it writes is encrypted, small and large, and what it reads is right.
The key is one for the application. Files of another key are no lost map outputs."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jvm_client import BAD_REQUEST, FAILED, SHUFFLE, Block, Record, Serving, connected, expected, serving

from sortshuffle.format.header import Codec
from sortshuffle.options import MIB
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.files.reader import read_index

KEY = bytes(range(16))
OTHER_KEY = bytes(range(32))
MARKER = b"known marker "
CODECS = pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])


def few(subpartitions: int) -> list[list[Record]]:
    return [[(at, MARKER + b"%d" % at) for at in range(0, subpartitions, 2)]]


def large(subpartitions: int) -> list[list[Record]]:
    """Extents that are read in parts, and small ones between them; in several regions with little memory."""
    chosen = random.Random(7)
    records = [(at % subpartitions, MARKER + chosen.randbytes(MIB)) for at in range(0, 3 * subpartitions, 3)]
    return [[each, (1, MARKER)] for each in records * 3]


SHAPES: dict[str, tuple[list[list[Record]], int]] = {
    "few": (few(4), 4),
    "many subpartitions": (few(1000), 1000),
    "one record": ([[(2, MARKER)]], 4),
    "none": ([], 4),
    "large": (large(9), 9),
}


def block(file_id: bytes, first: int, end: int) -> Block:
    return Block(7, 0, first, end, file_id)


def contents(served: Serving) -> bytes:
    return b"".join(path.read_bytes() for home in served.homes for path in Path(home).glob("exchange-*"))


def all_of(frames: Sequence[Sequence[Record]], subpartitions: int) -> list[bytes]:
    return [expected(frames, at) for at in range(subpartitions)]


@CODECS
@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_written_with_a_key_is_encrypted_and_read_with_it(
    tmp_path: Path, shape: str, codec: Codec
) -> None:
    frames, subpartitions = SHAPES[shape]
    with serving(tmp_path, codec=codec, write_memory=16 * MIB) as served:
        client = served.connect(KEY)
        written = client.write(frames, subpartitions=subpartitions)
        blocks = [block(written.file_id, at, at + 1) for at in range(subpartitions)]
        wanted = b"".join(all_of(frames, subpartitions))
        assert client.read(blocks).data == wanted
        index = read_index(PartitionedFile.named(served.homes[0], SHUFFLE, 0, 7))
        assert index.header.is_encrypted
        assert MARKER not in contents(served)
    with serving(tmp_path) as again:  # which keeps nothing of what was written
        client = again.connect(KEY)
        for _ in range(2):
            assert client.read(blocks).data == wanted
        if len(frames) == 1:
            assert client.read([block(written.file_id, 0, subpartitions)]).data == wanted


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=30)
@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 39), st.binary(max_size=900)), min_size=1, max_size=60), max_size=3
    )
)
def test_any_records_come_back(engine: Serving, frames: list[list[Record]]) -> None:
    client = engine.connect(KEY)
    written = client.write(frames, subpartitions=40)
    engine.engine.outputs.forget(written.file_id)
    blocks = [block(written.file_id, at, at + 1) for at in range(40)]
    assert client.read(blocks).data == b"".join(all_of(frames, 40))
    client.remove()


@pytest.mark.parametrize("shape", ["few", "many subpartitions", "large"])
@pytest.mark.parametrize(("key", "why"), [(b"", "there is no key"), (OTHER_KEY, "with another key")])
def test_without_the_key_the_task_fails_and_no_map_output_counts_as_lost(
    tmp_path: Path, shape: str, key: bytes, why: str
) -> None:
    frames, subpartitions = SHAPES[shape]
    with serving(tmp_path) as served:
        written = served.connect(KEY).write(frames, subpartitions=subpartitions)
    with serving(tmp_path) as again:
        answer = again.connect(key).read([block(written.file_id, 0, subpartitions)])
        assert (answer.status, answer.data, answer.lost) == (FAILED, b"", ())
        assert why in answer.text


@pytest.mark.parametrize("shape", ["few", "many subpartitions", "large"])
def test_a_plain_map_output_is_refused_where_there_is_a_key(tmp_path: Path, shape: str) -> None:
    frames, subpartitions = SHAPES[shape]
    with serving(tmp_path) as served:
        written = served.connect().write(frames, subpartitions=subpartitions)
    with serving(tmp_path) as again:
        answer = again.connect(KEY).read([block(written.file_id, 0, subpartitions)])
        assert (answer.status, answer.data) == (FAILED, b"")
        assert "is not encrypted, as all of this application's is" in answer.text


def test_jvms_of_one_application_have_one_key(engine: Serving) -> None:
    first = engine.connect(KEY)
    second = engine.connect(KEY)
    written = first.write([[(0, MARKER)]])
    assert second.read([block(written.file_id, 0, 1)]).data == MARKER
    refused = connected(engine.path, OTHER_KEY)
    assert refused.port == 0  # before it counts as greeted
    assert refused.reply() == (BAD_REQUEST, b"a JVM has given another key than the one before it")
    assert refused.is_closed()
    assert first.read([block(written.file_id, 0, 1)]).data == MARKER


def test_one_that_gives_no_key_leaves_that_of_the_others(engine: Serving) -> None:
    """The launcher, and a JVM whose application ends."""
    engine.connect(KEY)
    written = engine.connect().write([[(0, MARKER)]])
    assert read_index(PartitionedFile.named(engine.homes[0], SHUFFLE, 0, 7)).header.is_encrypted
    assert len(written.sizes) == 4


def test_an_engine_that_cannot_encrypt_says_so_in_its_greeting(
    engine: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.kdf.hkdf", None)
    refused = engine.connect(KEY)
    assert refused.port == 0
    status, text = refused.reply()
    assert status == FAILED
    assert b"this Python lacks the package cryptography" in text
    assert text.endswith(b"pip install 'cryptography>=41'")
    assert refused.is_closed()
    monkeypatch.undo()
    assert engine.connect(KEY).port != 0


@pytest.mark.parametrize("key", [b"", bytes(15), bytes(33), bytes(1000)], ids=len)
def test_what_is_no_key_ends_the_connection(engine: Serving, key: bytes) -> None:
    client = engine.connect(key)
    if len(key) == 15:
        assert client.port == 0
        assert client.reply()[0] == BAD_REQUEST
    if key:
        assert client.is_closed()
    assert engine.connect(KEY).write([[(0, MARKER)]]).sizes[0] > 0
