"""Writes the report on an application that ends: ``python -m sortshuffle.cli.application_report``.

The driver runs this program, from Python (`spark.session.application_report`) or from the JVM
(``ApplicationReport.java``), because an interpreter that exits starts no more threads, and because drawing
takes memory. It gives the program one JSON document on standard input:

    application, stages     as Spark's REST API writes them
    local_directories       those of Spark's driver
    settings                of the SparkContext, those of this package
    directories             of map outputs, as tasks of frames and RDDs report them
    python_stages           the figures of these tasks, by stage
    crossings               sentences on where rows crossed between Spark and Python
    key                     of encrypted files, hexadecimal

The last four only come from Python. The page is ``<spark.sortshuffle.report>/<application>.html``. The
program prints its path. If it cannot be written, it ends with status 3, and says why on standard error.

Only map outputs that this host sees are looked at, and of these only the ones that are still there: Spark
removes those of frames that nobody can use any more.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sortshuffle import calls
from sortshuffle.cli.exchanges import add_up
from sortshuffle.cli.pair_report import look_at_all, pairs_below
from sortshuffle.cli.report_files import findings_on, report_on, write_page
from sortshuffle.cli.unseen import PassedOver
from sortshuffle.errors import SortShuffleError, UsageError
from sortshuffle.format.encryption import EncryptionKey
from sortshuffle.homes.owner import HOME_ROOT
from sortshuffle.options import Options
from sortshuffle.report.application import ApplicationRun
from sortshuffle.report.page import report_page
from sortshuffle.storage.files.urls import application_of, application_url, is_url, mounted_path
from sortshuffle.storage.stored.stored_listing import directories_in

FAILED = 3  # exit status


def write(document: Mapping[str, Any], now: float) -> str:
    """Write the report, and return its path. ``now``: seconds since 1970. Raises what commands raise."""
    run = ApplicationRun.of(document, now)
    options = Options.of(document["settings"])
    key = EncryptionKey(bytes.fromhex(document["key"])) if document.get("key") else None
    passed_over = PassedOver()
    pairs = [
        pair
        for directory in directories_of(run.identifier, options, document)
        for pair in pairs_below(directory, passed_over.add)
    ]
    listing = add_up(look_at_all(pairs, quick=True, key=key))
    findings = findings_on(listing, key)
    page = report_page(report_on(f"{run.name} ({run.identifier})", listing, passed_over, findings, run))
    path = os.path.join(options.report, f"{run.identifier}.html")
    try:
        calls.makedirs(options.report, exist_ok=True)
    except OSError as error:
        raise UsageError(f"the page cannot be written: {error}") from error
    write_page(path, page, is_private=True)  # others may read the directory, and it shows values of rows
    return path


def directories_of(application: str, options: Options, document: Mapping[str, Any]) -> list[str]:
    """Return the directories and URLs that have map outputs of an application and can be seen from this host,
    none of which lies in another."""
    reported = document.get("directories", ())
    roots = [*document["local_directories"], *map(os.path.dirname, document["local_directories"])]
    # the latter, because if Spark's own shuffle files outlive executors, homes lie one level higher
    if not options.storage_url:
        roots += options.directories
    found = [os.path.join(root, HOME_ROOT, application) for root in roots]
    found += [mounted_path(each) or each for each in (*reported, *_stored_homes(application, options))]
    local = {os.path.normpath(each) for each in found if not is_url(each) and calls.isdir(each)}
    in_order = sorted(local, key=lambda each: each.split(os.sep))
    return [*_outermost(in_order), *sorted({each for each in found if is_url(each)})]


def _stored_homes(application: str, options: Options) -> list[str]:
    """Return the URLs of the application's directories."""
    url = options.storage_url
    names = directories_in(url) if url else []
    return [application_url(url, name) for name in names if application_of(name) == application]


def _outermost(directories: Sequence[str]) -> Iterator[str]:
    """Yield the directories that lie in none of the others. They are sorted by their parts, so each comes
    directly after the one it lies in, and others in that."""
    last = ""
    for directory in directories:
        if not last or os.path.commonpath((last, directory)) != last:
            last = directory
            yield directory


def main() -> int:
    """Run the program, and return its exit status."""
    # that of the user's program may need a screen, or a module that is not here
    os.environ["MPLBACKEND"] = "svg"
    try:
        path = write(json.load(sys.stdin.buffer), time.time())
    except (SortShuffleError, OSError) as error:
        print(error, file=sys.stderr)
        return FAILED
    print(f"The report on this application is {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
