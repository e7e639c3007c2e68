"""Shared homes: where map outputs lie that belong to an application and a host, not to an executor.

    <root>/sortshuffle/<application>/shared-<boot>-<token>/     on each host
    <URL>/<application>-<token>/                                on storage that every host sees

The shuffle manager's map outputs lie there, written by the engine of the host. They outlive the executors,
and are removed when Spark unregisters their shuffle, or with the application: the process that ends the
host's service removes the home (`service.host.rendezvous`). The home at a URL is the whole application's, so
only the driver's host removes it.

Rules
* ``token`` is random and one application's, and ``boot`` is one run of one system. So two applications of one
  id, two containers, or a machine that was restarted never share a home.
* Only the driver makes the home at a URL of a directory that all hosts have mounted. A host where it is
  missing has not mounted the directory, or has mounted another one: its engine writes nothing, and reports no
  loss (`expect_stored_home`).
* The directory that Spark makes for an application, and removes with it, is never made here: it would say for
  ever that the application lives. A home whose root is such a directory, and is gone, stays gone.
* Its owner is the process that keeps the service running. `sortshuffle clean` removes a home whose owner has
  ended; the janitors do not look at it. The home at a URL has no owner.

Only the standard library is imported here: the supervisor must stay small.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys

from sortshuffle import calls
from sortshuffle.homes.environment import environment
from sortshuffle.homes.host import host_name
from sortshuffle.homes.lifetime import remove_home
from sortshuffle.homes.owner import HOME_ROOT, Owner
from sortshuffle.storage.files.presence import is_gone
from sortshuffle.storage.files.private import make_private
from sortshuffle.storage.files.urls import (
    application_url,
    mounted_path,
    root_and_application,
    store_error,
    store_errors,
    stored_name,
)

PREFIX = "shared-"
_SHOWN = 8  # characters of the boot id in the name; the token is what makes it unique


def shared_home(root: str, application: str, boot: str, token: str) -> str:
    """The home of an application below a root. ``boot``: the run of the system (`processes.boot_id`)."""
    shown = boot.replace("-", "")[:_SHOWN] or "unknown"
    return os.path.join(root, HOME_ROOT, application, f"{PREFIX}{shown}-{token}")


def stored_home(url: str, application: str, token: str) -> str:
    """The home of an application directly below a URL, where `sortshuffle clean` finds it as an application's
    directory."""
    return application_url(url, stored_name(application, token))


def make_stored_home(home: str) -> None:
    """Make the home at a URL, where that is a mounted directory, for this user only. For the driver's host.
    Raises OSError."""
    path = mounted_path(home)
    if path is not None:
        with store_errors("making the application's directory", home):
            make_private(path)


def expect_stored_home(home: str) -> None:
    """Raises OSError where the home at a URL is in a mounted directory, and the driver's is not seen here."""
    path = mounted_path(home)
    if path is None:
        return
    try:
        calls.stat(path)
    except FileNotFoundError:
        what = (
            f"the driver has made this directory, and host {host_name()} does not see it. Mount the same"
            " storage at the same path on the driver's host and on all others. If it was there before,"
            " somebody has removed it: start the application again"
        )
        raise OSError(errno.ENODEV, what, home) from None
    except OSError as error:
        raise store_error("looking for the application's directory", home, error) from error


def is_shared(home: str) -> bool:
    """Whether a directory is named like a shared home."""
    return os.path.basename(home).startswith(PREFIX)


def make_shared_home(home: str, keeper: int, keep: bool, *, makes_root: bool = True) -> None:
    """Make it, for this user only. ``keeper``: the process that keeps the service running. ``keep``: finished
    files stay when the application ends. ``makes_root``: make its root too. Raises OSError."""
    if makes_root:
        make_private(home)
    else:
        _make_below_root(home)
    application = os.path.basename(os.path.dirname(home))
    owner = Owner.of_process(keeper, application, local_directories=(), grace=0.0, keep=keep)
    if Owner.read(home) != owner:
        owner.write(home)


def _make_below_root(home: str) -> None:
    """Make one directory after the other: the first one fails where the root is gone."""
    of_application = os.path.dirname(home)
    for directory in (os.path.dirname(of_application), of_application, home):
        try:
            calls.mkdir(directory, 0o700)
        except FileExistsError:
            pass  # an engine before this one has made it


def remove_shared_home(home: str) -> bool:
    """Remove it with everything in it. Returns whether it is gone."""
    if not is_gone(home):
        remove_home(home)
    return is_gone(home)


def begin_to_remove_stored_home(home: str, left: str) -> subprocess.Popen[bytes]:
    """Remove the home at a URL, in a process of its own, for which no caller waits: a store may take minutes,
    and its libraries are large. ``left``: a file, which gets the reason if something is left."""
    return calls.Popen(
        [
            sys.executable,
            "-m",
            "sortshuffle.storage.stored.stored_cleaning",
            *root_and_application(home),
            left,
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment(),
        start_new_session=True,  # it goes on when its parent ends
        cwd="/",
    )
