"""What the format's functions raise when bytes are not what they must be.

Internal: the storage layer catches it at one place (`storage.files.reader.damage`) and raises
`CorruptDataError` with file, region and subpartition.
"""

from __future__ import annotations


class Malformed(Exception):  # noqa: N818 - it describes bytes, it is not an error of the program
    """Bytes that are not of this format. ``offset`` counts from the first of the bytes that were parsed."""

    def __init__(self, what: str, offset: int, expected: object = None, found: object = None) -> None:
        super().__init__(what)
        self.what = what
        self.offset = offset
        self.expected = expected
        self.found = found


class CutShort(Malformed):
    """The bytes end inside a structure: the caller read too few, or the file is damaged.

    ``expected``: bytes that the structure takes from ``offset`` on. ``found``: bytes that are there.
    """

    def __init__(self, what: str, offset: int, expected: int, found: int) -> None:
        super().__init__(what, offset, expected, found)
        self.expected: int = expected
