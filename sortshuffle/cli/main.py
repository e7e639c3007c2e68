"""The `sortshuffle` command: finds its subcommands and loads only the one that is called.

Rules
* `sortshuffle --help` imports nothing heavier than click. So the summaries are repeated here (tested).
* Errors of the library become one line on standard error, never a traceback. The same holds for a standard
  output that cannot be written to, whichever code prints (`cli.printing`).
"""

from __future__ import annotations

import errno
import os
import sys
from importlib import import_module
from typing import Any

import click

from sortshuffle.cli.printing import CannotPrint, printing
from sortshuffle.errors import SortShuffleError, UsageError
from sortshuffle.version import __version__

SUMMARIES = {
    "clean": "Remove map outputs that no live application owns.",
    "conf": "Print the settings that turn the shuffle manager on.",
    "dump": "Show what map outputs hold, unfinished and damaged ones too.",
    "report": "Write a page on what map outputs hold, and what to change first.",
    "serve": "Serve this host's map outputs to other hosts.",
    "verify": "Check every checksum of map outputs.",
}


class WrongCall(click.ClickException):
    """A wrong call; exits 2."""

    exit_code = 2


class LazyGroup(click.Group):
    """Finds the commands in `SUMMARIES`: each is the function of that name in the module of that name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(SUMMARIES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in SUMMARIES:
            return None
        command = getattr(import_module(f"sortshuffle.cli.{cmd_name}"), cmd_name)
        return command if isinstance(command, click.Command) else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(sorted(SUMMARIES.items()))

    def main(self, *args: Any, **extra: Any) -> Any:
        if sys.stdout is None:  # it was closed before the command began
            refusal = CannotPrint(OSError(errno.EBADF, os.strerror(errno.EBADF)))
            click.echo(f"Error: {refusal.format_message()}", err=True)
            sys.exit(refusal.exit_code)
        with printing():
            return super().main(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except UsageError as error:
            raise WrongCall(str(error)) from None
        except SortShuffleError as error:
            raise click.ClickException(str(error)) from None


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="sortshuffle %(version)s")
def main() -> None:
    """Look into sortshuffle's files, check them, clean up after crashes, serve them to other hosts, and put
    sortshuffle under a whole Spark job.

    Exit codes: 0 all is well, 1 something is wrong with the files, or some cannot be looked at, 2 the
    call is wrong, 3 standard output cannot be written to, 4 a store or a service refuses or does not answer,
    or a store's library is not installed.
    """
    for stream in (sys.stdout, sys.stderr):
        # names and values in files may have any character: a terminal without UTF-8 must not fail on them
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


if __name__ == "__main__":
    main()
