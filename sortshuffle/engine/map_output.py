"""`MapOutput`: a finished map output, as its consumers must know it; and its removal."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sortshuffle.engine.checks import type_name
from sortshuffle.errors import UsageError
from sortshuffle.homes.host import host_name, is_this_host
from sortshuffle.storage.files.partitioned_file import PartitionedFile


@dataclass(frozen=True, slots=True)
class MapOutput:
    """A finished map output, as its consumers must know it.

    ``application``, ``exchange``, ``map_index``, ``attempt``: its name; ``file_id``: what its files carry.
    ``host``: where they lie, ``path``: there, without a suffix. ``subpartition_bytes``: what the consumer of
    each subpartition reads, bytes as stored; what is broadcast counts for each. One int per subpartition.
    """

    application: str
    exchange: int
    map_index: int
    attempt: int
    file_id: bytes
    host: str
    path: str
    subpartition_bytes: tuple[int, ...]

    @property
    def file(self) -> PartitionedFile:
        """Its pair of files."""
        return PartitionedFile(self.path)

    def __str__(self) -> str:
        return f"attempt {self.attempt} of map {self.map_index} on {self.host}"


def release(outputs: Iterable[MapOutput]) -> None:
    """Delete map outputs when every consumer has read them to the end: files are opened one by one, so an
    input that is still read fails with a `DataLossError`. To be called on the host where they lie. May be
    called again.

    Raises `UsageError` for outputs of another host, OSError for files that cannot be deleted.
    """
    outputs = list_of(outputs)
    elsewhere = [output for output in outputs if not is_this_host(output.host)]
    if elsewhere:
        raise UsageError(f"{elsewhere[0]} cannot be released on {host_name()}: its files are not here")
    for output in outputs:
        output.file.delete()


def list_of(outputs: Iterable[MapOutput]) -> list[MapOutput]:
    listed = list(outputs) if isinstance(outputs, Iterable) else [outputs]
    if isinstance(outputs, MapOutput) or not all(isinstance(each, MapOutput) for each in listed):
        wrong = next((each for each in listed if not isinstance(each, MapOutput)), None)
        is_one = isinstance(outputs, MapOutput)
        found = "one MapOutput alone" if is_one else f"a {type_name(wrong)} among them"
        raise UsageError(f"give a list of what finish() returned, not {found}")
    return listed
