"""`sortshuffle conf`: the settings that turn the shuffle manager on, for `spark-submit`."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

import click

from sortshuffle import calls
from sortshuffle.errors import OptionError
from sortshuffle.spark.manager.jar import jar_path, why_no_jar
from sortshuffle.spark.manager.launch import MASTER, SUBMIT_ARGUMENTS, defaults_file, launch_of
from sortshuffle.spark.manager.settings import (
    MANAGER,
    PYTHON,
    is_off,
    manager_settings,
    why_not_beside,
    why_not_with,
)


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

    Each line is one --conf key=value: spark-submit $(sortshuffle conf) job.py, and likewise for pyspark and
    for a server of Spark Connect. Plugins, jars and class path of spark-defaults.conf stay; join those of
    other arguments by hand. Other settings in that file are checked as well, because some rule the manager
    out. Standard error names the file, and the release of Spark that the lines were checked for: that of the
    PySpark installed beside this command.

    Exit codes: 0 printed, 1 the manager cannot be on, 2 the call is wrong.
    """
    # without the submit arguments of this environment, which spark-submit does not have, and without its
    # MASTER, because an option of spark-submit may name another one
    environment = {name: os.environ[name] for name in os.environ if name not in (SUBMIT_ARGUMENTS, MASTER)}
    before, release = dict(launch_of(environment).settings), _release()
    _name_target(release, defaults_file(environment))
    reason = _why_not(release, before)
    if reason:
        raise click.ClickException(f"the shuffle manager cannot be on: {reason}")
    if python is not None:
        before[PYTHON] = python
    settings = [
        f"{key}={value}" for key, value in manager_settings(jar_path(), sys.executable, before).items()
    ]
    click.echo("\n".join(map(_escaped, settings) if properties else map(_argument, settings)))


def _release() -> str:
    """Return the release of the installed pyspark; empty if there is none because Spark is elsewhere."""
    try:
        return version("pyspark")
    except PackageNotFoundError:
        return ""


def _name_target(release: str, defaults: str) -> None:
    """Name the release that was checked: the user may give the lines to the spark-submit of another Spark."""
    spark = (
        f"Checked for Spark {release} (the installed pyspark)"
        if release
        else "Checked for no release of Spark (no pyspark is installed)"
    )
    beside = f"defaults of {defaults}" if calls.isfile(defaults) else "no spark-defaults.conf"
    click.echo(f"{spark}; {beside}", err=True)


def _why_not(release: str, before: Mapping[str, str]) -> str:
    # without pyspark the manager itself checks the release
    reason = (why_not_with(release) if release else "") or why_no_jar()
    try:
        return reason or _why_off(before) or why_not_beside(before)
    except OptionError as error:
        return str(error)


def _why_off(before: Mapping[str, str]) -> str:
    return f"spark-defaults.conf has {MANAGER}=off. Leave that setting out" if is_off(before) else ""


def _argument(setting: str) -> str:
    """Format a setting for spark-submit. Quotes would not help: in ``$(...)`` the shell splits the output at
    white space and takes quotes literally."""
    if setting.split() == [setting]:
        return f"--conf {setting}"
    raise click.ClickException(
        f"there is white space in {setting}, at which the shell would divide it. Write a file, and give that"
        " to spark-submit: sortshuffle conf --properties > FILE; spark-submit --load-spark-defaults"
        " --properties-file FILE"
    )


def _escaped(text: str) -> str:
    """Escape a setting for a properties file."""
    return text.replace("\\", "\\\\")
