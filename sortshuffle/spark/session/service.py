"""Which shuffle services an application has, and how its tasks get at them.

    driver      `ServiceSettings.of`: on or off, and the secret; travels in every stage
    task        `HostService`: the address of this host's service, which the first task that writes starts

    mode        on each host                               secret
    off         none: all hosts see the same files
    auto        one of this application's (`rendezvous`)   of a file; Spark's own; random, by application
    external    one of the administrator's                 of a file; Spark's own; none

Where the shuffle manager is on, the random secret is the one that its plugin made: then its engines and these
services are one process for each host.

The key of the application's files (``spark.io.encryption.enabled``) is made and travels as the random secret
does. It goes to tasks alone: services forward what is encrypted as it is.

Spark's own secret is taken where ``spark.authenticate`` is on and ``spark.authenticate.secret`` is set. It
does not travel: Spark puts it into the environment of executors, and so of their Python workers. (Tried on
4.3, standalone.) Where it is kept elsewhere (YARN, Kubernetes) the random one travels, as secret as Spark
keeps what it sends.
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
from sortshuffle.errors import UsageError, WorkerSetupError
from sortshuffle.format.encryption import EncryptionKey, why_no_encryption
from sortshuffle.homes.directories import owner_of_homes, roots
from sortshuffle.homes.forgotten import tell
from sortshuffle.options import Options
from sortshuffle.service.host import rendezvous
from sortshuffle.service.host.rendezvous import Registration, ServiceConfig
from sortshuffle.service.wire.address import address_of_host, join_address
from sortshuffle.service.wire.secret import read_secret
from sortshuffle.spark.manager.settings import (
    ENCRYPTION,
    SPARKS_SERVICE,
    is_true,
    manager_secret,
)
from sortshuffle.spark.session.forgotten import forgotten, remember
from sortshuffle.spark.session.requirements import application_of, context_settings, is_local, require_session

if TYPE_CHECKING:
    from sortshuffle.service.client.client_settings import ClientSettings

SPARK_SECRET_VARIABLE = "_SPARK_AUTH_SECRET"
SECRET_BYTES = 32

_secrets: dict[str, bytes] = {}  # random ones, by application; of this driver
_keys: dict[str, EncryptionKey] = {}  # of files, by application; of this driver
_lock = threading.Lock()
# by home and driver, what tasks of this process have left word of there
_told: dict[tuple[str, bytes], frozenset[int]] = {}


class Mode(Enum):
    """Who runs services."""

    OFF = "off"
    AUTO = "auto"
    EXTERNAL = "external"


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """What tasks must know of services beside the options. ``driver_host``: on the way to which a host finds
    its own address. ``secret``: the random one; ``of_spark``: the secret is Spark's own. ``adopts``: a map
    task that runs again asks for its finished output (`adoption`), also on the ``hosts``, of the exchanges of
    this ``driver``. ``served_by_spark``: Spark's external shuffle service has its shuffle files outlive their
    executor (`homes.lifetime`). ``key``: of the application's files; None where they are not
    encrypted. ``forgotten``: exchanges of this driver that Spark has forgotten
    (`homes.forgotten`)."""

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
        """For an application whose SparkContext has this configuration. Raises `WorkerSetupError` where its
        files are to be encrypted and the driver's Python cannot."""
        mode = _mode(options, conf)
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

    def planned(self, context: Any, is_indeterminate: Callable[[], bool]) -> ServiceSettings:
        """For a stage that is planned now. ``context``: the SparkContext, None where there is none.
        ``is_indeterminate``: whether Spark takes it that the stage's input has other rows each time. It then
        runs all of its tasks again if one is lost, and what they had finished before goes with nothing new.
        """
        if self.mode is not Mode.EXTERNAL or context is None:
            return self
        known = replace(self, driver=driver_name(os.getpid()), forgotten=forgotten(context))
        return known if is_indeterminate() else replace(known, adopts=True, hosts=_executor_hosts(context))

    def remember(self, context: Any, exchange: int, rdd: Callable[[], Any]) -> None:
        """An exchange was planned. ``rdd``: makes the JVM's of its control rows."""
        if self.mode is Mode.EXTERNAL and context is not None:
            remember(context, exchange, rdd())


NO_SERVICE = ServiceSettings()


def _mode(options: Options, conf: Mapping[str, str]) -> Mode:
    if options.storage_url:
        return Mode.OFF  # every host reads it
    mode = Mode(options.service)
    if mode is Mode.AUTO and is_local(conf.get("spark.master", "")):
        return Mode.OFF
    return mode


