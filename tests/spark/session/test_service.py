"""Which shuffle services an application has, by its settings; their secret; how a task finds its host's."""

from __future__ import annotations

import os
import pickle
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from oracle import confs
from pyspark.sql import SparkSession
from pyspark.sql.functions import col

import sortshuffle
from sortshuffle import frame
from sortshuffle.errors import UsageError, WorkerSetupError
from sortshuffle.homes.directories import LOCAL_DIRS_VARIABLE
from sortshuffle.homes.forgotten_exchanges import read_exchanges
from sortshuffle.options import PREFIX, Options
from sortshuffle.service.client.client_settings import ClientTls
from sortshuffle.service.host import rendezvous, rendezvous_directory
from sortshuffle.spark.manager.settings import SECRET
from sortshuffle.spark.plan import staging
from sortshuffle.spark.rdds import plan as rdd_plan
from sortshuffle.spark.session import service as services
from sortshuffle.spark.session.service import NO_SERVICE, HostService, Mode, ServiceSettings

CLUSTER = {"spark.master": "spark://host:7077", "spark.driver.host": "127.0.0.1"}
AUTHENTICATED = {**CLUSTER, "spark.authenticate": "true", "spark.authenticate.secret": "of Spark"}


def options(**settings: str) -> Options:
    return Options.of({PREFIX + name.replace("_", "."): value for name, value in settings.items()})


EXTERNAL = options(service="external", dir="/data")


@pytest.mark.parametrize(
    ("master", "mode"),
    [
        ("local", Mode.OFF),
        ("local[*]", Mode.OFF),
        ("local[4,2]", Mode.OFF),
        ("local-cluster[2,1,1024]", Mode.AUTO),
        ("spark://host:7077", Mode.AUTO),
        ("yarn", Mode.AUTO),
        ("k8s://https://host", Mode.AUTO),
        ("", Mode.AUTO),
    ],
)
def test_services_are_started_where_the_master_is_not_local(master: str, mode: Mode) -> None:
    assert ServiceSettings.of(Options(), "app", {"spark.master": master}).mode is mode


def test_options_say_otherwise() -> None:
    assert ServiceSettings.of(options(service="off"), "app", CLUSTER) == NO_SERVICE
    assert ServiceSettings.of(EXTERNAL, "app", CLUSTER).mode is Mode.EXTERNAL
    assert ServiceSettings.of(EXTERNAL, "app", {"spark.master": "local[2]"}).mode is Mode.EXTERNAL


@pytest.mark.parametrize("url", ["s3://bucket/x", "file:///mount", "memory://x"])
def test_storage_that_every_host_sees_needs_none(url: str) -> None:
    assert ServiceSettings.of(options(dir=url), "app", CLUSTER) == NO_SERVICE
    assert ServiceSettings.of(options(dir=url, service="external"), "app", CLUSTER) == NO_SERVICE


def test_a_random_secret_is_made_once_for_each_application() -> None:
    first, again = (ServiceSettings.of(Options(), "app-1", CLUSTER) for _ in range(2))
    assert first == again
    assert len(first.secret) == 32
    assert ServiceSettings.of(Options(), "app-2", CLUSTER).secret != first.secret
    assert first.secret.hex() not in repr(first)
    assert repr(first.secret) not in repr(HostService(Options(), "app-1", first))


@pytest.mark.parametrize("master", ["local[2]", "spark://host:7077"])
def test_the_key_of_files_is_made_once_for_each_application(master: str) -> None:
    conf = {**CLUSTER, "spark.master": master, "spark.io.encryption.enabled": "true"}
    first, again = (ServiceSettings.of(Options(), "app-1", conf) for _ in range(2))
    assert first.key is not None
    assert first == again
    assert len(first.key.secret) == 32
    assert first.key.secret != first.secret
    assert ServiceSettings.of(Options(), "app-2", conf).key != first.key
    assert (
        ServiceSettings.of(Options(), "app-1", {**conf, "spark.io.encryption.enabled": "false"}).key is None
    )
    service: HostService = pickle.loads(pickle.dumps(HostService(Options(), "app-1", first)))
    assert service.settings.key == first.key
    assert repr(first.key.secret) not in repr(service)
    assert ServiceSettings.of(options(dir="s3://bucket/x"), "app-1", conf) == replace(
        NO_SERVICE, key=first.key
    )


