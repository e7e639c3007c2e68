"""`sortshuffle clean`: removes the map outputs that no live application owns, and lists them.

`cli.cleaning` judges the map outputs on this host, `cli.url_cleaning` those on shared storage (a URL).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import click

from sortshuffle.cli.cleaning import CleanTarget, HomeVerdict, judge_all, remove
from sortshuffle.cli.durations import seconds_of
from sortshuffle.cli.output import ConsoleOutput, plural, print_json
from sortshuffle.cli.unseen import CannotLook, PassedOver, storage_errors, warn
from sortshuffle.cli.url_cleaning import judge_stored, remove_stored
from sortshuffle.errors import UsageError
from sortshuffle.options import format_size
from sortshuffle.storage.files.urls import is_url, open_store, store_errors

_STYLES = {"removed": "green", "would remove": "green", "kept": "dim", "failed": "red"}


class _Directory(click.Path):
    """Accepts an existing directory, or any URL."""

    def __init__(self) -> None:
        super().__init__(exists=True, file_okay=False)

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        return value.rstrip("/") if is_url(value) else super().convert(value, parameter, context)


@click.command(short_help="Remove map outputs that no live application owns.")
@click.argument("directories", metavar="DIR...", nargs=-1, required=True, type=_Directory())
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@click.option(
    "--older-than",
    callback=seconds_of("90min, 12h or 7d"),
    metavar="AGE",
    help="Remove also what cannot be judged from here and has not changed for so long, such as 12h or 7d.",
)
@click.option(
    "--application",
    metavar="ID",
    help="At a URL: only this application's, whose end you are sure of. Where two masters gave one id, name"
    " the directory: that means it alone.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON object: what each home, map output or application is, and what came of it.",
)
def clean(
    directories: tuple[str, ...],
    dry_run: bool,
    older_than: float | None,
    application: str | None,
    as_json: bool,
) -> None:
    """Remove map outputs that no live application owns.

    DIR is a local directory of Spark, one that spark.sortshuffle.dir names, or any directory above. This
    removes the files of executors of this host that have ended, even if the machine was started again or
    spark.sortshuffle.keep kept them. Of live executors it removes map outputs that a task left unfinished or
    that Spark has forgotten.

    Files of other hosts, and files whose owner cannot be read, cannot be judged from here. Nor can files of
    the shuffle manager, if its service has ended and nothing that this user can read tells of its
    application. They are kept and listed. Run this on their host and as their user, or give --older-than.
    Nothing but sortshuffle's own files is touched, and symbolic links are not followed.

    DIR may also be the URL that spark.sortshuffle.dir names, such as s3://bucket/prefix. A driver removes
    what its application wrote there when it ends, unless it is killed. A URL does not show whether an
    application is live: all are listed, and those that --older-than or --application selects are removed,
    including uploads that were never completed.

    Exit codes: 0 done, 1 something could not be removed or looked at, 2 the call is wrong, and nothing was
    removed, 4 the store refuses or does not answer, or its library is not installed.
    """
    if application is not None and not all(map(is_url, directories)):
        raise UsageError("--application is for URLs: of a local directory every home says whose it is")
    out = ConsoleOutput()
    done: dict[str, tuple[str, HomeVerdict]] = {}  # by path: one directory may be below another
    passed_over = PassedOver()
    refusal: CannotLook | None = None
    # 1. judge each home or map output, and remove it at once
    try:
        with storage_errors():
            _open_stores(directories)
            for verdict in _verdicts(directories, application, older_than, passed_over):
                if verdict.path not in done:
                    outcome = _carry_out(verdict, dry_run)
                    done[verdict.path] = outcome, verdict
                    if not as_json:
                        _say(out, outcome, verdict)
    except CannotLook as error:
        refusal = error
    # 2. report
    by_outcome: dict[str, list[HomeVerdict]] = {outcome: [] for outcome in _STYLES}
    for outcome, verdict in done.values():
        by_outcome[outcome].append(verdict)
    if as_json:
        print_json(
            {
                "dry_run": dry_run,
                "found": [_document(*each) for each in done.values()],
                "passed_over": passed_over.documents,
                "error": refusal.document if refusal else None,
            }
        )
    elif done:
        _say_sums(out, by_outcome, dry_run)
    elif refusal is None:
        out.line(f"There are no files of sortshuffle's executors below {', '.join(directories)}.")
    if refusal is not None:
        raise refusal
    if by_outcome["failed"] or passed_over.documents:
        raise SystemExit(1)


def _carry_out(verdict: HomeVerdict, dry_run: bool) -> str:
    if not verdict.is_dead:
        return "kept"
    if dry_run:
        return "would remove"
    if verdict.what is not CleanTarget.APPLICATION:
        return "removed" if remove(verdict) else "failed"
    try:
        remove_stored(verdict)
    except OSError as error:
        warn(error)
        return "failed"
    return "removed"


def _open_stores(directories: Sequence[str]) -> None:
    """Open every store, so that a wrong URL or a missing library is reported before anything is removed."""
    for url in filter(is_url, directories):
        with store_errors("opening the storage", url):
            open_store(url)


def _verdicts(
    directories: Sequence[str], application: str | None, older_than: float | None, passed_over: PassedOver
) -> Iterator[HomeVerdict]:
    for directory in directories:
        if is_url(directory):
            yield from judge_stored(directory, application, older_than)
        else:
            yield from judge_all(directory, older_than, passed_over.add)


def _say(out: ConsoleOutput, outcome: str, verdict: HomeVerdict) -> None:
    size = format_size(verdict.bytes)
    out.line(f"{outcome:<12}  {size:>9}  {verdict.path}: {verdict.reason}", _STYLES[outcome])


def _say_sums(out: ConsoleOutput, by_outcome: dict[str, list[HomeVerdict]], dry_run: bool) -> None:
    removed = by_outcome["would remove" if dry_run else "removed"]
    done = "Would remove" if dry_run else "Removed"
    out.line(f"{done} {_sum(removed)}; kept {_sum(by_outcome['kept'])}.")
    if failed := by_outcome["failed"]:
        out.line(f"Could not remove {_sum(failed)}: look at who owns the files.", "red")


def _document(outcome: str, verdict: HomeVerdict) -> dict[str, Any]:
    return {
        "outcome": outcome,
        "what": verdict.what.name.lower().replace("_", " "),
        "path": verdict.path,
        "bytes": verdict.bytes,
        "why": verdict.reason,
    }


def _sum(verdicts: Sequence[HomeVerdict]) -> str:
    homes = sum(verdict.what is CleanTarget.HOME for verdict in verdicts)
    applications = sum(verdict.what is CleanTarget.APPLICATION for verdict in verdicts)
    outputs = len(verdicts) - homes - applications
    counted = ((homes, "home"), (applications, "application"), (outputs, "map output"))
    parts = [plural(number, noun) for number, noun in counted if number]
    size = format_size(sum(verdict.bytes for verdict in verdicts))
    return f"{' and '.join(parts)} ({size})" if parts else "nothing"
