"""`MapOutput`: what consumers must know of a finished map output; `release`, which deletes map outputs."""

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

    ``application``, ``exchange``, ``map_index`` and ``attempt`` identify it. ``file_id``: the id in its
    files. ``host``: where the files are; ``path``: their path there, without suffix. ``subpartition_bytes``:
    stored bytes that the consumer of each subpartition reads; broadcast data counts for every consumer.
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
        """The output's pair of files."""
        return PartitionedFile(self.path)

    def __str__(self) -> str:
        return f"attempt {self.attempt} of map {self.map_index} on {self.host}"


def release(outputs: Iterable[MapOutput]) -> None:
    """Delete map outputs. Call it on their host, when every consumer has read them to the end: an input opens
    files one by one, so one that is still being read fails with `DataLossError`. Safe to call again.

    Raises `UsageError` for outputs of another host, OSError for files that cannot be deleted.
    """
    outputs = checked_list(outputs)
    elsewhere = [output for output in outputs if not is_this_host(output.host)]
    if elsewhere:
        raise UsageError(f"{elsewhere[0]} cannot be released on {host_name()}: its files are not here")
    for output in outputs:
        output.file.delete()


def checked_list(outputs: Iterable[MapOutput]) -> list[MapOutput]:
    listed = list(outputs) if isinstance(outputs, Iterable) else [outputs]
    if isinstance(outputs, MapOutput) or not all(isinstance(each, MapOutput) for each in listed):
        wrong = next((each for each in listed if not isinstance(each, MapOutput)), None)
        is_one = isinstance(outputs, MapOutput)
        found = "one MapOutput alone" if is_one else f"a {type_name(wrong)} among them"
        raise UsageError(f"give a list of what finish() returned, not {found}")
    return listed