def test_where_the_driver_cannot_encrypt_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.kdf.hkdf", None)
    with pytest.raises(
        WorkerSetupError, match="lacks the package cryptography, by which files are encrypted"
    ):
        ServiceSettings.of(Options(), "app-3", {**CLUSTER, "spark.io.encryption.enabled": "true"})
    assert ServiceSettings.of(Options(), "app-3", CLUSTER).key is None


def test_spark_s_own_secret_is_taken_from_where_spark_puts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ServiceSettings.of(Options(), "app", AUTHENTICATED)
    assert (settings.secret, settings.of_spark) == (b"", True)  # it does not travel
    monkeypatch.setenv("_SPARK_AUTH_SECRET", "of Spark")
    assert HostService(Options(), "app", settings).secret == b"of Spark"
    monkeypatch.delenv("_SPARK_AUTH_SECRET")
    with pytest.raises(WorkerSetupError, match=r"_SPARK_AUTH_SECRET.*service\.secret\.file"):
        _ = HostService(Options(), "app", settings).secret


def test_where_spark_keeps_its_secret_elsewhere_a_random_one_is_made() -> None:
    conf = {**CLUSTER, "spark.authenticate": "true"}
    settings = ServiceSettings.of(Options(), "app", conf)
    assert (len(settings.secret), settings.of_spark) == (32, False)


def test_where_the_shuffle_manager_is_on_its_secret_is_everybodys() -> None:
    """So its engines and these services are one process for each host."""
    conf = {**CLUSTER, SECRET: "0a0b0c"}
    settings = ServiceSettings.of(Options(), "app", conf)
    assert (settings.secret, settings.of_spark) == (b"\x0a\x0b\x0c", False)
    authenticated = ServiceSettings.of(Options(), "app", {**AUTHENTICATED, SECRET: "0a0b0c"})
    assert (authenticated.secret, authenticated.of_spark) == (b"\x0a\x0b\x0c", False)
    from_file = ServiceSettings.of(options(service_secret_file="/secret"), "app", conf)
    assert (from_file.secret, from_file.of_spark) == (b"\x0a\x0b\x0c", False), "it says where they meet"
    assert ServiceSettings.of(EXTERNAL, "app", conf).secret == b""


