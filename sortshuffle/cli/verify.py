"""`sortshuffle verify`: reads map outputs whole, and prints for each file whether it is as it was written.

It checks the headers, that the two files belong together, the index's checksum, that extents cover the data
file without gap or overlap, the checksum of every buffer and extent, that payloads decompress and decode, and
that the numbers of raw bytes and rows are those in the index.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

import click

from sortshuffle.cli.key_file import key_file_option, read_key
from sortshuffle.cli.output import ConsoleOutput, plural, print_json
from sortshuffle.cli.pair_report import AnyPath, PairReport, is_there, look, pairs_below
from sortshuffle.cli.unseen import CannotLook, PassedOver, storage_errors
from sortshuffle.errors import UsageError
from sortshuffle.format.encryption import EncryptionKey
from sortshuffle.storage.files.partitioned_file import DATA_SUFFIX, INDEX_SUFFIX, PartitionedFile
from sortshuffle.storage.inspection.open_files import absolute, is_directory

_STYLES = {"OK": "green", "OPEN": "cyan", "PART": "yellow", "FAULT": "red"}
_UNFINISHED = "unfinished: the task that wrote it ended before it gave the file its name"
_MAY_BE_WRITTEN = "unfinished, or being written: no locks are kept there that would tell; sound so far"
_LOCKED = "the key that was given does not open it: its checksums are sound, its payloads were not checked"


@dataclass(frozen=True, slots=True)
class Line:
    """The result for one file. ``verdict``: OK; FAULT; OPEN for a file that a task is writing, or may be
    writing; PART for a file that could not all be checked on this host."""

    verdict: str
    path: str
    why: str


@click.command(short_help="Check every checksum of map outputs.")
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=AnyPath())
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object: of each file its verdict, path and why."
)
@key_file_option
def verify(paths: tuple[str, ...], as_json: bool, key_file: str | None) -> None:
    """Check every checksum of map outputs, and print one line per file.

    PATH is a data or index file, of which the other is found beside it, or a directory, of which all map
    outputs below are checked; or the URL of either, such as s3://bucket/prefix. All data is read and decoded.
    In encrypted map outputs only the checksums are checked without the key, and everything with it; a key
    that does not open them is a fault. Files that a live task is writing are checked as far as they are
    complete, and are no fault; files that a dead task left unfinished are one. Outside homes, as on storage
    that every host sees, no lock tells the two apart, and neither is a fault.

    Exit codes: 0 all is well, 1 there is a fault, or something cannot be looked at or checked, 2 the call is
    wrong, or there is nothing to check, 4 the store refuses or does not answer, or its library is not
    installed.
    """
    lines, key, passed_over = [], read_key(key_file), PassedOver()
    refusal: CannotLook | None = None
    try:
        with storage_errors():
            for line in _lines(list(_one_of_each_pair(paths, passed_over)), key):
                lines.append(line)
                if not as_json:
                    _print(line)
    except CannotLook as error:
        refusal = error
    is_wrong = bool(passed_over.documents) or any(line.verdict in ("FAULT", "PART") for line in lines)
    if as_json:
        print_json(
            {
                "sound": bool(lines) and not is_wrong and refusal is None,
                "files": list(map(asdict, lines)),
                "passed_over": passed_over.documents,
                "error": refusal.document if refusal else None,
            }
        )
    if refusal is not None:
        raise refusal
    if is_wrong:
        raise SystemExit(1)
    if not lines:
        raise SystemExit(2)


def _print(line: Line) -> None:
    ConsoleOutput().line(f"{line.verdict:<5}  {line.path}: {line.why}", _STYLES[line.verdict])


def _one_of_each_pair(paths: Sequence[str], passed_over: PassedOver) -> Iterator[str]:
    seen: set[str] = set()
    for path in map(absolute, paths):
        found = pairs_below(path, passed_over.add) if is_directory(path) else [path]
        if not found:
            click.echo(f"There are no map outputs below {path}.", err=True)
        for each in found:
            file = PartitionedFile.of(each)
            base = each if file is None else file.base
            if base not in seen:
                seen.add(base)
                yield each


def _lines(paths: Sequence[str], key: EncryptionKey | None) -> Iterator[Line]:
    gone = 0
    for number, path in enumerate(paths, start=1):
        try:
            found = look(path, position=f"{number} of {len(paths)}: ", key=key)
        except UsageError as error:
            if is_there(path):  # otherwise it was removed after it was listed, which is no fault
                yield Line("FAULT", path, str(error).removeprefix(path).strip())
            else:
                gone += 1
            continue
        yield _of_file(found, INDEX_SUFFIX)
        yield _of_file(found, DATA_SUFFIX)
    if paths and gone == len(paths):
        others = f" (nor {plural(gone - 1, 'other map output')})" if gone > 1 else ""
        click.echo(f"There is nothing to check: {paths[0]} is not there{others}.", err=True)


def _of_file(found: PairReport, suffix: str) -> Line:
    inspection = found.inspection
    file = inspection.data if suffix == DATA_SUFFIX else inspection.index
    path = inspection.base + suffix if file is None else file.path
    own = [fault for fault in found.faults if fault.place.file == path]
    if own:
        more = f" (and {plural(len(own) - 1, 'more fault')}: see sortshuffle dump)" if len(own) > 1 else ""
        return Line("FAULT", path, f"{own[0]}{more}")
    what = _data_facts(found) if suffix == DATA_SUFFIX else _index_facts(found)
    if suffix == DATA_SUFFIX and found.is_locked:
        return Line("FAULT", path, f"{_LOCKED}; {what}")
    if suffix == DATA_SUFFIX and found.unchecked:
        why = f"no fault was found, but not all could be checked here: {found.unchecked}"
        return Line("PART", path, f"{why}; {what}")
    if found.inspection.being_written:
        return Line("OPEN", path, f"being written, sound so far; {what}")
    if found.inspection.may_be_written:
        return Line("OPEN", path, f"{_MAY_BE_WRITTEN}; {what}")
    if found.inspection.unfinished:
        return Line("FAULT", path, f"{_UNFINISHED}; {what}")
    return Line("OK", path, what)


def _index_facts(found: PairReport) -> str:
    table = found.inspection.table
    if table is None:
        return "no regions known"
    regions, subpartitions = len(table.kinds), table.entries.shape[1]
    return f"{plural(regions, 'region')}, {plural(subpartitions, 'subpartition')}"


def _data_facts(found: PairReport) -> str:
    inspection = found.inspection
    size = plural(inspection.data.bytes if inspection.data else 0, "byte")
    if inspection.table is None or not inspection.is_pair:
        loose = len(found.check.loose) if found.check else 0
        return f"{size}, {plural(loose, 'sound buffer')}"
    totals = inspection.table.totals
    return (
        f"{size}, {plural(totals.extents, 'extent')}, {plural(totals.buffers, 'buffer')},"
        f" {plural(totals.records, 'row')}{', ' if found.encryption else ''}{found.encryption}"
    )
