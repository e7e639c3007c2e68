"""Encryption of the payloads in a data file (`docs/format.md`, "Encryption").

    EncryptionKey   an application's; from it comes a key for each file
    FileCipher      of one file: encrypts and decrypts payloads, AES-256-GCM

A payload is encrypted when its place in the file is known, after compression and before the checksum. So
checksums are of what is stored, and whoever moves, verifies or removes files needs no key.

Invariant: no two payloads are encrypted with one key and one nonce. Each file has a key of its own, made from
the file's random id. The nonce is the buffer's offset in the file; a writer only appends, and one whose write
failed writes nothing more.

What is bound to a payload, so that it opens nowhere else: its file (by the key), its offset (by the nonce),
its header, its region and its subpartition (as associated data).

The `cryptography` package is imported by what needs it, so that all else runs without it. Whether a Python
has one that does is asked of `why_no_encryption`, everywhere.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sortshuffle.errors import WorkerSetupError
from sortshuffle.format.buffer import (
    BUFFER_HEADER_BYTES,
    ENCRYPTED_DATA,
    RAW_SIZE_BYTES,
    TAG_BYTES,
    SealedBuffer,
    StoredBuffer,
    marked_encrypted,
    sealed_around,
)
from sortshuffle.format.checksum import BytesLike
from sortshuffle.format.extent_run import ExtentRun, Int64s, checksummed, laid_out
from sortshuffle.format.header import CHECK_BYTES, ID_BYTES

KEY_SIZES = (16, 24, 32)
"""Bytes that an application's key may have: those of Spark's ``spark.io.encryption.keySizeBits``."""

PACKAGE = "cryptography"
REMEDY = "pip install 'sortshuffle[encryption]'"

_FILE_KEY_BYTES = 32
_INFO = b"sortshuffle data file 2"
_NONCE_BYTES = 12
_PLACE = struct.Struct("<II")
_OF_ALL = 2**32 - 1  # stands for the subpartition in a broadcast region
# One call of AESGCM takes less than 2 GiB. A larger payload goes through the same cipher in pieces
_MOST_AT_ONCE = 2**31 - 1 - TAG_BYTES
_PIECE_BYTES = 2**26


class WrongTagError(Exception):
    """A payload does not open: the key is another one, or bytes were changed on purpose. Internal: the
    storage layer turns it into a `DecryptionError` with the place."""


@dataclass(frozen=True, slots=True)
class EncryptionKey:
    """An application's key. ``secret``: 16, 24 or 32 random bytes."""

    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.secret) not in KEY_SIZES:
            raise ValueError(f"a key has 16, 24 or 32 bytes, not {len(self.secret)}")

    def of_file(self, file_id: bytes) -> FileCipher:
        """The cipher of the file with this id: 15 us. Raises `WorkerSetupError` without `cryptography`."""
        try:
            from cryptography.hazmat.primitives.hashes import SHA256
            from cryptography.hazmat.primitives.kdf.hkdf import HKDF

            derived = HKDF(SHA256(), _FILE_KEY_BYTES + CHECK_BYTES, file_id, _INFO).derive(self.secret)
            return FileCipher(derived[:_FILE_KEY_BYTES], derived[_FILE_KEY_BYTES:])
        except ImportError as error:
            raise WorkerSetupError(_without(error)) from error


def why_no_encryption() -> str:
    """Why this Python cannot encrypt, and the remedy; empty where it can. It tries: a package may be there
    and not load, or be too old."""
    try:
        EncryptionKey(bytes(_FILE_KEY_BYTES)).of_file(bytes(ID_BYTES)).encrypt(b"", 0, b"")
    except WorkerSetupError as error:
        return str(error)
    except Exception as error:  # whatever a release raises that lacks what is used here
        return _without(error)
    return ""


def _without(error: Exception) -> str:
    return (
        f"this Python lacks the package {PACKAGE}, by which files are encrypted, or has one that does not"
        f" work ({error}). Install it here and on all hosts: {REMEDY}"
    )


@dataclass(frozen=True, slots=True)
class BufferPlace:
    """Where a buffer stands. ``offset``: in the data file. ``subpartition``: None in a broadcast region."""

    offset: int
    region: int
    subpartition: int | None

    def bound(self, header: BytesLike) -> bytes:
        """What a payload there is bound to, beside its offset: the header as it stands in the file, and
        region and subpartition."""
        subpartition = _OF_ALL if self.subpartition is None else self.subpartition
        return bytes(header) + _PLACE.pack(self.region, subpartition)


