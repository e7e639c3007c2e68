"""Every option: its default, what it accepts and in which units, and an error that names the setting, the
value and what to give instead."""

from __future__ import annotations

import pickle
import re
from dataclasses import FrozenInstanceError, fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sortshuffle.errors import OptionError
from sortshuffle.options import GIB, KIB, MIB, PREFIX, Options, format_size, option_table

KEYS = {
    "dir": "directories",
    "memory": "memory",
    "codec": "codec",
    "codec.level": "codec_level",
    "buffer.size": "buffer_size",
    "read.memory": "read_memory",
    "read.threads": "read_threads",
    "skew.factor": "skew_factor",
    "skew.threshold": "skew_threshold",
    "service": "service",
    "service.port": "service_port",
    "service.memory": "service_memory",
    "service.timeout": "service_timeout",
    "service.secret.file": "service_secret_file",
    "service.tls.certificate": "service_tls_certificate",
    "service.tls.key": "service_tls_key",
    "service.tls.authority": "service_tls_authority",
    "manager": "manager",
    "session.python": "session_python",
    "manager.memory": "manager_memory",
    "manager.python": "manager_python",
    "keep": "keep",
    "report": "report",
    "progress": "progress",
    "grace": "grace",
}

TLS = ("service.tls.certificate", "service.tls.key", "service.tls.authority")


def option(key: str, text: str) -> object:
    """What one setting gives, beside those without which some may not be set."""
    beside = dict.fromkeys(TLS, "/pem") if key in TLS and text.strip() else {}
    settings = {"dir": "/data", **beside, key: text}
    return getattr(Options.of({f"{PREFIX}{name}": each for name, each in settings.items()}), KEYS[key])


def test_without_settings_there_are_the_defaults() -> None:
    options = Options.of({})
    assert options == Options()
    assert {name: getattr(options, name) for name in KEYS.values()} == {
        "directories": (),
        "memory": 256 * MIB,
        "codec": "lz4",
        "codec_level": 1,
        "buffer_size": 256 * KIB,
        "read_memory": 64 * MIB,
        "read_threads": 4,
        "skew_factor": 0.0,
        "skew_threshold": 256 * MIB,
        "service": "auto",
        "service_port": 7448,
        "service_memory": 64 * MIB,
        "service_timeout": 60.0,
        "service_secret_file": "",
        "service_tls_certificate": "",
        "service_tls_key": "",
        "service_tls_authority": "",
        "manager": "auto",
        "session_python": "auto",
        "manager_memory": 128 * MIB,
        "manager_python": "",
        "keep": False,
        "report": "",
        "progress": "auto",
        "grace": 600.0,
    }


def test_every_option_is_here() -> None:
    keys = {each.metadata["spec"].key.removeprefix(PREFIX): each.name for each in fields(Options)}
    assert keys == KEYS