def test_a_file_comes_first(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("0123456789abcdef\n")
    path.chmod(0o600)
    chosen = options(service_secret_file=str(path))
    settings = ServiceSettings.of(chosen, "app", AUTHENTICATED)
    assert (settings.secret, settings.of_spark) == (b"", False)
    assert HostService(chosen, "app", settings).secret == b"0123456789abcdef"
    path.chmod(0o640)
    with pytest.raises(UsageError, match="others may read it: chmod 600"):
        _ = HostService(chosen, "app", settings).secret


def test_external_services_without_a_secret_are_not_given_a_random_one() -> None:
    service = HostService(EXTERNAL, "app", ServiceSettings.of(EXTERNAL, "app", CLUSTER))
    assert service.secret == b""
    assert service.client_settings(5).secret is None


def test_clients_are_told_what_the_options_say() -> None:
    pem = {f"service_tls_{name}": f"/{name}" for name in ("certificate", "key", "authority")}
    chosen = options(service_timeout="7s", **pem)
    service = HostService(chosen, "app", ServiceSettings.of(chosen, "app", CLUSTER))
    told = service.client_settings(5)
    assert (told.secret, told.timeout, told.floating_bytes) == (service.settings.secret, 7.0, 5)
    assert told.tls == ClientTls("/authority")
    assert service.client_settings(0, 0.5).timeout == 0.5


@pytest.fixture
def executor(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """This process as an executor's worker on 127.0.0.1; what it starts ends with the test. In a directory
    with a short path, which a Unix socket needs."""
    with tempfile.TemporaryDirectory(prefix="sockets-", ignore_cleanup_errors=True) as made:
        monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        monkeypatch.setenv(LOCAL_DIRS_VARIABLE, f"{made}/a,{made}/b")
        monkeypatch.setattr(rendezvous_directory, "own_directory", lambda: f"{made}/own")
        yield Path(made)
        for process in rendezvous._started:
            process.kill()
            process.wait()
    rendezvous._started.clear()
    rendezvous._found.clear()
    rendezvous._registered.clear()


def service_of(application: str) -> HostService:
    """As it arrives in a task."""
    options = Options()
    settings = ServiceSettings.of(options, application, CLUSTER)
    arrived: HostService = pickle.loads(pickle.dumps(HostService(options, application, settings)))
    return arrived


def test_the_address_is_that_of_a_service_that_serves_the_executors_directories(executor: Path) -> None:
    service = service_of("app")
    address = service.address()
    assert address.startswith("127.0.0.1:")
    assert service_of("app").address() == address
    (directory,) = (path for path in (executor / "own").iterdir() if path.is_dir())
    assert directory.name.startswith("app-127.0.0.1-")
    (registered,) = rendezvous.registrations(str(directory))
    assert registered.roots == (f"{executor}/a", f"{executor}/b")
    assert registered.owner.application == "app"


def test_a_task_that_only_reads_starts_none_but_revives_one(executor: Path) -> None:
    service = service_of("app")
    service.revive()
    assert not (executor / "own").exists()
    address = service.address()
    (process,) = rendezvous._started
    process.kill()
    process.wait()
    service.revive()
    assert len(rendezvous._started) == 1
    assert rendezvous._started[0].pid != process.pid
    assert service.address() == address


def test_external_services_have_one_port_on_all_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.3")
    settings = ServiceSettings(Mode.EXTERNAL, adopts=True, hosts=("127.0.0.4", "::1"))
    service = HostService(EXTERNAL, "app", settings)
    assert service.address() == "127.0.0.3:7448"
    assert service.other_addresses() == ("127.0.0.4:7448", "[::1]:7448")


def test_word_is_left_for_each_driver(tmp_path: Path) -> None:
    """Two Python processes that drive one SparkContext share its workers."""
    settings = ServiceSettings(Mode.EXTERNAL, forgotten=(1, 2))
    for driver in (b"\x0a", b"\x0b"):
        HostService(EXTERNAL, "app", replace(settings, driver=driver)).report_forgotten(str(tmp_path))
    assert read_exchanges(str(tmp_path)) == {("0a", 1), ("0a", 2), ("0b", 1), ("0b", 2)}


def test_without_services_there_is_no_address() -> None:
    service = HostService(Options(), "app", NO_SERVICE)
    assert (service.is_on, service.address()) == (False, "")
    service.revive()


def test_a_forked_driver_has_another_name(spark: SparkSession) -> None:
    """It counts its exchanges on from where the first one was, and so do its brothers."""
    planned = ServiceSettings.of(EXTERNAL, "app", CLUSTER).for_stage(spark.sparkContext, lambda: False)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.write(writing, services.driver_name(os.getpid()))
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert planned.driver != os.read(reading, 16) != b""
    os.close(reading)
    os.close(writing)


def test_only_external_services_are_asked_for_what_lost_executors_had_finished(spark: SparkSession) -> None:
    context = spark.sparkContext
    external = ServiceSettings.of(EXTERNAL, "app", CLUSTER)
    assert external.for_stage(context, lambda: False).adopts
    assert external.for_stage(context, lambda: False).hosts == ()  # there is only the driver
    assert not external.for_stage(None, lambda: False).adopts
    assert len(external.for_stage(context, lambda: False).driver) == 16
    assert (
        external.for_stage(context, lambda: False).driver == external.for_stage(context, lambda: False).driver
    )
    auto = ServiceSettings.of(Options(), "app", CLUSTER)
    assert auto.for_stage(context, lambda: False) is auto


@pytest.mark.parametrize("kind", ["frame", "rdd"])
def test_in_an_indeterminate_stage_nothing_is_adopted(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Spark runs all of its tasks again, with other rows. That a stage reads a shuffle, whose rows come in
    any order, does not matter."""
    noted: list[bool] = []
    settings = {
        f"{PREFIX}service": "external",
        f"{PREFIX}dir": str(tmp_path),
        "spark.sql.execution.sortBeforeRepartition": "false",
    }

    def note(*fields: Any, **named: Any) -> Any:
        noted.extend(field.adopts for field in fields if isinstance(field, ServiceSettings))
        return made(*fields, **named)

    module = staging if kind == "frame" else rdd_plan
    stage = "Stage" if kind == "frame" else "RecordStage"
    made = getattr(module, stage)
    monkeypatch.setattr(module, stage, note)
    with confs(spark, settings):
        if kind == "frame":
            shuffled = spark.range(100).groupBy((col("id") % 7).alias("id")).count()
            for rows in (spark.range(100), shuffled, shuffled.repartition(4)):
                frame(rows).repartition(2, "id").toDF()
        else:
            numbers = spark.sparkContext.parallelize([(n, n) for n in range(100)], 3)
            shuffled_pairs = numbers.groupByKey(5)
            for pairs in (numbers, shuffled_pairs, shuffled_pairs.repartition(4)):
                sortshuffle.rdd(pairs).partitionBy(2).toRDD()
    assert [noted[at] for at in (0, 2, 4)] == [True, True, False]
