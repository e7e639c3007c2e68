"""Encryption of the payloads in a data file (`docs/format.md`, "Encryption").

    EncryptionKey   an application's key, from which each file's key is derived
    FileCipher      encrypts and decrypts the payloads of one file, AES-256-GCM

A payload is encrypted when its place in the file is known, after compression and before the checksum. So
checksums cover the stored bytes. Moving, verifying and removing files needs no key.

Invariant: no two payloads are encrypted with the same key and nonce. Each file's key is derived with the
file's random id. The nonce is the buffer's offset in the file. A writer only appends, and after a failed
write it writes nothing more.

A payload can be decrypted only at its own place: it is bound to its file (by the key), its offset (by the
nonce), and its header, region and subpartition (as associated data).

Functions import the `cryptography` package when they need it, so that everything else runs without it.
`why_no_encryption` says whether this Python has a version that works.
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
    encrypted_header,
    seal_with_header,
)
from sortshuffle.format.checksum import BytesLike
from sortshuffle.format.extent_run import ExtentRun, Int64s, allocate_extents, fill_checksums
from sortshuffle.format.header import CHECK_BYTES, ID_BYTES

KEY_SIZES = (16, 24, 32)
"""Allowed sizes of an application's key in bytes, as for Spark's ``spark.io.encryption.keySizeBits``."""

PACKAGE = "cryptography"
REMEDY = "pip install 'cryptography>=41'"

_FILE_KEY_BYTES = 32
_INFO = b"sortshuffle data file 2"
_NONCE_BYTES = 12
_PLACE = struct.Struct("<II")
_OF_ALL = 2**32 - 1  # stands for the subpartition in a broadcast region
# One call of AESGCM takes less than 2 GiB. A larger payload passes the same cipher in pieces
_MOST_AT_ONCE = 2**31 - 1 - TAG_BYTES
_PIECE_BYTES = 2**26


class WrongTagError(Exception):
    """A payload cannot be decrypted: the key is wrong, or bytes were changed on purpose. Internal: the
    storage layer turns it into a `DecryptionError` with the place."""


@dataclass(frozen=True, slots=True)
class EncryptionKey:
    """An application's key. ``secret``: 16, 24 or 32 random bytes."""

    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.secret) not in KEY_SIZES:
            raise ValueError(f"a key has 16, 24 or 32 bytes, not {len(self.secret)}")

    def of_file(self, file_id: bytes) -> FileCipher:
        """Derive a file's cipher, in 15 us. Raises `WorkerSetupError` without `cryptography`."""
        try:
            from cryptography.hazmat.primitives.hashes import SHA256
            from cryptography.hazmat.primitives.kdf.hkdf import HKDF

            derived = HKDF(SHA256(), _FILE_KEY_BYTES + CHECK_BYTES, file_id, _INFO).derive(self.secret)
            return FileCipher(derived[:_FILE_KEY_BYTES], derived[_FILE_KEY_BYTES:])
        except ImportError as error:
            raise WorkerSetupError(_without(error)) from error


def why_no_encryption() -> str:
    """Return why this Python cannot encrypt, and the remedy; empty if it can. Encrypts to find out: an
    installed package may not load, or be too old."""
    try:
        EncryptionKey(bytes(_FILE_KEY_BYTES)).of_file(bytes(ID_BYTES)).encrypt(b"", 0, b"")
    except WorkerSetupError as error:
        return str(error)
    except Exception as error:  # an older release may raise anything
        return _without(error)
    return ""


def _without(error: Exception) -> str:
    return (
        f"this Python lacks the package {PACKAGE}, by which files are encrypted, or has one that does not"
        f" work ({error}). Install it here and on all hosts: {REMEDY}"
    )


@dataclass(frozen=True, slots=True)
class BufferPlace:
    """The place of a buffer. ``offset``: in the data file. ``subpartition``: None in a broadcast region."""

    offset: int
    region: int
    subpartition: int | None

    def bound(self, header: BytesLike) -> bytes:
        """Return the associated data of a payload at this place: its stored header, region, subpartition."""
        subpartition = _OF_ALL if self.subpartition is None else self.subpartition
        return bytes(header) + _PLACE.pack(self.region, subpartition)


