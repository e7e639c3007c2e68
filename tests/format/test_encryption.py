"""Encrypted buffers are those of `docs/format.md`, opened here with HKDF and AES-GCM and nothing of the
package; they open nowhere but in their place; many at once are byte for byte those of one by one."""

from __future__ import annotations

import hashlib
import hmac
import struct
import sys

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from sortshuffle.errors import WorkerSetupError
from sortshuffle.format import encryption
from sortshuffle.format.buffer import (
    MAX_PAYLOAD_BYTES,
    DataType,
    SealedBuffer,
    encrypted_header,
    raw_bytes_of,
    raw_size,
    scan_buffer,
    seal,
    seal_compressed,
)
from sortshuffle.format.checksum import checksum_of_checksums
from sortshuffle.format.encryption import (
    BufferPlace,
    EncryptionKey,
    WrongTagError,
    decrypt_buffer,
    encrypt_buffer,
    encrypt_run,
    why_no_encryption,
)
from sortshuffle.format.extent_run import seal_run
from sortshuffle.format.header import DATA_MAGIC, Codec, FileHeader, PayloadKind
from sortshuffle.format.malformed import Malformed

SECRET = bytes(range(16))
FILE_ID = bytes(range(100, 116))
KEY = EncryptionKey(SECRET)
CIPHER = KEY.of_file(FILE_ID)
PLACE = BufferPlace(offset=56, region=2, subpartition=7)
places = st.builds(
    BufferPlace, st.integers(0, 2**50), st.integers(0, 2**31), st.none() | st.integers(0, 2**31)
)


def by_hand() -> tuple[bytes, bytes]:
    """The file's key and its check, by HKDF (RFC 5869) with SHA-256."""
    extracted = hmac.digest(FILE_ID, SECRET, hashlib.sha256)
    first = hmac.digest(extracted, b"sortshuffle data file 2\x01", hashlib.sha256)
    second = hmac.digest(extracted, first + b"sortshuffle data file 2\x02", hashlib.sha256)
    return first, second[:8]


def stored(buffer: SealedBuffer) -> bytes:
    data = bytes(buffer.header) + bytes(buffer.payload) + buffer.tail
    assert len(data) == buffer.bytes
    return data


def opened(data: bytes, place: BufferPlace = PLACE, key: EncryptionKey = KEY) -> tuple[bytes, bool]:
    """What a verified buffer holds, and whether that is compressed."""
    target = bytearray(len(data))
    found = scan_buffer(memoryview(data), 0).buffer
    plain = decrypt_buffer(memoryview(data), found, key.of_file(FILE_ID), place, memoryview(target))
    return bytes(target[plain.start : plain.start + plain.size]), plain.compressed


def test_a_file_has_a_key_and_a_check_of_its_own() -> None:
    key, check = by_hand()
    assert CIPHER.check == check
    assert CIPHER.encrypt(b"x", 5, b"y") == AESGCM(key).encrypt((5).to_bytes(12, "little"), b"x", b"y")
    assert KEY.of_file(bytes(16)).check != check


@given(st.binary(max_size=300), places, st.sampled_from(DataType))
def test_a_buffer_is_that_of_the_document(payload: bytes, place: BufferPlace, kind: DataType) -> None:
    buffer = encrypt_buffer(seal(payload, len(payload), records=3, data_type=kind), CIPHER, place)
    data = stored(buffer)
    flags = 2 if place.subpartition is not None else 6
    header = struct.pack("<BBHI", kind, flags, 0, len(payload) + 16)
    assert data[:8] == header
    subpartition = 2**32 - 1 if place.subpartition is None else place.subpartition
    bound = header + struct.pack("<II", place.region, subpartition)
    nonce = place.offset.to_bytes(12, "little")
    assert AESGCM(by_hand()[0]).decrypt(nonce, data[8 : 8 + len(payload) + 16], bound) == payload
    assert (buffer.raw_bytes, buffer.records) == (len(payload), 3)
    found = scan_buffer(memoryview(data), 0).buffer
    assert (found.encrypted, found.broadcast) == (True, place.subpartition is None)
    assert raw_bytes_of(memoryview(data), found) == len(payload)
    assert opened(data, place) == (payload, False)


