"""A report of a listing, and its file: for `sortshuffle report`, and for what an application has written at
its end (`cli.application_report`)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime, timezone

from sortshuffle import calls
from sortshuffle.cli.exchanges import Listing
from sortshuffle.cli.unseen import PassedOver
from sortshuffle.errors import UsageError
from sortshuffle.format.encryption import EncryptionKey
from sortshuffle.homes.small_files import replace_file
from sortshuffle.report.application import ApplicationRun
from sortshuffle.report.findings import Findings
from sortshuffle.report.page import MOST_EXCHANGES, NotShown, Report
from sortshuffle.storage.files.partitioned_file import PartitionedFile


def findings_on(listing: Listing, key: EncryptionKey | None) -> list[Findings]:
    """Return the findings on each exchange. Rows are sampled of those that a page has room for."""
    largest = sorted(listing.exchanges, key=lambda files: -files.totals.bytes)[:MOST_EXCHANGES]
    sampled = {id(files) for files in largest}
    return [
        Findings.of(files, key)
        if id(files) in sampled
        else Findings(files, refusal="only those of the largest exchanges are")
        for files in listing.exchanges
    ]


def report_on(
    source: str,
    listing: Listing,
    passed_over: PassedOver,
    findings: Sequence[Findings],
    run: ApplicationRun | None = None,
) -> Report:
    """Return the report of now. ``source``: the path that was listed, or the application."""
    wrong = [NotShown(each.inspection.base, each.reason) for each in listing.wrong]
    places = [NotShown(each["path"], each["why"]) for each in passed_over.documents]
    now = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    return Report(source, now, len(listing.looks), findings, wrong, places, run)


def check_can_write(path: str) -> None:
    """Raise `UsageError` if a page cannot be written there. For before many files are looked at."""
    directory = os.path.dirname(os.path.abspath(path))
    if PartitionedFile.of(path) is not None:
        raise UsageError(f"{path} is named like a map output, and is not written over: choose another name")
    if not calls.isdir(directory):
        raise UsageError(f"the page cannot be written: there is no directory {directory}")
    if not calls.access(directory, os.W_OK | os.X_OK):
        raise UsageError(f"the page cannot be written: the directory {directory} is not writable")


def write_page(path: str, page: bytes, *, is_private: bool) -> None:
    """Write a page, which is there whole or not at all. ``is_private``: for this user only, as what it was
    made from was encrypted. Raises `UsageError` if it cannot be written."""
    try:
        replace_file(path, page, 0o600 if is_private else 0o666)
    except OSError as error:
        raise UsageError(f"the page cannot be written: {error}") from error


def is_private(findings: Sequence[Findings]) -> bool:
    """Whether some of the files are encrypted."""
    return any(each.files.header.is_encrypted for each in findings)
