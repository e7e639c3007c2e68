"""The command line of `tools/bench/compare`."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click
import harness
from control_group import why_no_groups
from harness import DATA

from systems.environments import InstallError, python_of
from systems.page import write_page
from systems.results import print_table, table_of, write_record
from systems.rounds import compare
from systems.turn import alone
from systems.work import OURS, PEERS, QUICK, SYSTEMS, WORKS, Work

ROUNDS = 5


@click.command()
@click.option(
    "--case", "cases", multiple=True, type=click.Choice([work.name for work in WORKS]), help="Only this."
)
@click.option("--system", "systems", multiple=True, type=click.Choice(SYSTEMS), help="Only this.")
@click.option(
    "--rounds", type=click.IntRange(min=1), default=ROUNDS, show_default=True, help="Turns of each system."
)
@click.option(
    "--quick", is_flag=True, help="Little data, one round: that everything works, not how fast it is."
)
@click.option(
    "--peers", is_flag=True, help="With --quick: the other systems, too, which are installed first."
)
@click.option("--page", is_flag=True, help="Only write the tables and plots of docs/comparison.md anew.")
def main(
    cases: tuple[str, ...], systems: tuple[str, ...], rounds: int, quick: bool, peers: bool, page: bool
) -> None:
    """Compare sortshuffle with other systems. Exits 1 if one gives a wrong answer or fails, if one cannot be
    installed, or this package's jar not be built, if another comparison runs, if the checkout is changed
    meanwhile, or if control groups cannot be made; a quick run exits 0 then, without having done anything."""
    if page:
        print(f"docs/comparison.md: {', '.join(write_page())}")
        return
    harness.recording = not quick
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP
            signal.signal(number, lambda *_: sys.exit(1))  # so that what a turn has made goes with it
    if reason := why_no_groups():
        print(f"control groups cannot be made here: {reason}", file=sys.stderr)
        sys.exit(not quick)
    chosen = {*systems} or {*SYSTEMS} - ({*PEERS} if quick and not peers else set())
    works = [work for work in WORKS if not cases or work.name in cases]
    able_of = {work.name: [name for name in work.systems if name in chosen] for work in works}
    DATA.mkdir(exist_ok=True)
    with alone(DATA):
        commit = harness.commit()
        if chosen & {*OURS}:  # the others need no jar, and no JDK
            harness.build_jar()
        _install(sorted({name for able in able_of.values() for name in able}))
        sys.exit(_compared(works, able_of, rounds, quick, commit))


def _compared(
    works: Iterable[Work],
    able_of: Mapping[str, Sequence[str]],
    rounds: int,
    quick: bool,
    commit: Mapping[str, Any],
) -> bool:
    """Let the systems take turns at all cases, and return whether one has failed. ``able_of``: the systems
    that do a case, by its name. ``commit``: what is measured. Once the checkout is another one, ends the
    program: no further record would count."""
    failed = False
    for work in works:
        able = able_of[work.name]
        if not able:
            continue
        print(f"\n{work.name}: {work.about}{_fewer(quick)}", flush=True)
        outcome = compare(work, able, 1 if quick else rounds, quick)
        is_of_commit = write_record(work, outcome.turns, outcome.failures, commit)
        print_table(table_of(work, outcome.turns, outcome.failures))
        if harness.recording and not is_of_commit:
            sys.exit("the checkout was changed while the systems took turns: this record does not count")
        failed |= bool(outcome.failures)
    return failed


def _install(systems: Iterable[str]) -> None:
    """Make the systems' environments before any turn: a record without some of them would be of no use."""
    try:
        for name in systems:
            python_of(name)
    except InstallError as error:
        sys.exit(f"{error}\nCompare without it: name the others by --system")


def _fewer(quick: bool) -> str:
    return f", but {QUICK} times fewer rows" if quick else ""


if __name__ == "__main__":
    main()
