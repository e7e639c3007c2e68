"""The command `tools/soak`."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import click
from cluster import ROOT

from soak import plan, report
from soak.place import become_a_child, run_inside
from soak.run import Soak

KEPT = ROOT / ".soak"
PLANNED = 20  # applications that --plan shows


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--minutes", default=10.0, show_default=True, type=click.FloatRange(min=0.1), help="How long.")
@click.option("--seed", default=None, type=click.IntRange(min=0), help="Of everything.  [default: the time]")
@click.option("--json", "as_json", is_flag=True, help="Append a record to tools/soak.jsonl.")
@click.option("--plan", "planned", is_flag=True, help="Only show what would be done.")
@click.option("--big", is_flag=True, help="In place of all this, the tests of what is larger than memory.")
@click.option(
    "--pipelines", type=click.IntRange(min=1), help="In place of all this, so many chains of calls."
)
@click.option("--inside", hidden=True, type=click.Path(path_type=Path))
def main(
    minutes: float,
    seed: int | None,
    as_json: bool,
    planned: bool,
    big: bool,
    pipelines: int | None,
    inside: Path | None,
) -> None:
    """Run random jobs with random faults, and compare what they give with plain Spark.

    Exits 1 if anything was wrong, failed in a way that is not documented, hung, or was left; or
    if no job ran, or a kind of fault was tried often, and never had an effect.
    """
    if seed is None:
        seed = int(time.time())
    if big:
        os.chdir(ROOT)
        os.execv(sys.executable, [sys.executable, "-m", "pytest", "-q", "-m", "big", "tests/big"])
    if pipelines is not None:
        paths = [ROOT, ROOT / "tools" / "lib", ROOT / "tests", ROOT / "tests" / "spark"]
        os.environ["PYTHONPATH"] = os.pathsep.join(map(str, paths))
        command = ["-u", "-m", "pipelines", "--count", str(pipelines), "--seed", str(seed)]
        os.execv(sys.executable, [sys.executable, *command])
    if planned:
        for number in range(PLANNED):
            click.echo(shown(plan.application(seed, number)))
    elif inside is None:
        arguments = ["--minutes", str(minutes), "--seed", str(seed), *(["--json"] if as_json else [])]
        sys.exit(run_inside(arguments))
    else:
        become_a_child()
        sys.exit(run(minutes, seed, as_json, inside))


def run(minutes: float, seed: int, as_json: bool, scratch: Path) -> int:
    """The status to exit with."""
    started = time.monotonic()
    kept = KEPT / f"seed-{seed}-{time.strftime('%Y%m%d-%H%M%S')}"
    click.echo(f"Seed {seed}, {minutes:g} minutes; events and logs: {kept}")

    def say(line: str) -> None:
        click.echo(f"{(time.monotonic() - started) / 60:5.1f} {line}")

    soak = Soak(seed, scratch, kept, say)
    interrupted = False
    try:
        soak.run(60 * minutes)
    except KeyboardInterrupt:
        interrupted = True
        say("interrupted")
    took = (time.monotonic() - started) / 60
    click.echo("\n".join(report.table(soak.tally, took)))
    for problem in (*soak.tally.problems, *soak.tally.gaps()):
        click.echo(f"PROBLEM {problem[:500]}")
    if as_json and not interrupted:
        report.append(report.record(soak.tally, seed, took))
    return 0 if soak.tally.is_good() and not interrupted else 1


def shown(application: plan.Application) -> str:
    """An application of a plan, as lines."""
    end = "its driver is killed" if application.is_killed else "its driver ends"
    encrypted = ", encrypted" if application.is_encrypted else ""
    kind = f"{application.kind}, {application.executors} executors{encrypted}"
    lines = [f"application {application.number}: {kind}, {end}"]
    for number, job in enumerate(application.jobs):
        faults = "; ".join(f"{each.what} {each.host} {each.when()}" for each in job.faults) or "no fault"
        lines.append(f"  {application.number}.{number} {job.work} {job.shape}: {faults}")
    return "\n".join(lines)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    main(prog_name="tools/soak")
