"""`BufferBuilder` and `BufferConsumer`: one segment that is filled while what is complete is already read.

Used by `FrameEncoder`, which fills a segment and seals it when it is full or drained.

    builder: append.. commit ... append.. finish | close        one thread
    consumer: build -> slice of what was committed since, or None        one other thread

Rules
* What was appended is invisible until `commit`, which publishes it with one store, the buffer's size. What
  lies below that is never written again. So neither side needs a lock.
* `finish` commits the rest. After it nothing is appended; the consumer is finished when it has seen all.
* Each side holds one reference to the buffer and gives it back in `close`: the segment goes home when
  both have closed and every slice that was built is recycled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sortshuffle.errors import StateError
from sortshuffle.memory.buffer import Buffer

if TYPE_CHECKING:
    from typing_extensions import Buffer as BytesLike


class BufferBuilder:
    """The writing side. Takes over the caller's reference to an empty buffer."""

    __slots__ = ("_buffer", "_closed", "_consumed", "_finished", "_memory", "_position")

    def __init__(self, buffer: Buffer) -> None:
        self._buffer = buffer
        self._memory = buffer.segment.view
        self._position = buffer.size
        self._finished = False
        self._consumed = False
        self._closed = False

    @property
    def writable(self) -> int:
        """Bytes that can still be appended."""
        return self._buffer.segment.size - self._position

    @property
    def is_full(self) -> bool:
        return self.writable == 0

    @property
    def is_finished(self) -> bool:
        return self._finished

    @property
    def committed(self) -> int:
        """Bytes that the consumer can see."""
        return self._buffer.size

    def append(self, data: BytesLike) -> int:
        """Copy as much of ``data`` as fits. Returns the number of bytes taken; uncommitted yet."""
        self._expect_open()
        source = memoryview(data)
        if source.nbytes == 0:
            return 0  # an empty array's view has no bytes to be cast to
        source = source.cast("B")
        taken = min(len(source), self.writable)
        self._memory[self._position : self._position + taken] = source[:taken]
        self._position += taken
        return taken

    def commit(self) -> None:
        """Show the consumer everything appended so far."""
        self._expect_open()
        self._buffer.size = self._position

    def finish(self) -> int:
        """Commit, and append no more. Returns the bytes in the buffer. A second time changes nothing."""
        if not self._finished:
            self.commit()
            self._finished = True
        return self._buffer.size

    def consumer(self) -> BufferConsumer:
        """The one reading side. Raises `StateError` the second time."""
        if self._consumed or self._closed:
            reason = "it was made already" if self._consumed else "the builder is closed"
            raise StateError(f"a buffer being built has one consumer: {reason}")
        self._consumed = True
        return BufferConsumer(self, self._buffer.retain())

    def close(self) -> None:
        """Finish, and give back the builder's reference. A second time does nothing."""
        if not self._closed:
            self.finish()
            self._closed = True
            self._buffer.recycle()

    def _expect_open(self) -> None:
        if self._finished:
            raise StateError("the buffer being built is finished: nothing can be appended to it")


class BufferConsumer:
    """The reading side; made by `BufferBuilder.consumer`. Owns a reference to the buffer."""

    __slots__ = ("_buffer", "_builder", "_closed", "_position")

    def __init__(self, builder: BufferBuilder, buffer: Buffer) -> None:
        self._builder = builder
        self._buffer = buffer
        self._position = 0
        self._closed = False

    @property
    def is_finished(self) -> bool:
        """Whether the builder has finished and everything it committed was built."""
        # in this order: the last commit comes before the builder says that it has finished
        return self._builder.is_finished and self._position == self._buffer.size

    def build(self) -> Buffer | None:
        """A slice of what was committed since the last call, None if nothing was. The caller recycles it."""
        if self._closed:
            raise StateError("the consumer of a buffer being built is closed")
        committed = self._buffer.size
        if committed == self._position:
            return None
        built = self._buffer.slice(self._position, committed)
        self._position = committed
        return built

    def close(self) -> None:
        """Give back the consumer's reference; slices that were built stay valid. Twice is as once."""
        if not self._closed:
            self._closed = True
            self._buffer.recycle()
