"""`sortshuffle verify`: reads everything and says of each file, in one line, whether it is what was written.

What is checked: headers, that the two files belong together, the index's checksum, that the extents cover the
data file without gap or overlap, every buffer's and every extent's checksum, that payloads decompress and
decode, and that raw bytes and rows are as many as the index says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import click

from sortshuffle.cli.look import AnyPath, Look, is_there, look, pairs_below, storage_errors
from sortshuffle.cli.output import Output, plural
from sortshuffle.errors import UsageError
from sortshuffle.storage.opened_files import absolute, is_directory
from sortshuffle.storage.partitioned_file import DATA_SUFFIX, INDEX_SUFFIX, PartitionedFile

_STYLES = {"OK": "green", "OPEN": "cyan", "FAULT": "red"}
_UNFINISHED = "unfinished: the task that wrote it ended before it gave the file its name"


@dataclass(frozen=True, slots=True)
class Line:
    """What is said of one file. ``verdict``: OK, FAULT, or OPEN for one that a task is writing."""

    verdict: str
    path: str
    why: str


@click.command(short_help="Check every checksum of map outputs.")
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=AnyPath())
def verify(paths: tuple[str, ...]) -> None:
    """Check every checksum of map outputs, and print one line per file.

    PATH is a data or index file, of which the other is found beside it, or a directory, of which all map
    outputs below are checked; or the URL of either, such as s3://bucket/prefix. All data is read and decoded.
    What a live task is writing is checked as far as it is complete and is no fault; what a dead task left
    unfinished is.

    Exit codes: 0 all is well, 1 there is a fault, 2 the call is wrong.
    """
    out = Output()
    verdicts = set()
    with storage_errors():
        for line in _lines(list(_one_of_each_pair(paths))):
            verdicts.add(line.verdict)
            out.line(f"{line.verdict:<5}  {line.path}: {line.why}", _STYLES[line.verdict])
    if "FAULT" in verdicts:
        raise SystemExit(1)


def _one_of_each_pair(paths: Sequence[str]) -> Iterator[str]:
    seen: set[str] = set()
    for path in map(absolute, paths):
        found = pairs_below(path) if is_directory(path) else [path]
        if not found:
            click.echo(f"There are no map outputs below {path}.", err=True)
        for each in found:
            file = PartitionedFile.of(each)
            base = each if file is None else file.base
            if base not in seen:
                seen.add(base)
                yield each


def _lines(paths: Sequence[str]) -> Iterator[Line]:
    for number, path in enumerate(paths, start=1):
        try:
            found = look(path, position=f"{number} of {len(paths)}: ")
        except UsageError as error:
            if is_there(path):  # and was not removed since it was listed
                yield Line("FAULT", path, str(error).removeprefix(path).strip())
            continue
        yield _of_file(found, INDEX_SUFFIX)
        yield _of_file(found, DATA_SUFFIX)


def _of_file(found: Look, suffix: str) -> Line:
    inspection = found.inspection
    file = inspection.data if suffix == DATA_SUFFIX else inspection.index
    path = inspection.base + suffix if file is None else file.path
    own = [fault for fault in found.faults if fault.place.file == path]
    if own:
        more = f" (and {plural(len(own) - 1, 'more fault')}: see sortshuffle dump)" if len(own) > 1 else ""
        return Line("FAULT", path, f"{own[0]}{more}")
    what = _data_facts(found) if suffix == DATA_SUFFIX else _index_facts(found)
    if found.inspection.being_written:
        return Line("OPEN", path, f"being written, sound so far; {what}")
    if found.inspection.unfinished:
        return Line("FAULT", path, f"{_UNFINISHED}; {what}")
    return Line("OK", path, what)


def _index_facts(found: Look) -> str:
    table = found.inspection.table
    if table is None:
        return "no regions known"
    regions, subpartitions = len(table.kinds), table.entries.shape[1]
    return f"{plural(regions, 'region')}, {plural(subpartitions, 'subpartition')}"


def _data_facts(found: Look) -> str:
    inspection = found.inspection
    size = plural(inspection.data.bytes if inspection.data else 0, "byte")
    if inspection.table is None or not inspection.is_pair:
        loose = len(found.check.loose) if found.check else 0
        return f"{size}, {plural(loose, 'sound buffer')}"
    totals = inspection.table.totals
    return (
        f"{size}, {plural(totals.extents, 'extent')}, {plural(totals.buffers, 'buffer')},"
        f" {plural(totals.records, 'row')}"
    )