URL_OR_PATHS = (
    "absolute local paths, separated by commas; or one URL that fsspec can write to, such as"
    " s3://bucket/prefix"
)
PROGRAMS = "an absolute path, ./ and a path from the executor's working directory, or a name on the PATH"


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("dir", "", ()),
        ("dir", "/a", ("/a",)),
        ("dir", "/a,/b/c", ("/a", "/b/c")),
        ("dir", " /a , ,/b ", ("/a", "/b")),
        ("dir", "file:///mount/a", ("file:///mount/a",)),
        ("dir", " s3://bucket/x/ ", ("s3://bucket/x",)),
        ("dir", "memory://a", ("memory://a",)),
        ("memory", "1048576", MIB),
        ("memory", "1m", MIB),
        ("memory", "512M", 512 * MIB),
        ("memory", "2 gb", 2 * GIB),
        ("memory", "1024kb", MIB),
        ("memory", " 3GiB ", 3 * GIB),
        ("memory", "1t", 1024 * GIB),
        ("codec", "lz4", "lz4"),
        ("codec", "ZSTD", "zstd"),
        ("codec", " none ", "none"),
        ("codec.level", "1", 1),
        ("codec.level", "22", 22),
        ("buffer.size", "1k", KIB),
        ("buffer.size", "1024b", KIB),
        ("buffer.size", "1g", GIB),
        ("read.memory", "1m", MIB),
        ("read.memory", "1tib", 1024 * GIB),
        ("read.threads", "1", 1),
        ("read.threads", " 256 ", 256),
        ("skew.factor", "0", 0.0),
        ("skew.factor", "1", 1.0),
        ("skew.factor", " 2.5 ", 2.5),
        ("skew.threshold", "1k", KIB),
        ("skew.threshold", "1t", 1024 * GIB),
        ("service", "auto", "auto"),
        ("service", " OFF ", "off"),
        ("service", "external", "external"),
        ("service.port", "1", 1),
        ("service.port", "65535", 65535),
        ("service.memory", "4m", 4 * MIB),
        ("service.memory", "1t", 1024 * GIB),
        ("service.timeout", "1s", 1.0),
        ("service.timeout", "2min", 120.0),
        ("service.secret.file", " /etc/secret ", "/etc/secret"),
        ("service.secret.file", "", ""),
        ("service.tls.certificate", "/a.pem", "/a.pem"),
        ("service.tls.key", "/a.pem", "/a.pem"),
        ("service.tls.authority", "/a.pem", "/a.pem"),
        ("manager", "auto", "auto"),
        ("manager", " ON ", "on"),
        ("manager", "off", "off"),
        ("session.python", " OFF ", "off"),
        ("manager.memory", "16m", 16 * MIB),
        ("manager.memory", "1t", 1024 * GIB),
        ("manager.python", "", ""),
        ("manager.python", " /opt/env/bin/python ", "/opt/env/bin/python"),
        ("manager.python", "./env/bin/python", "./env/bin/python"),
        ("manager.python", "python3.12", "python3.12"),
        ("keep", "true", True),
        ("keep", "FALSE", False),
        ("keep", " True ", True),
        ("grace", "30", 30.0),
        ("grace", "30s", 30.0),
        ("grace", "15000ms", 15.0),
        ("grace", "10min", 600.0),
        ("grace", "10m", 600.0),
        ("grace", "1.5 h", 5400.0),
        ("grace", "2D", 172800.0),
    ],
)
def test_what_is_allowed_is_understood(key: str, text: str, value: object) -> None:
    found = option(key, text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("key", "text", "allowed"),
    [
        ("dir", "relative", URL_OR_PATHS),
        ("dir", "/a,b", URL_OR_PATHS),
        ("dir", "/a,s3://bucket/x", URL_OR_PATHS),
        ("dir", "s3://bucket/x,s3://bucket/y", URL_OR_PATHS),
        ("dir", "file:///a,/b", URL_OR_PATHS),
        ("dir", "simplecache::s3://bucket/x", URL_OR_PATHS),
        ("dir", "s3://", URL_OR_PATHS),
        ("dir", "file://host/a", URL_OR_PATHS),
        ("memory", "", "1m to 1t"),
        ("memory", "1048575", "1m to 1t"),
        ("memory", "1023k", "1m to 1t"),
        ("memory", "1025g", "1m to 1t"),
        ("memory", "-1g", "1m to 1t"),
        ("memory", "1.5g", "1m to 1t"),
        ("memory", "64 parsecs", "1m to 1t"),
        ("memory", "lots", "1m to 1t"),
        ("codec", "snappy", "lz4, zstd, none"),
        ("codec", "", "lz4, zstd, none"),
        ("codec.level", "0", "1 to 22"),
        ("codec.level", "23", "1 to 22"),
        ("codec.level", "high", "1 to 22"),
        ("codec.level", "1.5", "1 to 22"),
        ("buffer.size", "1023", "1k to 1g"),
        ("buffer.size", "2g", "1k to 1g"),
        ("read.memory", "1k", "1m to 1t"),
        ("read.threads", "0", "1 to 256"),
        ("read.threads", "257", "1 to 256"),
        ("skew.factor", "0.5", "0, or a number of at least 1"),
        ("skew.factor", "-1", "0, or a number of at least 1"),
        ("skew.factor", "nan", "0, or a number of at least 1"),
        ("skew.factor", "inf", "0, or a number of at least 1"),
        ("skew.factor", "much", "0, or a number of at least 1"),
        ("skew.threshold", "1023", "1k to 1t"),
        ("service", "on", "auto, off, external"),
        ("service.port", "0", "1 to 65535"),
        ("service.port", "65536", "1 to 65535"),
        ("service.memory", "3m", "4m to 1t"),
        ("service.timeout", "0s", "a time of at least 1s, such as 60s, 2min"),
        ("service.secret.file", "secret", "an absolute local path"),
        ("service.tls.certificate", "a.pem", "an absolute local path"),
        ("service.tls.key", "a.pem", "an absolute local path"),
        ("service.tls.authority", "a.pem", "an absolute local path"),
        ("manager", "true", "auto, on, off"),
        ("manager.memory", "16383k", "16m to 1t"),
        ("manager.python", "env/bin/python", PROGRAMS),
        ("keep", "yes", "true, false"),
        ("keep", "1", "true, false"),
        ("grace", "soon", "a time of at least 5s, such as 30s, 10min"),
        ("grace", "4s", "a time of at least 5s, such as 30s, 10min"),
        ("grace", "-1s", "a time of at least 5s, such as 30s, 10min"),
        ("grace", "10 fortnights", "a time of at least 5s, such as 30s, 10min"),
        ("grace", "inf", "a time of at least 5s, such as 30s, 10min"),
    ],
)
def test_what_is_not_allowed_is_refused_with_what_to_give(key: str, text: str, allowed: str) -> None:
    message = f"{PREFIX}{key} = {text!r} is not allowed: give {allowed}"
    with pytest.raises(OptionError, match=f"^{re.escape(message)}$"):
        Options.of({f"{PREFIX}{key}": text})


