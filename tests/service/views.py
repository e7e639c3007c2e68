"""A view of a server's channel that gives what a test told it to, without files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass
class Part:
    """What a view gives with one poll."""

    runs_of: list[list[bytes]]
    credits: int
    backlog: int = 0
    end_of_partition: bool = False
    recycled: int = 0

    @property
    def runs(self) -> Iterator[list[memoryview]]:
        for run in self.runs_of:
            yield [memoryview(piece) for piece in run]

    def recycle(self) -> None:
        self.recycled += 1


@dataclass
class Source:
    """A view that gives what it was told to, one part with each poll."""

    parts: list[Part] = field(default_factory=list)
    compressed: bool = False
    cause: BaseException | None = None
    granted: list[int] = field(default_factory=list)
    released: int = 0

    @property
    def is_queued(self) -> bool:
        return bool(self.parts)

    def is_available(self, credits: int) -> bool:
        return bool(self.parts and credits) or self.cause is not None

    def grant(self, credits: int) -> None:
        self.granted.append(credits)

    def poll(self, credits: int, most: int) -> Part | None:
        return self.parts.pop(0) if self.parts and credits else None

    def release(self) -> None:
        self.released += 1
