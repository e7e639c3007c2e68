"""`sortshuffle dump`: shows what map outputs contain, as text (`cli.dump_text`) or JSON (`cli.dump_json`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import click

from sortshuffle.cli import dump_json, dump_text
from sortshuffle.cli.exchanges import add_up, listing_of
from sortshuffle.cli.key_file import key_file_option, read_key
from sortshuffle.cli.output import ConsoleOutput, print_json
from sortshuffle.cli.pair_report import AnyPath, PairReport, look, look_at_all, pairs_below
from sortshuffle.cli.records import ShownRows, first_rows
from sortshuffle.cli.summary import print_summary
from sortshuffle.cli.unseen import PassedOver, storage_errors
from sortshuffle.errors import UnsupportedError, UsageError
from sortshuffle.format.encryption import EncryptionKey
from sortshuffle.report.findings import Findings
from sortshuffle.storage.inspection.contents import PairState
from sortshuffle.storage.inspection.open_files import is_directory


@click.command(short_help="Show what map outputs hold, unfinished and damaged ones too.")
@click.argument("path", type=AnyPath())
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, with everything in it.")
@click.option("--records", metavar="N", type=click.IntRange(min=1), help="Show the first N rows, decoded.")
@click.option(
    "--subpartition",
    metavar="S",
    type=click.IntRange(min=0),
    help="Show only this subpartition. --records without it takes the first that has rows.",
)
@click.option(
    "--unpickle",
    is_flag=True,
    help="Show objects, not just how many a chunk has. This runs what the file names: only for files that you"
    " trust.",
)
@click.option(
    "--schema",
    metavar="DDL",
    default="",
    help="Columns of the rows in a file of the shuffle manager, such as 'a long, b string'.",
)
@key_file_option
@click.option("--all", "everything", is_flag=True, help="Show long tables and lists whole.")
@click.option(
    "--summary", "as_summary", is_flag=True, help="Show what `sortshuffle report` says, without pictures."
)
@click.option("--quick", is_flag=True, help="Do not read the data: what is damaged in it is not found.")
def dump(
    path: str, as_json: bool, as_summary: bool, quick: bool, key_file: str | None, **choice: Any
) -> None:
    """Show what map outputs hold.

    PATH is a data or index file, of which the other is found beside it, or a directory, of which all map
    outputs below are listed and added up; or the URL of either, such as s3://bucket/prefix. Checksums are
    verified on the way. Files that are unfinished (.partial), damaged or without their other half are shown
    as far as they can be.

    Exit codes: 0 all is well, 1 something is damaged, missing or unfinished, or could not be looked at or
    checked, or the key that was given does not open all in it, 2 the call is wrong, 4 the store refuses or
    does not answer, or its library is not installed.
    """
    if choice["unpickle"] and choice["records"] is None:
        raise UsageError("--unpickle needs --records N: how many objects to show")
    if choice["schema"] and choice["records"] is None:
        raise UsageError("--schema needs --records N: how many rows to show")
    others = as_json or quick or choice["everything"] or choice["records"] is not None
    if as_summary and (others or choice["subpartition"] is not None):
        raise UsageError(
            "--summary stands alone: leave out --json, --records, --subpartition, --all and --quick"
        )
    wanted = DumpChoice(key=read_key(key_file), **choice)
    with storage_errors():
        is_well = _summarize(path, wanted.key) if as_summary else _dump(path, wanted, as_json, quick)
    if not is_well:
        raise SystemExit(1)


def _summarize(path: str, key: EncryptionKey | None) -> bool:
    """Print what a report says. Return whether all is well, as far as the indexes tell."""
    passed_over = PassedOver()
    listing = listing_of(path, key, passed_over)
    out = ConsoleOutput()
    if not listing.looks:
        out.line(f"There are no map outputs below {path}.")
    else:
        print_summary(out, [Findings.of(exchange, key) for exchange in listing.exchanges])
        dump_text.print_wrong_pairs(out, listing, everything=False)
    return listing.is_well and not passed_over.documents


def _dump(path: str, wanted: DumpChoice, as_json: bool, quick: bool) -> bool:
    """Print a pair or a directory. Return whether all is well."""
    if is_directory(path):
        if wanted.records is not None or wanted.subpartition is not None:
            raise UsageError("--records and --subpartition need a data or index file, not a directory")
        passed_over = PassedOver()
        found = add_up(look_at_all(pairs_below(path, passed_over.add), quick, wanted.key))
        if as_json:
            print_json(dump_json.directory(path, found, passed_over.documents))
        else:
            dump_text.directory(ConsoleOutput(), path, found, wanted.everything)
        return found.is_well and not passed_over.documents
    pair = look(path, quick, key=wanted.key)
    _check_subpartition(pair, wanted.subpartition)
    _print_pair(pair, as_json, wanted)
    return pair.state is PairState.COMPLETE


@dataclass(frozen=True, slots=True)
class DumpChoice:
    """What to show of a pair. ``records``: how many, None for none. ``everything``: do not cut tables."""

    subpartition: int | None
    records: int | None
    unpickle: bool
    schema: str
    everything: bool
    key: EncryptionKey | None


def _print_pair(pair: PairReport, as_json: bool, wanted: DumpChoice) -> None:
    rows, refusal = _rows(pair, wanted)
    if as_json:
        document = dump_json.pair(pair, wanted.subpartition)
        if wanted.records is not None:
            document["records"] = dump_json.records(rows, refusal)
        print_json(document)
        return
    page = dump_text.PairPage(ConsoleOutput(), pair, wanted.subpartition, wanted.everything)
    page.print()
    if wanted.records is not None:
        page.print_records(rows, refusal)


def _check_subpartition(pair: PairReport, subpartition: int | None) -> None:
    header = pair.inspection.header
    if subpartition is not None and header is not None and subpartition >= header.subpartitions:
        raise UsageError(
            f"--subpartition {subpartition}: there are {header.subpartitions}, from 0 to"
            f" {header.subpartitions - 1}"
        )


def _rows(pair: PairReport, wanted: DumpChoice) -> tuple[ShownRows | None, str]:
    """Return the first records, or None and the reason why they cannot be shown."""
    if wanted.records is None:
        return None, ""
    chosen = _first_with_records(pair) if wanted.subpartition is None else wanted.subpartition
    try:
        how = wanted.unpickle, wanted.schema, wanted.key
        return first_rows(pair.inspection, chosen, wanted.records, *how), ""
    except (UnsupportedError, OSError) as error:
        return None, str(error)


def _first_with_records(pair: PairReport) -> int:
    table = pair.inspection.table
    return 0 if table is None else int((table.per_subpartition("records") > 0).argmax())
