"""Addresses of services: where a service listens, and how other hosts reach it.

An address is text, ``host:port``; an IPv6 host stands in brackets. `address_of_host` chooses the address that
Spark uses for its own executors, and so the same network.

This module imports only the standard library: the supervisor must stay small.
"""

from __future__ import annotations

import errno
import ipaddress
import socket

from sortshuffle import calls
from sortshuffle.errors import UsageError
from sortshuffle.homes.host import named_by_spark

# Bytes of a Unix socket's path. The system takes 107 (sockaddr_un), Java one less
LONGEST_PATH = 106
BACKLOG = 1024  # connections that wait to be accepted, while a service starts or restarts
_ANY_PORT = 9  # of the discard service; nothing is sent
_ELSEWHERE = "192.0.2.1"  # reserved for documentation: no machine has it, so the route leaves this machine

_local_addresses: dict[str, str] = {}  # by the driver's host: this host's address on the route to it


def join_address(host: str, port: int) -> str:
    """Return the text of an address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_address(text: str) -> tuple[str, int]:
    """Return the host and port of an address. Raises `UsageError`."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise UsageError(f"{text!r} is not the address of a service: give host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


def address_of_host(driver_host: str) -> str:
    """Return the name or address by which other hosts reach this one: the first that exists of

    * the one in Spark's environment variables (SPARK_LOCAL_HOSTNAME, SPARK_LOCAL_IP)
    * this host's address on the route to ``driver_host`` (``spark.driver.host``; empty if it is not known)
    * the address of this host's own name
    """
    return named_by_spark() or _on_route_to(driver_host) or _of_own_name()


def is_loopback(address: str) -> bool:
    """Return whether only this host can reach this address. ``address``: numeric; an IPv6 address may name an
    interface, or be a mapped IPv4 address."""
    found = ipaddress.ip_address(address.partition("%")[0])
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return (mapped or found).is_loopback


def listen_on(host: str, port: int) -> socket.socket:
    """Return a socket that listens there, for the caller to close. ``port``: 0 for any. Raises OSError."""
    family, _, _, _, address = calls.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listening = calls.new_socket(family, socket.SOCK_STREAM)
    try:
        calls.setsockopt(listening, socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        calls.bind(listening, address)
        calls.listen(listening, BACKLOG)
    except BaseException:
        listening.close()
        raise
    return listening


def listen_on_path(path: str) -> socket.socket:
    """Return a Unix socket that listens at the path, for the caller to close. It replaces an older one. Only
    this user may use the directory. Raises OSError, or `UsageError` for a path that is too long."""
    if len(path.encode()) > LONGEST_PATH:
        raise UsageError(
            f"{path} is too long for a Unix socket, which takes {LONGEST_PATH} bytes: set TMPDIR to a shorter"
            " directory in the executors' environment (spark.executorEnv.TMPDIR), and in the driver's"
        )
    listening = calls.new_socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        try:
            calls.unlink(path)
        except FileNotFoundError:
            pass
        calls.bind(listening, path)
        calls.chmod(path, 0o600)
        calls.listen(listening, BACKLOG)
    except BaseException:
        listening.close()
        raise
    return listening


def listen_at_host(host: str, port: int) -> socket.socket:
    """Return a socket as `listen_on` does, for other hosts that use the name ``host``. If the name's address
    is not this machine's, listen at all addresses. If the port is in use, listen on another one."""
    try:
        return _listen_for(host, port)
    except OSError as error:
        if port and error.errno == errno.EADDRINUSE:
            return _listen_for(host, 0)
        raise


def _listen_for(host: str, port: int) -> socket.socket:
    try:
        return listen_on(host, port)
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror):
            return listen_on("0.0.0.0", port)
        raise


def _on_route_to(driver_host: str) -> str:
    """Return this host's address on the route to the driver; empty if there is none. Determined once per
    process: every task asks, and a name may take long to resolve."""
    if driver_host and driver_host not in _local_addresses:
        found = _local_address(driver_host)
        if _is_loopback_text(found) and not _is_loopback_text(driver_host):
            # on the driver's own machine its name often resolves to 127.0.1.1
            found = _local_address(_ELSEWHERE) or found
        if found:
            _local_addresses[driver_host] = found
    return _local_addresses.get(driver_host, "")


def _local_address(host: str) -> str:
    """Return this host's address on the route to another host; empty if there is none."""
    try:
        found = calls.getaddrinfo(host, _ANY_PORT, type=socket.SOCK_DGRAM)
        with calls.new_socket(found[0][0], socket.SOCK_DGRAM) as probe:
            calls.connect(probe, found[0][4])  # sends nothing: the system only chooses the route
            return str(probe.getsockname()[0])
    except OSError:
        return ""


def _is_loopback_text(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")


def _of_own_name() -> str:
    name = socket.gethostname()
    try:
        return calls.gethostbyname(name)
    except OSError:
        return name
