"""Every change of one byte of a small file, and every end that it may be cut at, in one test each."""

from __future__ import annotations

from collections.abc import Callable

from sortshuffle.format.malformed import Malformed

MASKS = (*(1 << bit for bit in range(8)), 0xFF)
"""What one byte is changed by: each of its bits, and all of them."""


def undetected_changes(good: bytes, read: Callable[[bytes], object]) -> list[str]:
    """The changes of one byte that ``read`` takes for sound."""
    found = []
    for offset in range(len(good)):
        for mask in MASKS:
            damaged = bytearray(good)
            damaged[offset] ^= mask
            if refusal(read, bytes(damaged)) is None:
                found.append(f"byte {offset} xor {mask:#04x}")
    return found


def refusal(read: Callable[[bytes], object], data: bytes) -> Malformed | None:
    """Why ``read`` refuses this; None if it does not."""
    try:
        read(data)
    except Malformed as error:
        return error
    return None
