"""Shared homes: where map outputs lie that belong to an application and a host, not to an executor.

    <root>/sortshuffle/<application>/shared-<boot>-<token>/     on each host
    <URL>/<application>-<token>/                                on storage that every host sees

They hold the shuffle manager's map outputs, which the engine of the host writes. These outlive the executors,
and are removed when Spark unregisters their shuffle, or with the application: the process that ends the
host's service removes the home (`service.host.rendezvous`). The home at a URL belongs to the application on
all hosts, so only the driver's host removes it.

Rules
* ``token`` is random and unique to an application, and ``boot`` to one run of a system. So two applications
  with the same id, two containers, or a machine before and after a restart never share a home.
* At the URL of a mounted directory only the driver makes the home. A host that does not see it has not
  mounted that directory: its engine writes nothing, and reports no loss (`expect_stored_home`).
* The directory that Spark makes for an application, and removes with it, is never made here: its presence
  would mean for ever that the application lives. Once such a directory is gone, no home is made in it.
* The owner of a home is the process that keeps the service running. It may be killed while the application
  lives. So `sortshuffle clean` removes a home only if the executors and the driver that registered have
  ended, too. The janitors do not look at it. The home at a URL has no owner.

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
    """Return an application's home below a root. ``boot``: the run of the system (`processes.boot_id`)."""
    shown = boot.replace("-", "")[:_SHOWN] or "unknown"
    return os.path.join(root, HOME_ROOT, application, f"{PREFIX}{shown}-{token}")


def stored_home(url: str, application: str, token: str) -> str:
    """Return an application's home directly below a URL, where `sortshuffle clean` finds it."""
    return application_url(url, stored_name(application, token))


def make_stored_home(home: str) -> None:
    """Make the home at a URL, if that is a mounted directory, for this user only. For the driver's host.
    Raises OSError."""
    path = mounted_path(home)
    if path is not None:
        with store_errors("making the application's directory", home):
            make_private(path)


def expect_stored_home(home: str) -> None:
    """Raise OSError if the home at a URL is in a mounted directory, and this host does not see the home."""
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
    """Return whether a directory is named like a shared home."""
    return os.path.basename(home).startswith(PREFIX)


def make_shared_home(home: str, keeper: int, keep: bool, *, makes_root: bool = True) -> None:
    """Make a shared home, for this user only. ``keeper``: the process that keeps the service running.
    ``keep``: finished files stay when the application ends. ``makes_root``: make the root too. Raises
    OSError."""
    if makes_root:
        make_private(home)
    else:
        _make_below_root(home)
    application = os.path.basename(os.path.dirname(home))
    owner = Owner.of_process(keeper, application, local_directories=(), grace=0.0, keep=keep)
    if Owner.read(home) != owner:
        owner.write(home)


def _make_below_root(home: str) -> None:
    """Make the home and the directories above it one by one: the first fails if the root is gone."""
    of_application = os.path.dirname(home)
    for directory in (os.path.dirname(of_application), of_application, home):
        try:
            calls.mkdir(directory, 0o700)
        except FileExistsError:
            pass  # an earlier engine has made it


def remove_shared_home(home: str) -> bool:
    """Remove a shared home with everything in it. Returns whether it is gone."""
    if not is_gone(home):
        remove_home(home)
    return is_gone(home)


def begin_to_remove_stored_home(home: str, left: str) -> subprocess.Popen[bytes]:
    """Start a process that removes the home at a URL. It is not waited for: a store may take minutes, and its
    libraries are large. ``left``: a file for the reason if something is left."""
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
        start_new_session=True,  # it continues when its parent ends
        cwd="/",
    )
