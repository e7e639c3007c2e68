"""`sortshuffle report`: writes a page on map outputs (`report.page`)."""

from __future__ import annotations

from collections.abc import Sequence

import click

from sortshuffle.cli.dump_text import print_wrong_pairs
from sortshuffle.cli.exchanges import Listing, listing_of
from sortshuffle.cli.key_file import key_file_option, read_key
from sortshuffle.cli.output import ConsoleOutput, plural
from sortshuffle.cli.pair_report import AnyPath
from sortshuffle.cli.report_files import check_can_write, findings_on, is_private, report_on, write_page
from sortshuffle.cli.summary import print_advice
from sortshuffle.cli.unseen import PassedOver, storage_errors
from sortshuffle.errors import UsageError
from sortshuffle.report.findings import Findings
from sortshuffle.report.page import report_page
from sortshuffle.report.plots import check_can_draw

STANDARD_OUTPUT = "-"


@click.command(short_help="Write a page on what map outputs hold, and what to change first.")
@click.argument("path", type=AnyPath())
@click.option(
    "-o",
    "--output",
    default="report.html",
    show_default=True,
    type=click.Path(dir_okay=False, writable=True, allow_dash=True),
    help="The file to write; - for standard output. One that exists is written over.",
)
@key_file_option
def report(path: str, output: str, key_file: str | None) -> None:
    """Write a page on what map outputs hold: sizes of subpartitions and regions, what columns take, which
    values make a subpartition large, and what to change first.

    PATH is a directory, a data file or an index file; or the URL of one, such as s3://bucket/prefix. The page
    is one file, which loads nothing. Only indexes and some of the rows are read: whether all data is sound,
    `sortshuffle verify` tells.

    Exit codes: 0 all is well, 1 some map outputs are damaged, missing or unfinished, or could not be looked
    at, or the key that was given does not open them, 2 the call is wrong, there is nothing to report, or
    matplotlib is not installed, 4 the store refuses or does not answer, or its library is not installed.
    """
    check_can_draw()  # before many files are looked at
    if output != STANDARD_OUTPUT:
        check_can_write(output)
    with storage_errors():
        key, passed_over = read_key(key_file), PassedOver()
        listing = listing_of(path, key, passed_over)
        if not listing.looks:
            raise UsageError(
                f"there are no map outputs below {path}: they are removed when the application ends, unless"
                " spark.sortshuffle.keep is true"
            )
        found = findings_on(listing, key)
        page = report_page(report_on(path, listing, passed_over, found))
    if output == STANDARD_OUTPUT:
        click.echo(page, nl=False)
    else:
        write_page(output, page, is_private=is_private(found))
        _print_about(output, listing, found)
    if not listing.is_well or passed_over.documents:
        raise SystemExit(1)


def _print_about(output: str, listing: Listing, found: Sequence[Findings]) -> None:
    out = ConsoleOutput()
    out.line(f"{output}: {plural(len(found), 'exchange')} of {plural(len(listing.looks), 'map output')}")
    print_advice(out, found)
    print_wrong_pairs(out, listing, everything=False)
