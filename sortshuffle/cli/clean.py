"""`sortshuffle clean`: removes what no live application owns, as `cli.cleaning` judges, and says what."""

from __future__ import annotations

import re
from collections.abc import Sequence

import click

from sortshuffle.cli.cleaning import Thing, Verdict, judge_all, remove
from sortshuffle.cli.look import warn
from sortshuffle.cli.output import Output, plural
from sortshuffle.options import format_size

_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 604800}
_STYLES = {"removed": "green", "would remove": "green", "kept": "dim", "failed": "red"}


def _seconds(context: click.Context, parameter: click.Parameter, text: str | None) -> float | None:
    """A time such as 90min, 12h or 7d."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d+)([a-z]+)", text.strip().lower())
    if match is None or match[2] not in _UNITS:
        raise click.BadParameter(f"{text!r} is not a time such as 90min, 12h or 7d")
    return float(match[1]) * _UNITS[match[2]]


@click.command(short_help="Remove map outputs that no live application owns.")
@click.argument(
    "directories", metavar="DIR...", nargs=-1, required=True, type=click.Path(exists=True, file_okay=False)
)
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@click.option(
    "--older-than",
    callback=_seconds,
    metavar="AGE",
    help="Remove also what cannot be judged from here and has not changed for so long, such as 12h or 7d.",
)
def clean(directories: tuple[str, ...], dry_run: bool, older_than: float | None) -> None:
    """Remove map outputs that no live application owns.

    DIR is a local directory of Spark, one that spark.sortshuffle.dir names, or any directory above. Removed
    are the files of executors of this host that have ended, also where the machine was started again and
    where spark.sortshuffle.keep left them behind. Of live executors, map outputs are removed that a task
    left unfinished or that Spark has forgotten.

    Files of other hosts, and files whose owner cannot be read, cannot be judged from here: they are kept and
    listed. Run this on their host, or give --older-than. Nothing but sortshuffle's own files is touched, and
    symbolic links are not followed.

    Exit codes: 0 done, 1 something could not be removed, 2 the call is wrong.
    """
    out = Output()
    removed: list[Verdict] = []
    kept: list[Verdict] = []
    failed: list[Verdict] = []
    seen: set[str] = set()
    for directory in directories:
        for verdict in judge_all(directory, older_than, warn):
            if verdict.path in seen:
                continue
            seen.add(verdict.path)
            outcome = _carry_out(verdict, dry_run)
            {"kept": kept, "failed": failed}.get(outcome, removed).append(verdict)
            _say(out, outcome, verdict)
    if not seen:
        out.line(f"There are no files of sortshuffle's executors below {', '.join(directories)}.")
        return
    out.line(f"{'Would remove' if dry_run else 'Removed'} {_sum(removed)}; kept {_sum(kept)}.")
    if failed:
        out.line(f"Could not remove {_sum(failed)}: look at who owns the files.", "red")
        raise SystemExit(1)


def _carry_out(verdict: Verdict, dry_run: bool) -> str:
    if not verdict.is_dead:
        return "kept"
    if dry_run:
        return "would remove"
    return "removed" if remove(verdict) else "failed"


def _say(out: Output, outcome: str, verdict: Verdict) -> None:
    size = format_size(verdict.bytes)
    out.line(f"{outcome:<12}  {size:>9}  {verdict.path}: {verdict.reason}", _STYLES[outcome])


def _sum(verdicts: Sequence[Verdict]) -> str:
    homes = sum(verdict.what is Thing.HOME for verdict in verdicts)
    parts = [plural(homes, "home")] if homes else []
    if len(verdicts) > homes:
        parts.append(plural(len(verdicts) - homes, "map output"))
    size = format_size(sum(verdict.bytes for verdict in verdicts))
    return f"{' and '.join(parts)} ({size})" if parts else "nothing"
