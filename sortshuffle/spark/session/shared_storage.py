"""The application's directory on storage that every host sees. The driver names and removes it.

Its name is the application's id and the driver's random name, because two masters may use one id.

The directory is removed when the application has ended (`session.application_end`), and no task still
writes. A killed driver leaves everything to `sortshuffle clean`, and so does Spark Connect. If one frame has
``spark.sortshuffle.keep``, the files of all frames at the same URL stay.

At exit Python starts no more threads, which asyncio needs to resolve the name of a store. So the driver then
starts another Python to remove the directory, and waits for it.

A forked process has a directory of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import warnings
from dataclasses import replace

from pyspark import SparkContext

from sortshuffle.errors import OptionError, SortShuffleError
from sortshuffle.homes.environment import environment
from sortshuffle.options import PREFIX, Options
from sortshuffle.spark.session.application_end import ApplicationEnd
from sortshuffle.spark.session.service import driver_name
from sortshuffle.storage.files.urls import application_url, mounted_path, stored_name, why_not_shared
from sortshuffle.storage.stored.stored_cleaning import clean_command, remove_remains

EXIT_SECONDS = 300  # for the removal at exit: a store deletes some thousand objects a second

_remains: dict[tuple[str, int], _Remains] = {}
"""By application and process, until its context is stopped. A forked process also has its parent's."""
_lock = threading.Lock()  # of _remains


def note_use(context: SparkContext | None, options: Options, application: str) -> Options:
    """Note that a frame writes to the storage that its options name, if any. Return the options for its
    tasks, which name the directory of this application there. ``context``: None over Connect.

    Raises `OptionError` for a URL of a kind that fsspec does not know, or to which processes cannot write
    together.
    """
    if not options.storage_url:
        return options
    reason = why_not_shared(options.storage_url)
    if reason:
        raise OptionError(f"{PREFIX}dir = {options.storage_url!r} is not allowed: {reason}")
    directory = stored_name(application, driver_name(os.getpid()).hex())
    if context is not None and getattr(context, "_jsc", None) is not None:
        key = application, os.getpid()
        with _lock:
            if key not in _remains:
                _remains[key] = _Remains(application, directory)
                ApplicationEnd.of(context, application).after(_remains[key].remove_all)
            _remains[key].note(options.storage_url, options.keep)
    return replace(options, directories=(application_url(options.storage_url, directory),))


class _Remains:
    """The directories that one process of an application has written to."""

    def __init__(self, application: str, directory: str) -> None:
        self._application = application
        self._directory = directory  # its name, below each URL
        self._kept: dict[str, bool] = {}  # by URL

    def note(self, url: str, keep: bool) -> None:
        self._kept[url] = keep or self._kept.get(url, False)

    def remove_all(self) -> None:
        """Remove those that are not kept."""
        _remains.pop((self._application, os.getpid()), None)
        urls = [url for url, keep in self._kept.items() if not keep]
        self._kept.clear()
        for url in urls:
            self._remove(url)

    def _remove(self, url: str) -> None:
        """Remove the directory below a URL. A failure is only a warning, because the job itself is done."""
        try:
            if threading.main_thread().is_alive() or mounted_path(url) is not None:
                remove_remains(url, self._directory)
                return
            program = [
                sys.executable,
                "-m",
                "sortshuffle.storage.stored.stored_cleaning",
                url,
                self._directory,
            ]
            subprocess.run(
                program,
                check=True,
                timeout=EXIT_SECONDS,
                capture_output=True,
                text=True,
                env=environment(),
            )
        except (OSError, SortShuffleError, subprocess.SubprocessError) as error:
            lines = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
            warnings.warn(
                f"map outputs of {self._application} are left below {url}: {lines[-1]}."
                f" Remove them with: {clean_command(url, self._directory)}",
                RuntimeWarning,
                stacklevel=2,
            )