def test_of_a_compressed_buffer_the_raw_size_can_be_read_and_not_changed() -> None:
    data = stored(encrypt_buffer(seal_compressed(b"block", 5, records=1, raw_bytes=700), CIPHER, PLACE))
    found = scan_buffer(memoryview(data), 0).buffer
    assert (raw_size(memoryview(data), found), raw_bytes_of(memoryview(data), found)) == (700, 700)
    assert opened(data) == (struct.pack("<Q", 700) + b"block", True)
    assert b"block" not in data


@pytest.mark.parametrize(
    "place",
    [BufferPlace(120, 2, 7), BufferPlace(56, 1, 7), BufferPlace(56, 2, 6), BufferPlace(56, 2, None)],
    ids=str,
)
def test_it_opens_in_its_place_alone(place: BufferPlace) -> None:
    data = stored(encrypt_buffer(seal(b"payload", 7, records=1), CIPHER, PLACE))
    with pytest.raises(WrongTagError):
        opened(data, place)
    assert opened(data) == (b"payload", False)


def test_it_opens_with_its_key_and_in_its_file_alone() -> None:
    data = stored(encrypt_buffer(seal(b"payload", 7, records=1), CIPHER, PLACE))
    with pytest.raises(WrongTagError):
        opened(data, key=EncryptionKey(bytes(16)))
    elsewhere = stored(encrypt_buffer(seal(b"payload", 7, records=1), KEY.of_file(bytes(16)), PLACE))
    with pytest.raises(WrongTagError):
        opened(elsewhere)


@given(st.lists(st.binary(max_size=200), min_size=1, max_size=40), st.integers(0, 2**40))
def test_a_run_is_what_its_extents_are_one_by_one(payloads: list[bytes], offset: int) -> None:
    numbers = np.arange(3, 3 + 2 * len(payloads), 2)
    sizes = np.array([len(each) for each in payloads], np.int64)
    plain = seal_run(b"".join(payloads), numbers, sizes, np.full(len(payloads), 7, np.int64))
    run = encrypt_run(plain, CIPHER, 4, offset)
    one_by_one = []
    position = offset
    for payload, subpartition in zip(payloads, numbers.tolist(), strict=True):
        place = BufferPlace(position, 4, subpartition)
        one_by_one.append(encrypt_buffer(seal(payload, len(payload), records=7), CIPHER, place))
        position += one_by_one[-1].bytes
    assert bytes(run.data) == b"".join(map(stored, one_by_one))
    assert run.bytes.tolist() == [each.bytes for each in one_by_one]
    assert run.raw_bytes.tolist() == sizes.tolist()
    assert run.checksums.tolist() == [checksum_of_checksums([each.checksum]) for each in one_by_one]
    assert (run.subpartitions.tolist(), run.records.tolist()) == (numbers.tolist(), [7] * len(payloads))


