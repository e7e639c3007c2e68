"""The name of this host: in the names of homes, in map outputs, and for other hosts.

The name is an identity, not an address: processes with the same name find the files of a map output by their
path. Spark's own variables come first. They distinguish executors that act as separate hosts on one machine
(workers with a loopback address each), and reach every Python worker of an executor. (Tried on 4.3: a worker
process started with ``SPARK_LOCAL_IP=127.0.0.2`` passes it to its executors' Python.)

Only the standard library is imported here: the janitor must stay small.
"""

from __future__ import annotations

import os
import socket

from sortshuffle import calls

NAME_VARIABLE = "SPARK_LOCAL_HOSTNAME"
ADDRESS_VARIABLE = "SPARK_LOCAL_IP"


def host_name() -> str:
    """Return the name that this process uses for its host."""
    return named_by_spark() or socket.gethostname()


def named_by_spark() -> str:
    """Return this host's name or address from Spark's environment variables; empty if there is none."""
    return os.environ.get(NAME_VARIABLE) or os.environ.get(ADDRESS_VARIABLE) or ""


def is_this_host(name: str) -> bool:
    """Return whether this is a name or an address of the machine or container that this process runs in."""
    return name in (host_name(), socket.gethostname()) or _is_own_address(name)


def _is_own_address(text: str) -> bool:
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, text)
            with calls.new_socket(family, socket.SOCK_DGRAM) as probe:
                calls.bind(probe, (text, 0))
        except (OSError, ValueError):
            continue
        return True
    return False