@pytest.mark.parametrize(
    ("key", "meant"),
    [("memry", "memory"), ("dirs", "dir"), ("readthreads", "read.threads"), ("Codec", "codec")],
)
def test_a_misspelt_option_is_refused_with_the_one_that_was_meant(key: str, meant: str) -> None:
    message = f"{PREFIX}{key} is not an option. Did you mean {PREFIX}{meant}?"
    with pytest.raises(OptionError, match=f"^{re.escape(message)}$"):
        Options.of({f"{PREFIX}{key}": "1"})


@pytest.mark.parametrize("key", ["", "zzz", "sort-merge-the-whole-thing"])
def test_an_option_like_none_is_refused_with_all_there_are(key: str) -> None:
    known = ", ".join(sorted(PREFIX + each for each in KEYS))
    with pytest.raises(
        OptionError, match=f"^{re.escape(f'{PREFIX}{key} is not an option. There are: {known}')}$"
    ):
        Options.of({f"{PREFIX}{key}": "1"})


def test_settings_of_others_are_not_looked_at() -> None:
    settings = {"spark.sql.shuffle.partitions": "x", "spark.sortshuffled": "x", "sortshuffle.memory": "x"}
    assert Options.of(settings) == Options()


def test_keeping_files_needs_a_directory_of_the_users() -> None:
    with pytest.raises(OptionError, match=rf"{PREFIX}keep=true needs {PREFIX}dir: Spark deletes"):
        Options.of({f"{PREFIX}keep": "true"})
    with pytest.raises(OptionError, match="keep=true needs"):
        Options(keep=True)
    assert Options.of({f"{PREFIX}keep": "true", f"{PREFIX}dir": "/data"}).keep is True


def test_external_services_need_directories_that_they_serve() -> None:
    with pytest.raises(OptionError, match=rf"{PREFIX}service=external needs {PREFIX}dir: the directories"):
        Options.of({f"{PREFIX}service": "external"})
    assert Options.of({f"{PREFIX}service": "external", f"{PREFIX}dir": "/data"}).service == "external"


@pytest.mark.parametrize("missing", TLS)
def test_the_files_for_tls_belong_together(missing: str) -> None:
    given = {f"{PREFIX}{key}": "/pem" for key in TLS if key != missing}
    with pytest.raises(OptionError, match="belong together: set all three, or none"):
        Options.of(given)
    assert Options.of({f"{PREFIX}{key}": f"/{key}" for key in TLS}).tls_files == tuple(
        f"/{key}" for key in TLS
    )
    assert Options().tls_files == ("", "", "")


def test_a_client_needs_the_authority_alone() -> None:
    """Spark's settings are for tasks, which serve as well."""
    assert Options(service_tls_authority="/a").tls_files == ("", "", "/a")
    for alone in (
        {"service_tls_certificate": "/c", "service_tls_authority": "/a"},
        {"service_tls_key": "/k"},
    ):
        with pytest.raises(OptionError, match="belong together: set all three, or none"):
            Options(**alone)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="belong together: set all three, or none"):
        Options.of({f"{PREFIX}service.tls.authority": "/a"})


@pytest.mark.parametrize(
    ("directories", "url"), [("", ""), ("/a,/b", ""), ("s3://b/x", "s3://b/x"), ("file:///m", "file:///m")]
)
def test_storage_that_every_host_sees_is_told_from_local_directories(directories: str, url: str) -> None:
    assert Options.of({f"{PREFIX}dir": directories}).storage_url == url


def test_options_do_not_change_and_survive_pickling() -> None:
    options = Options.of({f"{PREFIX}memory": "1g"})
    with pytest.raises(FrozenInstanceError):
        options.memory = 5  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(options)) == options


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536 * KIB, "1.5 MiB"),
        (GIB, "1.0 GiB"),
        (5 << 40, "5.0 TiB"),
        (5000 << 40, "5000.0 TiB"),
    ],
)
def test_sizes_are_shown_for_people(count: int, text: str) -> None:
    assert format_size(count) == text


@given(st.integers(MIB, 1024 * GIB))
def test_any_size_in_bytes_is_understood(count: int) -> None:
    assert option("memory", str(count)) == count


def test_the_table_has_a_line_for_every_option() -> None:
    lines = option_table().split("\n")
    assert lines[0] == "| option | default | allowed | what it does, and why |"
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]
    assert [row[0] for row in rows] == [f"`{PREFIX}{key}`" for key in KEYS]
    assert [row[1] for row in rows] == [
        "(empty)",
        "256 MiB",
        "lz4",
        "1",
        "256 KiB",
        "64 MiB",
        "4",
        "0",
        "256 MiB",
        "auto",
        "7448",
        "64 MiB",
        "60s",
        "(empty)",
        "(empty)",
        "(empty)",
        "(empty)",
        "auto",
        "auto",
        "128 MiB",
        "(empty)",
        "false",
        "(empty)",
        "auto",
        "600s",
    ]
    for row, each in zip(rows, fields(Options), strict=True):
        assert row[2:] == [each.metadata["spec"].allowed, each.metadata["spec"].why]