class FileCipher:
    """Encrypts and decrypts one file's payloads. ``check``: the key check for the file's header, by which a
    wrong key is recognized. Thread-safe."""

    def __init__(self, key: bytes, check: bytes) -> None:
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self.check = check
        self._key = key
        self._aead = AESGCM(key)
        self._invalid = InvalidTag  # importing it takes as long as decrypting a small payload
        # older releases cannot: they return new bytes, which are copied
        self._fills = hasattr(self._aead, "decrypt_into")

    def encrypt(self, payload: BytesLike, offset: int, bound: bytes) -> bytes:
        """Return the encrypted payload followed by its tag of `TAG_BYTES`."""
        view = memoryview(payload).cast("B")
        if len(view) <= _MOST_AT_ONCE:
            return self._aead.encrypt(_nonce(offset), view, bound)
        encryptor = self._in_pieces(offset, None).encryptor()
        encryptor.authenticate_additional_data(bound)
        pieces = [encryptor.update(piece) for piece in _pieces(view)]
        return b"".join([*pieces, encryptor.finalize(), encryptor.tag])

    def decrypt(self, stored: memoryview, offset: int, bound: bytes, target: memoryview) -> None:
        """Decrypt to ``target``, which is `TAG_BYTES` shorter, and invalid after a `WrongTagError`."""
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


def encrypt_buffer(buffer: SealedBuffer, cipher: FileCipher, place: BufferPlace) -> SealedBuffer:
    """Return the buffer with its payload encrypted for its place. A raw size stays plain."""
    header = encrypted_header(buffer.header, place.subpartition is None)
    payload = cipher.encrypt(buffer.payload, place.offset, place.bound(header))
    return seal_with_header(header, payload, buffer.raw_bytes, buffer.records)


def encrypt_run(run: ExtentRun, cipher: FileCipher, region: int, offset: int) -> ExtentRun:
    """Return the run with its payloads encrypted. ``offset``: of its first extent in the file."""
    view = memoryview(run.data).cast("B")
    sizes: Int64s = run.raw_bytes + TAG_BYTES
    lengths, data = allocate_extents(sizes, ENCRYPTED_DATA)
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
    return replace(run, bytes=lengths, checksums=fill_checksums(data, lengths), data=target)


def decrypt_buffer(
    memory: memoryview, buffer: StoredBuffer, cipher: FileCipher, place: BufferPlace, target: memoryview
) -> StoredBuffer:
    """Decrypt a verified buffer of ``memory`` to the same position of ``target``. Returns the plain buffer.
    Raises `WrongTagError`."""
    start, end = buffer.start, buffer.start + buffer.size
    begin = start + RAW_SIZE_BYTES if buffer.compressed else start
    bound = place.bound(memory[start - BUFFER_HEADER_BYTES : begin])
    cipher.decrypt(memory[begin:end], place.offset, bound, target[begin : end - TAG_BYTES])
    target[start:begin] = memory[start:begin]
    return StoredBuffer(start, buffer.size - TAG_BYTES, buffer.data_type, buffer.compressed)


def decrypt_singles(
    memory: memoryview,
    singles: Iterable[tuple[int, int, int]],
    cipher: FileCipher,
    offset: int,
    region: int,
    target: memoryview,
) -> Iterator[memoryview]:
    """Decrypt many uncompressed buffers of a unicast region to ``target``, and yield each plain payload.

    ``singles``: start in ``memory``, bytes of the stored payload, and subpartition of each buffer.
    ``offset``: of ``memory`` in the file. Raises `WrongTagError` at the first failure. Makes no object for a
    buffer: that took 15 us, and decrypting a small payload takes 1.
    """
    for start, size, subpartition in singles:
        begin = start + BUFFER_HEADER_BYTES
        end = begin + size
        bound = bytes(memory[start:begin]) + _PLACE.pack(region, subpartition)
        plain = target[begin : end - TAG_BYTES]
        cipher.decrypt(memory[begin:end], offset + start, bound, plain)
        yield plain
