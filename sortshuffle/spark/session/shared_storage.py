"""The application's directory on storage that every host sees. The driver names and removes it.

Its name is the application's id and the driver's random name, because two masters may use one id.

The directory is removed when the SparkContext stops (`SparkSession.stop`, ``with``), or when Python exits,
even by an exception. At exit the context is stopped first, so that no task still writes. A killed driver
leaves everything to `sortshuffle clean`. So does Spark Connect, where no client knows the end of the
application. If one frame has ``spark.sortshuffle.keep``, the files of all frames at the same URL stay.

At exit Python starts no more threads, which asyncio needs to resolve the name of a store. So the driver then
starts another Python to remove the directory, and waits for it.

A forked process has a directory of its own. When it exits, it leaves the context to its parent.
"""

from __future__ import annotations

import atexit
import multiprocessing
import multiprocessing.util
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from pyspark import SparkContext

from sortshuffle.errors import OptionError, SortShuffleError
from sortshuffle.homes.environment import environment
from sortshuffle.options import PREFIX, Options
from sortshuffle.spark.session.service import driver_name
from sortshuffle.storage.files.urls import application_url, mounted_path, stored_name, why_not_shared
from sortshuffle.storage.stored.stored_cleaning import clean_command, remove_remains

EXIT_SECONDS = 300  # for the removal at exit: a store deletes some thousand objects a second

_ends: dict[tuple[str, int], _End] = {}
"""By application and process, until its context is stopped. A forked process also has its parent's."""
_lock = threading.Lock()  # of _ends


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
            if key not in _ends:
                _ends[key] = _End(context, application, directory)
            _ends[key].note(options.storage_url, options.keep)
    return replace(options, directories=(application_url(options.storage_url, directory),))


class _End:
    """Removes the directories of one process of an application. Replaces its context's ``stop``."""

    def __init__(self, context: SparkContext, application: str, directory: str) -> None:
        self._application = application
        self._process = os.getpid()
        self._has_parents_context = not _is_made_here(context)
        self._directory = directory  # its name, below each URL
        self._kept: dict[str, bool] = {}  # by URL
        self._stop_context = context.stop
        own: Any = context
        own.stop = self.stop  # Spark's Python has no listener for a context that stops
        self._forget_exit = _at_exit(self._exit)

    def note(self, url: str, keep: bool) -> None:
        self._kept[url] = keep or self._kept.get(url, False)

    def stop(self) -> None:
        """Stop the context, and then remove what this process wrote. Safe to call again."""
        try:
            self._stop_context()
        finally:
            if self._is_own():
                self._remove_all()

    def _exit(self) -> None:
        if not self._is_own():
            return
        if self._has_parents_context:
            self._remove_all()
        else:
            self.stop()

    def _is_own(self) -> bool:
        """Whether this process made this object. A forked process has a copy, and its parent goes on."""
        return self._process == os.getpid()

    def _remove_all(self) -> None:
        self._forget_exit()
        _ends.pop((self._application, self._process), None)
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


def _is_made_here(context: Any) -> bool:
    """Whether this process made the context, and was not forked from the one that did. The context has a
    server for accumulators, whose thread does not outlive a fork."""
    server = getattr(context, "_accumulatorServer", None)
    if server is None:
        return True
    targets = (getattr(thread, "_target", None) for thread in threading.enumerate())
    return server.serve_forever in targets


def _at_exit(function: Callable[[], None]) -> Callable[[], None]:
    """Have a function called when this process exits. Return a function that undoes that."""
    if multiprocessing.parent_process() is None:
        atexit.register(function)
        return partial(atexit.unregister, function)
    # a process of multiprocessing may end without calling what `atexit` knows
    return multiprocessing.util.Finalize(None, function, exitpriority=0).cancel
