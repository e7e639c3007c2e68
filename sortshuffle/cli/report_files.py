"""A report of a listing, and its file: for `sortshuffle report`, and for what an application has written at
its end (`cli.application_report`)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timezone

from sortshuffle import calls
from sortshuffle.cli.exchanges import Listing
from sortshuffle.errors import UsageError
from sortshuffle.report.application import ApplicationRun
from sortshuffle.report.findings import Findings
from sortshuffle.report.page import PairWithFault, Report


def report_on(
    source: str, listing: Listing, findings: Sequence[Findings], run: ApplicationRun | None = None
) -> Report:
    """Return the report of now. ``source``: the path that was listed, or the application."""
    wrong = [PairWithFault(each.inspection.base, each.reason) for each in listing.wrong]
    now = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    return Report(source, now, len(listing.looks), findings, wrong, run)


def write_page(path: str, page: bytes) -> None:
    """Write a page, which is there whole or not at all. Raises `UsageError` if it cannot be written."""
    partial = f"{path}.{os.getpid()}"
    try:
        with calls.open_file(partial, "wb") as file:
            file.write(page)
        calls.replace(partial, path)
    except OSError as error:
        with suppress(OSError):
            calls.unlink(partial)
        raise UsageError(f"the page cannot be written: {error}") from error