class FileCipher:
    """Of one file. ``check``: what the file's header has, by which a wrong key is known. Thread-safe."""

    def __init__(self, key: bytes, check: bytes) -> None:
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self.check = check
        self._key = key
        self._aead = AESGCM(key)
        self._invalid = InvalidTag  # to import it takes as long as to decrypt a small payload
        # older releases give new bytes, which are copied
        self._fills = hasattr(self._aead, "decrypt_into")

    def encrypt(self, payload: BytesLike, offset: int, bound: bytes) -> bytes:
        """The encrypted payload and its tag: `TAG_BYTES` more."""
        view = memoryview(payload).cast("B")
        if len(view) <= _MOST_AT_ONCE:
            return self._aead.encrypt(_nonce(offset), view, bound)
        encryptor = self._in_pieces(offset, None).encryptor()
        encryptor.authenticate_additional_data(bound)
        pieces = [encryptor.update(piece) for piece in _pieces(view)]
        return b"".join([*pieces, encryptor.finalize(), encryptor.tag])

    def decrypt(self, stored: memoryview, offset: int, bound: bytes, target: memoryview) -> None:
        """Fill ``target``, which is `TAG_BYTES` shorter. Raises `WrongTagError`, and then what is in
        ``target`` is not to be used."""
        try:
            if len(target) > _MOST_AT_ONCE:
                self._decrypt_in_pieces(stored, offset, bound, target)
            elif self._fills:
                self._aead.decrypt_into(_nonce(offset), stored, bound, target)
            else:
                target[:] = self._aead.decrypt(_nonce(offset), stored, bound)
        except self._invalid:
            raise WrongTagError from None

    def _decrypt_in_pieces(self, stored: memoryview, offset: int, bound: bytes, target: memoryview) -> None:
        decryptor = self._in_pieces(offset, bytes(stored[-TAG_BYTES:])).decryptor()
        decryptor.authenticate_additional_data(bound)
        position = 0
        for piece in _pieces(stored[:-TAG_BYTES]):
            target[position : position + len(piece)] = decryptor.update(piece)
            position += len(piece)
        decryptor.finalize()

    def _in_pieces(self, offset: int, tag: bytes | None) -> Any:
        from cryptography.hazmat.primitives.ciphers import Cipher
        from cryptography.hazmat.primitives.ciphers.algorithms import AES
        from cryptography.hazmat.primitives.ciphers.modes import GCM

        return Cipher(AES(self._key), GCM(_nonce(offset), tag))


def _nonce(offset: int) -> bytes:
    return offset.to_bytes(_NONCE_BYTES, "little")


def _pieces(view: memoryview) -> Iterator[memoryview]:
    for start in range(0, len(view), _PIECE_BYTES):
        yield view[start : start + _PIECE_BYTES]


def encrypted(buffer: SealedBuffer, cipher: FileCipher, place: BufferPlace) -> SealedBuffer:
    """The same buffer with its payload encrypted for its place. The raw size of a compressed one stays
    readable. The payload is copied."""
    header = marked_encrypted(buffer.header, place.subpartition is None)
    payload = cipher.encrypt(buffer.payload, place.offset, place.bound(header))
    return sealed_around(header, payload, buffer.raw_bytes, buffer.records)


def encrypted_run(run: ExtentRun, cipher: FileCipher, region: int, offset: int) -> ExtentRun:
    """The same extents with their payloads encrypted. ``offset``: of the first in the file."""
    view = memoryview(run.data).cast("B")
    sizes: Int64s = run.raw_bytes + TAG_BYTES
    lengths, data = laid_out(sizes, ENCRYPTED_DATA)
    target = data.data
    plain_starts = (np.cumsum(run.bytes) - run.bytes).tolist()
    starts = (np.cumsum(lengths) - lengths).tolist()
    counts = zip(plain_starts, starts, run.raw_bytes.tolist(), run.subpartitions.tolist(), strict=True)
    for plain, start, size, subpartition in counts:  # a call of the cipher for each payload, 0.6 us
        begin = start + BUFFER_HEADER_BYTES
        place = BufferPlace(offset + start, region, subpartition)
        source = view[plain + BUFFER_HEADER_BYTES : plain + BUFFER_HEADER_BYTES + size]
        stored = cipher.encrypt(source, place.offset, place.bound(target[start:begin]))
        target[begin : begin + len(stored)] = stored
    return replace(run, bytes=lengths, checksums=checksummed(data, lengths), data=target)


def decrypted(
    memory: memoryview, buffer: StoredBuffer, cipher: FileCipher, place: BufferPlace, target: memoryview
) -> StoredBuffer:
    """Decrypt a verified buffer of ``memory`` to the same position of ``target``, and say where it is there.
    Raises `WrongTagError`."""
    start, end = buffer.start, buffer.start + buffer.size
    begin = start + RAW_SIZE_BYTES if buffer.compressed else start
    bound = place.bound(memory[start - BUFFER_HEADER_BYTES : begin])
    cipher.decrypt(memory[begin:end], place.offset, bound, target[begin : end - TAG_BYTES])
    target[start:begin] = memory[start:begin]
    return StoredBuffer(start, buffer.size - TAG_BYTES, buffer.data_type, buffer.compressed)


def decrypted_singles(
    memory: memoryview,
    singles: Iterable[tuple[int, int, int]],
    cipher: FileCipher,
    offset: int,
    region: int,
    target: memoryview,
) -> Iterator[memoryview]:
    """The same for many buffers that are not compressed, of a unicast region: the plain payload of each, in
    ``target``. ``singles``: of each its start in ``memory``, the bytes of its stored payload, and its
    subpartition. ``offset``: of the memory in the file. Raises `WrongTagError` at one that does not open.

    No objects are made for a buffer: they took 15 us, and decrypting a small payload takes 1.
    """
    for start, size, subpartition in singles:
        begin = start + BUFFER_HEADER_BYTES
        end = begin + size
        bound = bytes(memory[start:begin]) + _PLACE.pack(region, subpartition)
        plain = target[begin : end - TAG_BYTES]
        cipher.decrypt(memory[begin:end], offset + start, bound, plain)
        yield plain
