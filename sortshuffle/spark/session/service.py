"""The shuffle services of an application, from the driver's and from a task's side.

    driver      `ServiceSettings`: mode and secret; sent with every stage
    task        `HostService`: the address of this host's service; the first task that writes starts it

    mode        service on each host                       secret: the first of these that exists
    off         none: all hosts see the same files
    auto        the application's own (`rendezvous`)       from a file; Spark's own; random, by application
    external    the administrator's                        from a file; Spark's own; none

If the shuffle manager is on, its plugin has made the random secret, and on each host one process is both the
manager's engine and this service.

The key of the application's files (``spark.io.encryption.enabled``) is made and sent like the random secret.
Only tasks get it: services forward encrypted data unchanged.

Spark's own secret is used if ``spark.authenticate`` is on and ``spark.authenticate.secret`` is set. It is not
sent: Spark puts it into the environment of executors, and so of their Python workers (tried on 4.3,
standalone). If Spark keeps it elsewhere (YARN, Kubernetes), the random secret is sent, and is then as safe as
everything else that Spark sends.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

from sortshuffle import calls
from sortshuffle.errors import UnsupportedError, UsageError, WorkerSetupError
from sortshuffle.format.encryption import EncryptionKey, why_no_encryption
from sortshuffle.homes.directories import owner_of_homes, roots
from sortshuffle.homes.forgotten_exchanges import record_exchanges
from sortshuffle.options import Options
from sortshuffle.service.host import rendezvous
from sortshuffle.service.host.registration import Registration
from sortshuffle.service.host.rendezvous_directory import directory_of
from sortshuffle.service.host.service_config import ServiceConfig
from sortshuffle.service.wire.address import address_of_host, join_address
from sortshuffle.service.wire.secret import read_secret
from sortshuffle.spark.manager.settings import (
    ENCRYPTION,
    SPARKS_SERVICE,
    is_local,
    is_true,
    manager_secret,
    why_unencrypted,
)
from sortshuffle.spark.session.forgotten_exchanges import forgotten, remember
from sortshuffle.spark.session.requirements import application_of, context_settings, require_session

if TYPE_CHECKING:
    from sortshuffle.service.client.client_settings import ClientSettings

SPARK_SECRET_VARIABLE = "_SPARK_AUTH_SECRET"
SECRET_BYTES = 32

_secrets: dict[str, bytes] = {}  # this driver's random secrets, by application
_keys: dict[str, EncryptionKey] = {}  # this driver's keys of files, by application
_lock = threading.Lock()
# the forgotten exchanges that tasks of this process have recorded, by home and driver
_noted: dict[tuple[str, bytes], frozenset[int]] = {}


class Mode(Enum):
    """Who starts the services."""

    OFF = "off"
    AUTO = "auto"
    EXTERNAL = "external"


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """What tasks know of services, besides the options.

    ``driver_host``: hosts find their own address by their route to it. ``secret``: the random secret.
    ``of_spark``: use Spark's own secret. ``adopts``: a map task that runs again looks for its finished
    outputs (`worker.adoption`), also on ``hosts``; ``driver`` tells apart exchanges of one number.
    ``served_by_spark``: Spark's shuffle files outlive their executor, in Spark's external shuffle service
    (`homes.lifetime`). ``key``: of the application's files; None if they are not encrypted. ``forgotten``:
    exchanges that Spark has forgotten (`homes.forgotten_exchanges`)."""

    mode: Mode = Mode.OFF
    driver_host: str = ""
    secret: bytes = field(default=b"", repr=False)
    of_spark: bool = False
    adopts: bool = False
    hosts: tuple[str, ...] = ()
    driver: bytes = b""
    served_by_spark: bool = False
    key: EncryptionKey | None = field(default=None, repr=False)
    forgotten: tuple[int, ...] = ()

    @staticmethod
    def of(options: Options, application: str, conf: Mapping[str, str]) -> ServiceSettings:
        """Return the settings of an application whose SparkContext has this configuration. Raises
        `WorkerSetupError` if its files must be encrypted and the driver's Python cannot do that,
        `UnsupportedError` if Spark encrypts what crosses the network, and services would not."""
        mode = _mode(options, conf)
        unencrypted = why_unencrypted(conf, options) if mode is not Mode.OFF else ""
        if unencrypted:
            raise UnsupportedError(unencrypted)
        served = served_by_spark(conf) and not options.storage_url
        key = key_of_files(application) if is_true(conf, ENCRYPTION) else None
        if mode is Mode.OFF:
            return replace(NO_SERVICE, served_by_spark=served, key=key)
        is_auto = mode is Mode.AUTO
        managers = manager_secret(conf) if is_auto else b""
        of_spark = not managers and _uses_sparks_secret(options, conf)
        random = is_auto and not of_spark and not options.service_secret_file
        secret = managers or (_random_secret(application) if random else b"")
        driver_host = conf.get("spark.driver.host", "")
        return ServiceSettings(mode, driver_host, secret, of_spark, served_by_spark=served, key=key)

    def for_stage(self, context: Any, is_indeterminate: Callable[[], bool]) -> ServiceSettings:
        """Return the settings for a stage that is planned now. ``context``: the SparkContext, None if there
        is none. ``is_indeterminate``: whether the stage's input may have other rows each time, by Spark's
        rules; then Spark runs all tasks again if one is lost, and no earlier output may be adopted.
        """
        if self.mode is not Mode.EXTERNAL or context is None:
            return self
        known = replace(self, driver=driver_name(os.getpid()), forgotten=forgotten(context))
        return known if is_indeterminate() else replace(known, adopts=True, hosts=_executor_hosts(context))

    def remember(self, context: Any, exchange: int, shuffle: Callable[[], int | None]) -> None:
        """Note that an exchange was planned. ``shuffle``: returns the number of Spark's shuffle that moves
        its control rows."""
        if self.mode is Mode.EXTERNAL and context is not None and (number := shuffle()) is not None:
            remember(context, exchange, number)


NO_SERVICE = ServiceSettings()


def _mode(options: Options, conf: Mapping[str, str]) -> Mode:
    if options.storage_url:
        return Mode.OFF  # every host reads the storage itself
    mode = Mode(options.service)
    if mode is Mode.AUTO and is_local(conf.get("spark.master", "")):
        return Mode.OFF
    return mode


def served_by_spark(conf: Mapping[str, str]) -> bool:
    """Return whether Spark's shuffle files outlive their executor, in Spark's external shuffle service. With
    a local master they never do: the executor is the driver."""
    return is_true(conf, SPARKS_SERVICE) and not is_local(conf.get("spark.master", ""))


def _uses_sparks_secret(options: Options, conf: Mapping[str, str]) -> bool:
    authenticates = conf.get("spark.authenticate", "").lower() == "true"
    return authenticates and bool(conf.get("spark.authenticate.secret")) and not options.service_secret_file


def _random_secret(application: str) -> bytes:
    with _lock:
        return _secrets.setdefault(application, secrets.token_bytes(SECRET_BYTES))


def key_of_files(application: str) -> EncryptionKey:
    """Return the key of the files that this driver's frames and RDDs write in an application. The first call
    makes it. Raises `WorkerSetupError` if this Python cannot encrypt."""
    missing = why_no_encryption()
    if missing:
        raise WorkerSetupError(f"{ENCRYPTION} is true, and {missing}")
    with _lock:
        if application not in _keys:
            _keys[application] = EncryptionKey(secrets.token_bytes(SECRET_BYTES))
        return _keys[application]


@cache
def driver_name(_: int) -> bytes:
    """Return the random name of this driver process. The argument is its process id: a forked process needs
    another name, because it goes on numbering exchanges from the same number."""
    return secrets.token_bytes(16)


def _executor_hosts(context: Any) -> tuple[str, ...]:
    """Return the hosts of all executors so far, including ended ones."""
    found = context._jsc.sc().statusStore().executorList(False)
    executors = [found.apply(at) for at in range(found.size())]
    return tuple(sorted({_host_of(str(each.hostPort())) for each in executors if each.id() != "driver"}))


def _host_of(host_port: str) -> str:
    return host_port.rpartition(":")[0].removeprefix("[").removesuffix("]")


def files_key(spark: Any) -> bytes:
    """Return the key of the files of this session's frames and RDDs. With a file that holds its hex digits,
    ``sortshuffle dump --key-file`` shows rows. Raises `UsageError` if files are not encrypted,
    `WorkerSetupError` if this Python cannot encrypt."""
    session = require_session(spark)
    if not is_true(context_settings(session), ENCRYPTION):
        raise UsageError(f"{ENCRYPTION} is not true: files are not encrypted, and have no key")
    return key_of_files(application_of(session)).secret


# --- in a task ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HostService:
    """The service of the host that this task runs on."""

    options: Options
    application: str
    settings: ServiceSettings

    @property
    def is_on(self) -> bool:
        return self.settings.mode is not Mode.OFF

    @cached_property
    def host(self) -> str:
        """The name or address by which other hosts reach this one."""
        return address_of_host(self.settings.driver_host)

    @cached_property
    def secret(self) -> bytes:
        """The secret shared with the services; empty if there is none. Raises `UsageError` for an unusable
        file, `WorkerSetupError` if Spark's own secret is not in the environment."""
        if self.options.service_secret_file:
            return read_secret(self.options.service_secret_file)
        if not self.settings.of_spark:
            return self.settings.secret
        found = os.environ.get(SPARK_SECRET_VARIABLE, "")
        if not found:
            raise WorkerSetupError(
                f"spark.authenticate is on, but Spark's secret is not in this worker's environment"
                f" ({SPARK_SECRET_VARIABLE}): name a file with a secret for the shuffle services on every"
                " host, spark.sortshuffle.service.secret.file"
            )
        return found.encode()

    def client_settings(self, floating_bytes: int, timeout: float | None = None) -> ClientSettings:
        """Return the settings of this task's client. ``timeout``: seconds, None for that of the options.
        Raises as `secret` does."""
        from sortshuffle.service.client.client_settings import ClientSettings, ClientTls

        _, _, authority = self.options.tls_files
        tls = ClientTls(authority) if authority else None
        return ClientSettings(
            self.secret or None, tls, timeout or self.options.service_timeout, floating_bytes
        )

    def address(self) -> str:
        """Return the service's address; empty if there are no services. In mode auto, start the service if it
        does not run. Raises `ServiceUnavailableError` if it cannot be started."""
        if self.settings.mode is Mode.OFF:
            return ""
        if self.settings.mode is Mode.EXTERNAL:
            return join_address(self.host, self.options.service_port)
        return rendezvous.ensure(self._rendezvous, self.host, self._config, self._registration)

    def other_addresses(self) -> tuple[str, ...]:
        """Return addresses of external services on hosts that had executors when the stage was planned."""
        return tuple(join_address(host, self.options.service_port) for host in self.settings.hosts)

    def report_forgotten(self, home: str) -> None:
        """Record in a home of this task which exchanges Spark has forgotten."""
        of_driver = (home, self.settings.driver)  # two drivers that share workers number exchanges alike
        noted = _noted.get(of_driver, frozenset())
        if noted.issuperset(self.settings.forgotten):
            return
        try:
            record_exchanges(home, self.settings.driver.hex(), self.settings.forgotten)
        except OSError:
            return  # a later task tries again
        _noted[of_driver] = noted.union(self.settings.forgotten)

    def revive(self) -> None:
        """Start the service again if tasks on this host had started it and its supervisor has died."""
        if self.settings.mode is Mode.AUTO and calls.isdir(self._rendezvous):
            self.address()

    @cached_property
    def _registration(self) -> Registration:
        served = self.settings.served_by_spark
        owner = owner_of_homes(self.options, self.application, served)
        return Registration(owner, roots(self.options, served))

    @cached_property
    def _config(self) -> ServiceConfig:
        return ServiceConfig.of(self.secret, self.options)

    @cached_property
    def _rendezvous(self) -> str:
        return directory_of(self.application, self.host, self.settings.secret, self.options)