def served_by_spark(conf: Mapping[str, str]) -> bool:
    """Whether Spark's external shuffle service has Spark's shuffle files outlive their executor. Executors of
    a local master are the driver, whose files go with it."""
    return is_true(conf, SPARKS_SERVICE) and not is_local(conf.get("spark.master", ""))


def _uses_sparks_secret(options: Options, conf: Mapping[str, str]) -> bool:
    authenticates = conf.get("spark.authenticate", "").lower() == "true"
    return authenticates and bool(conf.get("spark.authenticate.secret")) and not options.service_secret_file


def _random_secret(application: str) -> bytes:
    with _lock:
        return _secrets.setdefault(application, secrets.token_bytes(SECRET_BYTES))


def key_of_files(application: str) -> EncryptionKey:
    """The key of the files that frames and RDDs of this driver write in an application; made when it is first
    asked for. Raises `WorkerSetupError` where this Python cannot encrypt."""
    missing = why_no_encryption()
    if missing:
        raise WorkerSetupError(f"{ENCRYPTION} is true, and {missing}")
    with _lock:
        if application not in _keys:
            _keys[application] = EncryptionKey(secrets.token_bytes(SECRET_BYTES))
        return _keys[application]


@cache
def driver_name(_: int) -> bytes:
    """The random name of the process with this number among those that drive an application. A forked one
    has another number, and counts its exchanges like the one that it comes from."""
    return secrets.token_bytes(16)


def _executor_hosts(context: Any) -> tuple[str, ...]:
    """The hosts of all executors that there have been so far."""
    found = context._jsc.sc().statusStore().executorList(False)
    executors = [found.apply(at) for at in range(found.size())]
    return tuple(sorted({_host_of(str(each.hostPort())) for each in executors if each.id() != "driver"}))


def _host_of(host_port: str) -> str:
    return host_port.rpartition(":")[0].removeprefix("[").removesuffix("]")


def files_key(spark: Any) -> bytes:
    """The key by which the files of this session's frames and RDDs are encrypted, for whoever is to look into
    them: in hex digits, a line of a file, ``sortshuffle dump --key-file`` takes it. Raises `UsageError` where
    files are not encrypted, `WorkerSetupError` where this Python cannot encrypt."""
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
        """What is shared with the services; empty for nothing. Raises `UsageError` for a file that cannot be
        used, `WorkerSetupError` where Spark's own is not in the environment."""
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
        """How this task talks to services; ``timeout``: seconds, None for that of the options. Raises as
        `secret` does."""
        from sortshuffle.service.client.client_settings import ClientSettings, ClientTls

        _, _, authority = self.options.tls_files
        tls = ClientTls(authority) if authority else None
        return ClientSettings(
            self.secret or None, tls, timeout or self.options.service_timeout, floating_bytes
        )

    def address(self) -> str:
        """Where it listens; it is started if it does not run. Empty if there are no services.

        Raises `ServiceUnavailableError` if it cannot be started.
        """
        if self.settings.mode is Mode.OFF:
            return ""
        if self.settings.mode is Mode.EXTERNAL:
            return join_address(self.host, self.options.service_port)
        return rendezvous.ensure(self._rendezvous, self.host, self._config, self._registration)

    def other_addresses(self) -> tuple[str, ...]:
        """Of the external services on all hosts that had executors when the stage was planned."""
        return tuple(join_address(host, self.options.service_port) for host in self.settings.hosts)

    def tell_forgotten(self, home: str) -> None:
        """Leave word in a home of this task of the exchanges that Spark has forgotten."""
        of_driver = (home, self.settings.driver)  # two that share workers count their exchanges alike
        told = _told.get(of_driver, frozenset())
        if told.issuperset(self.settings.forgotten):
            return
        try:
            tell(home, self.settings.driver.hex(), self.settings.forgotten)
        except OSError:
            return  # a later task tells it again
        _told[of_driver] = told.union(self.settings.forgotten)

    def revive(self) -> None:
        """Start it again if tasks on this host had started one and its supervisor has died."""
        if self.settings.mode is Mode.AUTO and calls.isdir(self._rendezvous):
            self.address()

    @cached_property
    def _registration(self) -> Registration:
        served = self.settings.served_by_spark
        owner = owner_of_homes(self.options, self.application, served)
        return Registration(owner, roots(self.options, served))

    @cached_property
    def _config(self) -> ServiceConfig:
        return rendezvous.config_of(self.secret, self.options)

    @cached_property
    def _rendezvous(self) -> str:
        return rendezvous.directory_of(self.application, self.host, self.settings.secret, self.options)
