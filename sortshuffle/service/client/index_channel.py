"""`IndexChannel`: the index file of a map output, whose size is not known in advance.

    small --(more than `LARGE_INDEX_BYTES` would come)--> needs its turn --take_turn--> all of it may come

Whatever the service sends, it gets no more memory than such an index can need.
"""

from __future__ import annotations

from sortshuffle.errors import ProtocolError
from sortshuffle.format.header import HEADER_BYTES, INDEX_MAGIC, FileHeader
from sortshuffle.format.index import ENTRY_BYTES
from sortshuffle.format.malformed import Malformed
from sortshuffle.service.client.client_channel import ClientChannel, RequestSubject
from sortshuffle.service.wire.protocol import MapOutputAddress, PartitionRequest, Stream

# The largest index, whatever its header says: with one region, and as many subpartitions as the shuffle
# manager's protocol allows, it takes 768 MiB
MOST_INDEX_BYTES = 1 << 30
MOST_TAIL_BYTES = 16 << 20  # of an index, after the regions: the schema of 10,000 columns takes 1 MiB
INDEX_CREDIT = 16  # segments; an index file seldom has more than one
# What may come of an index before its turn. An index of 1,000 subpartitions and 300 regions takes 14 MiB, so
# those of most jobs come side by side. A peer may make them as large as it can: of such, one starts at a
# time, and the next when that one is complete, or has had its time-out
LARGE_INDEX_BYTES = 16 << 20


class IndexChannel(ClientChannel):
    """Receives an index file piece by piece. ``regions``: how many the map output has, None if unknown.

    It provides memory for no more than an index of so many regions, and of as many subpartitions as its
    header says, can take; for no more than `MOST_INDEX_BYTES`; and before its turn for no more than
    `LARGE_INDEX_BYTES` or one segment. The header is believed only if it carries the id that was requested.
    """

    def __init__(self, asked: RequestSubject, output: MapOutputAddress, regions: int | None = None) -> None:
        super().__init__(asked)
        self._output = output
        self._regions = regions
        self._received = bytearray()
        self._piece = bytearray()
        self._ended = False
        self._has_turn = False

    @property
    def is_complete(self) -> bool:
        return self._ended

    @property
    def needs_turn(self) -> bool:
        """Whether the index is large, and no more of it may come before `take_turn`."""
        return not (self._most_credit() or self.credit or self._ended)

    @property
    def data(self) -> memoryview:
        """The whole file, once it is complete: read-only, and not a copy."""
        return memoryview(self._received).toreadonly()

    def take_turn(self) -> None:
        """Let the whole index come. The caller holds the turn, so that others wait."""
        self._has_turn = True

    def credit_due(self) -> int:
        most = self._most_credit()
        due = most - self.credit
        if due <= 0 or 2 * due < most:
            return 0
        self.credit += due
        return due

    def _most_credit(self) -> int:
        """Return the credits for what has not arrived."""
        if self._has_turn:
            return INDEX_CREDIT
        here = len(self._received) + len(self._piece)
        allowed = (LARGE_INDEX_BYTES - here) // max(1, self.segment_bytes)
        return max(0 if here else 1, min(INDEX_CREDIT, allowed))

    def _request(self, number: int) -> bytes | None:
        self.credit = self._most_credit()
        if not self.credit:
            self.changed.notify_all()  # segments are larger than before, so the index needs its turn now
            return None
        return PartitionRequest(
            number, self.credit, self._output, skip=len(self._received), stream=Stream.INDEX
        ).pack()

    def _place(self, size: int) -> list[memoryview]:
        most = self._most_bytes()
        if len(self._received) + size > most:
            raise ProtocolError(f"an index of more than {most} bytes")
        self._piece = bytearray(size)
        return [memoryview(self._piece)]

    def _filled(self, count: int) -> bool:
        self._received += memoryview(self._piece)[:count]
        self._piece = bytearray()
        if isinstance(self._header(), Malformed):
            self._gained = 0  # bytes that are no index are no progress
        if self.needs_turn:
            self.changed.notify_all()
        return False

    def _header(self) -> FileHeader | Malformed | None:
        """Return the header, or what is wrong with it; None before it has arrived."""
        if len(self._received) < HEADER_BYTES:
            return None
        try:
            header = FileHeader.unpack(bytes(self._received[:HEADER_BYTES]), INDEX_MAGIC)
        except Malformed as problem:
            return problem
        wanted = self._output.file_id
        if header.file_id != wanted:
            return Malformed("the id is another map output's", 16, wanted.hex(), header.file_id.hex())
        return header

    def _most_bytes(self) -> int:
        header = self._header()
        if isinstance(header, Malformed):
            self._received.clear()  # the next request starts at the beginning
            raise ProtocolError(f"what came does not begin as the index does: {header.what}")
        if header is None or self._regions is None:
            return MOST_INDEX_BYTES
        region_bytes = header.subpartitions * ENTRY_BYTES + 1
        return min(HEADER_BYTES + self._regions * region_bytes + MOST_TAIL_BYTES, MOST_INDEX_BYTES)

    def _check_end(self) -> None:
        self._ended = True
        self.changed.notify_all()
