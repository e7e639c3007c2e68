"""The settings that turn the manager on, beside those that are there; and who is asked whether it is on."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark import SparkConf
from pyspark.sql import SparkSession

from sortshuffle.errors import UnsupportedError
from sortshuffle.options import Options
from sortshuffle.spark.manager import settings as manager
from sortshuffle.spark.manager.jar import jar_path
from sortshuffle.spark.manager.settings import (
    MANAGER_CLASS,
    NETWORK_ENCRYPTION,
    PLUGIN_CLASS,
    is_on,
    manager_secret,
    manager_settings,
    why_not_beside,
    why_not_with,
    without_manager,
)
from sortshuffle.spark.session.service import HostService, Mode, ServiceSettings

JAR = "/opt/sortshuffle-manager.jar"
OTHER_PLUGIN = "org.other.Plugin"


class Context:
    """As much of a SparkContext as is asked."""

    def __init__(self, **settings: str) -> None:
        self._settings = {key.replace("_", "."): value for key, value in settings.items()}

    def getConf(self) -> SparkConf:
        conf = SparkConf(loadDefaults=False)
        conf.setAll(list(self._settings.items()))
        return conf


def test_without_others_there_is_only_the_manager() -> None:
    assert manager_settings(JAR, "/opt/python", {}) == {
        "spark.shuffle.manager": "org.sortshuffle.SortMergeShuffleManager",
        "spark.plugins": "org.sortshuffle.SortMergeShufflePlugin",
        "spark.jars": JAR,
        "spark.driver.extraClassPath": JAR,
        "spark.sortshuffle.manager.python": "/opt/python",
    }


def test_what_others_have_set_stays() -> None:
    before = {
        "spark.plugins": f"{OTHER_PLUGIN}, org.second.Plugin,",
        "spark.jars": "/a.jar,hdfs:///b.jar",
        "spark.driver.extraClassPath": "/c.jar:/d/*",
        "spark.sortshuffle.manager.python": "python3.12",
        "spark.app.name": "job",
    }
    assert manager_settings(JAR, "/opt/python", before) == {
        "spark.shuffle.manager": MANAGER_CLASS,
        "spark.plugins": f"{OTHER_PLUGIN},org.second.Plugin,{PLUGIN_CLASS}",
        "spark.jars": f"/a.jar,hdfs:///b.jar,{JAR}",
        "spark.driver.extraClassPath": f"{JAR}:/c.jar:/d/*",
        "spark.sortshuffle.manager.python": "python3.12",
    }


@pytest.mark.parametrize(
    "as_spark_has_it",
    [JAR, f"file:{JAR}", f"file://{JAR}", "file:/my%20dir/sortshuffle-manager.jar", f"{JAR},/venv{JAR}"],
)
def test_settings_that_are_there_already_are_not_there_twice(as_spark_has_it: str) -> None:
    once = manager_settings(JAR, "/opt/python", {"spark.plugins": OTHER_PLUGIN})
    assert manager_settings(JAR, "/opt/python", {**once, "spark.jars": as_spark_has_it}) == once


def test_the_manager_of_an_earlier_context_of_the_jvm_is_turned_off_again() -> None:
    on = manager_settings(JAR, "/opt/python", {"spark.plugins": OTHER_PLUGIN})
    sparks = "org.apache.spark.shuffle.sort.SortShuffleManager"
    assert without_manager(on) == {"spark.shuffle.manager": sparks, "spark.plugins": OTHER_PLUGIN}
    assert without_manager({}) == {}
    of_another = {"spark.shuffle.manager": "org.other.Manager", "spark.plugins": OTHER_PLUGIN}
    assert without_manager(of_another) == {}
    for its_own in ("sort", sparks):
        assert without_manager({**on, "spark.shuffle.manager": its_own}) == {"spark.plugins": OTHER_PLUGIN}


@pytest.mark.parametrize(
    ("shuffle_manager", "reason"),
    [
        ("", ""),
        (MANAGER_CLASS, ""),
        ("org.apache.spark.shuffle.sort.SortShuffleManager", ""),  # as `without_manager` has it
        ("sort", "spark.shuffle.manager is sort. Leave that setting out"),
        ("org.other.Manager", "spark.shuffle.manager is org.other.Manager. Leave that setting out"),
    ],
)
def test_another_shuffle_manager_speaks_against_it(shuffle_manager: str, reason: str) -> None:
    assert why_not_beside({"spark.shuffle.manager": shuffle_manager}) == reason


def test_a_context_has_the_manager_if_its_own_configuration_says_so() -> None:
    assert is_on(Context(spark_shuffle_manager=MANAGER_CLASS))
    assert not is_on(Context())
    assert not is_on(Context(spark_shuffle_manager="sort"))
    assert not is_on(Context(spark_shuffle_manager=MANAGER_CLASS, spark_sortshuffle_manager=" OFF"))


def test_what_a_session_claims_does_not_count(spark: SparkSession) -> None:
    if is_on(spark.sparkContext):
        pytest.skip("the session that runs has the manager")
    claimed = SparkSession.builder.config("spark.shuffle.manager", "org.other.Manager").getOrCreate()
    assert claimed.sparkContext is spark.sparkContext
    spark._jsparkSession.sessionState().conf().setConfString("spark.shuffle.manager", MANAGER_CLASS)
    try:
        assert spark.conf.get("spark.shuffle.manager") == MANAGER_CLASS
        assert not is_on(spark.sparkContext)
    finally:
        spark._jsparkSession.sessionState().conf().unsetConf("spark.shuffle.manager")


@pytest.mark.parametrize(
    ("release", "works"),
    [
        ("4.0.2", False),
        ("4.1.0", True),
        ("4.2.1.dev0", True),
        ("4.3.0", True),
        ("4.4.0", False),
        ("4.10.0", False),
        ("5.1.0", False),
        ("3.5.3", False),
    ],
)
def test_releases_of_spark(release: str, works: bool) -> None:
    reason = why_not_with(release)
    assert reason == ("" if works else f"it works with Spark 4.1 to 4.3, and this is Spark {release}")


# --- the secret -----------------------------------------------------------------------------------------


SECRET = bytes(range(32))
CLUSTER = {"spark.master": "spark://host:7077", "spark.driver.host": "127.0.0.1"}
WITH_MANAGER = {**CLUSTER, manager.SECRET: SECRET.hex()}


def test_the_services_of_frames_have_the_secret_of_the_managers_engines() -> None:
    settings = ServiceSettings.of(Options(), "app", WITH_MANAGER)
    assert (settings.mode, settings.secret, settings.of_spark) == (Mode.AUTO, SECRET, False)
    authenticated = {"spark.authenticate": "true", "spark.authenticate.secret": "of Spark"}
    settings = ServiceSettings.of(Options(), "app", {**WITH_MANAGER, **authenticated})
    assert (settings.secret, settings.of_spark) == (SECRET, False)


def test_an_administrators_service_does_not_have_it() -> None:
    external = Options(service="external", directories=("/data",))
    assert ServiceSettings.of(external, "app", WITH_MANAGER).secret == b""


def test_it_tells_engines_apart_also_where_services_share_a_secret_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("0123456789abcdef\n")
    file.chmod(0o600)
    options = Options(service_secret_file=str(file))
    settings = ServiceSettings.of(options, "app", WITH_MANAGER)
    assert settings.secret == manager_secret(WITH_MANAGER) != b""
    assert HostService(options, "app", settings).secret == b"0123456789abcdef"


@pytest.mark.parametrize("hidden", ["", "*********(redacted)"])
def test_a_secret_that_cannot_be_read_is_none(hidden: str) -> None:
    assert manager_secret({manager.SECRET: hidden}) == b""
    assert len(ServiceSettings.of(Options(), "app", {**CLUSTER, manager.SECRET: hidden}).secret) == 32


@pytest.mark.parametrize("key", NETWORK_ENCRYPTION)
def test_services_of_frames_do_not_send_unencrypted_what_spark_would_encrypt(key: str) -> None:
    conf = {**CLUSTER, key: "true"}
    external = Options(service="external", directories=("/data",))
    for options in (Options(), external):
        with pytest.raises(UnsupportedError, match=f"{key} is true, and rows would cross the network"):
            ServiceSettings.of(options, "app", conf)
    tls = Options(
        service_tls_certificate="/certificate", service_tls_key="/key", service_tls_authority="/authority"
    )
    assert ServiceSettings.of(tls, "app", conf).mode is Mode.AUTO
    assert ServiceSettings.of(Options(), "app", {**conf, manager.ENCRYPTION: "true"}).mode is Mode.AUTO
    assert ServiceSettings.of(Options(), "app", {**conf, "spark.master": "local[2]"}).mode is Mode.OFF
    assert ServiceSettings.of(Options(service="off"), "app", conf).mode is Mode.OFF


def test_the_jar_is_beside_the_python_half() -> None:
    assert jar_path() == manager.__file__.replace("settings.py", "sortshuffle-manager.jar")