@pytest.mark.parametrize("size", [100, 101, 250])
def test_a_payload_too_large_for_one_call_is_the_same(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    payload = bytes(range(250))[:size]
    whole = CIPHER.encrypt(payload, 5, b"bound")
    monkeypatch.setattr(encryption, "_MOST_AT_ONCE", 99)
    monkeypatch.setattr(encryption, "_PIECE_BYTES", 50)
    assert CIPHER.encrypt(payload, 5, b"bound") == whole
    target = bytearray(size)
    CIPHER.decrypt(memoryview(whole), 5, b"bound", memoryview(target))
    assert target == payload
    changed = bytearray(whole)
    changed[60] ^= 1
    with pytest.raises(WrongTagError):
        CIPHER.decrypt(memoryview(changed), 5, b"bound", memoryview(target))


@pytest.mark.parametrize("flags", [4, 5, 8, 0xFF], ids=hex)
def test_flags_that_do_not_go_together_are_refused(flags: int) -> None:
    data = _with_flags(b"payload of some bytes", flags)
    with pytest.raises(Malformed, match="values this release does not know"):
        scan_buffer(memoryview(data), 0)


@pytest.mark.parametrize(("flags", "least"), [(2, 16), (3, 24), (6, 16), (7, 24)])
def test_an_encrypted_buffer_without_room_for_its_tag_is_refused(flags: int, least: int) -> None:
    with pytest.raises(Malformed, match="no room for its tag"):
        scan_buffer(memoryview(_with_flags(bytes(least - 1), flags)), 0)
    found = scan_buffer(memoryview(_with_flags(bytes(least), flags)), 0).buffer
    assert (found.size, found.encrypted) == (least, True)


def _with_flags(payload: bytes, flags: int) -> bytes:
    import xxhash

    body = struct.pack("<BBHI", 0, flags, 0, len(payload)) + payload
    body += bytes(-(len(body) + 8) % 64)
    return body + struct.pack("<Q", xxhash.xxh3_64_intdigest(body))


@pytest.mark.parametrize("size", [0, 15, 17, 33])
def test_a_key_has_the_size_of_an_aes_key(size: int) -> None:
    with pytest.raises(ValueError, match="16, 24 or 32 bytes"):
        EncryptionKey(bytes(size))


def test_a_key_does_not_show_itself() -> None:
    assert repr(SECRET) not in repr(KEY)
    assert "secret" not in repr(KEY)


def test_the_header_of_an_encrypted_file_is_version_2_with_cipher_and_check() -> None:
    header = FileHeader(FILE_ID, 5, 2, Codec.LZ4, PayloadKind.ARROW, b"checking")
    data = header.pack(DATA_MAGIC)
    assert data[8:10] == b"\2\0"
    assert data[14:16] == b"\1\0"
    assert data[40:48] == b"checking"
    assert FileHeader.unpack(data, DATA_MAGIC) == header
    plain = FileHeader(FILE_ID, 5, 2, Codec.LZ4, PayloadKind.ARROW)
    assert not plain.is_encrypted
    assert plain.pack(DATA_MAGIC)[8:10] == b"\1\0"


@pytest.mark.parametrize(
    ("version", "cipher", "check", "why"),
    [
        (1, 1, bytes(8), "reserved bytes"),
        (1, 0, b"checking", "reserved bytes"),
        (2, 0, b"checking", "the cipher is not known"),
        (2, 2, b"checking", "the cipher is not known"),
        (3, 1, b"checking", "the format version is not known"),
    ],
)
def test_a_header_of_another_cipher_is_refused(version: int, cipher: int, check: bytes, why: str) -> None:
    import xxhash

    fields = DATA_MAGIC + struct.pack("<HHBBH16sII8s", version, 56, 1, 1, cipher, FILE_ID, 5, 2, check)
    with pytest.raises(Malformed, match=why):
        FileHeader.unpack(fields + struct.pack("<Q", xxhash.xxh3_64_intdigest(fields)), DATA_MAGIC)


def test_a_release_that_fills_no_memory_gives_the_same() -> None:
    buffer = encrypt_buffer(seal(b"some rows", 9, records=1), CIPHER, PLACE)
    cipher = KEY.of_file(FILE_ID)
    cipher._fills = False  # as of releases that lack AESGCM.decrypt_into
    payload, bound = memoryview(bytes(buffer.payload)), PLACE.bound(buffer.header)
    target = bytearray(9)
    cipher.decrypt(payload, PLACE.offset, bound, memoryview(target))
    assert target == b"some rows"
    with pytest.raises(WrongTagError):
        cipher.decrypt(payload, PLACE.offset + 64, bound, memoryview(target))


@pytest.mark.parametrize("module", ["primitives.kdf.hkdf", "primitives.ciphers.aead"])
def test_a_python_without_the_package_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    assert why_no_encryption() == ""
    monkeypatch.setitem(sys.modules, f"cryptography.hazmat.{module}", None)
    assert "lacks the package cryptography" in why_no_encryption()
    assert why_no_encryption().endswith("pip install 'cryptography>=41'")
    with pytest.raises(WorkerSetupError, match="lacks the package cryptography"):
        KEY.of_file(FILE_ID)


def test_a_package_that_is_too_old_is_as_good_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Releases before 3.1 ask HKDF for one argument more."""

    def older(algorithm: object, length: int, salt: bytes, info: bytes, backend: object) -> None:
        raise AssertionError("it is given four arguments")

    monkeypatch.setattr(sys.modules["cryptography.hazmat.primitives.kdf.hkdf"], "HKDF", older)
    assert "or has one that does not work" in why_no_encryption()


def test_the_largest_payload_has_room_for_its_tag() -> None:
    header = seal(b"", MAX_PAYLOAD_BYTES, records=1).header
    assert encrypted_header(header, False)[4:] == b"\xff" * 4
    with pytest.raises(ValueError, match="a buffer holds at most 4294967279 bytes"):
        seal(b"", MAX_PAYLOAD_BYTES + 1, records=1)
