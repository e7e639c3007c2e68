"""`sortshuffle conf`: the settings with which Spark's own shuffles are sortshuffle's, for `spark-submit`."""

from __future__ import annotations

import os
import shlex
import sys
from importlib.metadata import PackageNotFoundError, version

import click

from sortshuffle.spark.manager.jar import jar_path, why_no_jar
from sortshuffle.spark.manager.launch import SUBMIT_ARGUMENTS, launch_of
from sortshuffle.spark.manager.settings import PYTHON, manager_settings, why_not_with


@click.command(short_help="Print the settings that turn the shuffle manager on.")
@click.option(
    "--properties", is_flag=True, help="As lines of a properties file, such as spark-defaults.conf."
)
@click.option(
    "--python",
    metavar="PROGRAM",
    help="The Python of the engine on every host: an absolute path or a name on the PATH. Default: the one"
    " that runs this command.",
)
def conf(properties: bool, python: str | None) -> None:
    """Print the settings that turn the shuffle manager on.

    One --conf key=value on a line: spark-submit $(sortshuffle conf) job.py, and likewise for pyspark and for
    a server of Spark Connect. Plugins, jars and class path of Spark's spark-defaults.conf stay; those that
    other arguments name are to be joined by hand.

    Exit codes: 0 printed, 1 the manager cannot be on, 2 the call is wrong.
    """
    reason = _why_not()
    if reason:
        raise click.ClickException(f"the shuffle manager cannot be on: {reason}")
    # what comes from this command's own environment would not be there under spark-submit
    before = launch_of({**os.environ, SUBMIT_ARGUMENTS: ""}).settings
    if python is not None:
        before = {**before, PYTHON: python}
    for key, value in manager_settings(jar_path(), sys.executable, before).items():
        setting = f"{key}={value}"
        click.echo(_escaped(setting) if properties else f"--conf {shlex.quote(setting)}")


def _why_not() -> str:
    try:
        release = version("pyspark")
    except PackageNotFoundError:
        release = ""  # a Spark of its own, whose version the manager checks itself
    return (why_not_with(release) if release else "") or why_no_jar()


def _escaped(text: str) -> str:
    """As it stands in a properties file."""
    return text.replace("\\", "\\\\")
