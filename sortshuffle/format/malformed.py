"""The exceptions that the format's functions raise for wrong bytes.

Internal: the code that reads the bytes catches them, and raises `CorruptDataError` with file, region and
subpartition (`storage.files.extents`).
"""

from __future__ import annotations


class Malformed(Exception):  # noqa: N818 - it describes bytes, it is not an error of the program
    """The bytes are not of this format. ``offset`` counts from the first of the parsed bytes."""

    def __init__(self, what: str, offset: int, expected: object = None, found: object = None) -> None:
        super().__init__(what)
        self.what = what
        self.offset = offset
        self.expected = expected
        self.found = found


class CutShort(Malformed):
    """The bytes end inside a structure: the caller read too few, or the file is damaged.

    ``expected``: bytes of the structure from ``offset`` on. ``found``: bytes that exist.
    """

    def __init__(self, what: str, offset: int, expected: int, found: int) -> None:
        super().__init__(what, offset, expected, found)
        self.expected: int = expected
