"""Every setting of the package, defined once: name, default, unit, allowed values, purpose.

`Options` is the one frozen object that travels from the driver into every task. `option_table` makes the
table in `docs/operations.md` from it, and a test keeps the two equal. This module knows nothing of Spark: it
reads a plain mapping of ``spark.sortshuffle.*`` settings.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Any

from sortshuffle.errors import OptionError

PREFIX = "spark.sortshuffle."
KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

_SIZE_UNITS = {"": 1, "b": 1, "k": KIB, "kb": KIB, "kib": KIB, "m": MIB, "mb": MIB, "mib": MIB}
_SIZE_UNITS |= {"g": GIB, "gb": GIB, "gib": GIB, "t": GIB * KIB, "tb": GIB * KIB, "tib": GIB * KIB}
_TIME_UNITS = {"": 1.0, "s": 1.0, "ms": 0.001, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True, slots=True)
class OptionSpec:
    """One option, without its default."""

    key: str
    parse: Callable[[str], Any]
    allowed: str
    unit: str
    why: str


def _size(least: int, most: int) -> Callable[[str], int]:
    return lambda text: _between(parse_size(text), least, most)


def parse_size(text: str) -> int:
    """Return the bytes of a size written as in Spark's settings: 1g, 64m, 4194304b. Raises ValueError."""
    match = re.fullmatch(r"\s*(\d+)\s*([a-z]*)\s*", text.lower())
    if match is None or match[2] not in _SIZE_UNITS:
        raise ValueError(text)
    return int(match[1]) * _SIZE_UNITS[match[2]]


def _seconds(least: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", text.lower())
        if match is None or match[2] not in _TIME_UNITS:
            raise ValueError(text)
        seconds = float(match[1]) * _TIME_UNITS[match[2]]
        if seconds < least:
            raise ValueError(text)
        return seconds

    return parse


def _whole(least: int, most: int) -> Callable[[str], int]:
    return lambda text: _between(int(text), least, most)


def _factor(text: str) -> float:
    factor = float(text)
    if factor != 0 and not 1 <= factor < float("inf"):
        raise ValueError(text)
    return factor


def _between(value: int, least: int, most: int) -> int:
    if not least <= value <= most:
        raise ValueError(value)
    return value


def _one_of(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        word = text.strip().lower()
        if word not in words:
            raise ValueError(text)
        return word

    return parse


def _flag(text: str) -> bool:
    return _one_of("true", "false")(text) == "true"


def _path(text: str) -> str:
    path = text.strip()
    if path and not path.startswith("/"):
        raise ValueError(text)
    return path


def _program(text: str) -> str:
    """Accept a path that begins with / or ./, or a bare name, which is looked up on the PATH."""
    program = text.strip()
    if "/" in program and not program.startswith(("/", "./")):
        raise ValueError(text)
    return program


def _directories(text: str) -> tuple[str, ...]:
    found = tuple(part.strip() for part in text.split(",") if part.strip())
    if len(found) == 1 and _is_url(found[0]):
        return (_checked_url(found[0]),)
    if any(not part.startswith("/") for part in found):
        raise ValueError(text)
    return found


def _checked_url(text: str) -> str:
    """Return a URL without trailing slashes. Whether the storage exists shows only when it is used."""
    scheme, _, rest = text.rstrip("/").partition("://")
    is_mounted = scheme in ("file", "local")
    if not rest or (is_mounted and not rest.startswith("/")):
        raise ValueError(text)
    return f"{scheme}://{rest}"


def _is_url(text: str) -> bool:
    return re.match(r"[a-z][a-z0-9+.-]*://", text) is not None


def _option(default: Any, key: str, parse: Callable[[str], Any], allowed: str, unit: str, why: str) -> Any:
    return field(default=default, metadata={"spec": OptionSpec(PREFIX + key, parse, allowed, unit, why)})


_TLS_FILES = (
    f"{PREFIX}service.tls.certificate, {PREFIX}service.tls.key and {PREFIX}service.tls.authority belong"
    " together: set all three, or none"
)


@dataclass(frozen=True, slots=True)
class Options:
    """The settings of one frame, read on the driver when the frame is made."""

    directories: tuple[str, ...] = _option(
        (),
        "dir",
        _directories,
        "absolute local paths, separated by commas; or one URL that fsspec can write to, such as"
        " s3://bucket/prefix",
        "",
        "Where map outputs are written: local directories in turn, or storage that every host sees (a URL;"
        " file:///mount is a directory that all hosts have mounted). Empty: Spark's own local directories."
        " There, map outputs of frames and RDDs end with their executor, unless Spark's external shuffle"
        " service serves them.",
    )
    memory: int = _option(
        256 * MIB,
        "memory",
        _size(MIB, 1024 * GIB),
        "1m to 1t",
        "bytes",
        "What one task may hold of rows and encoded buffers before it writes a region. More memory: fewer"
        " and larger extents.",
    )
    codec: str = _option(
        "lz4",
        "codec",
        _one_of("lz4", "zstd", "none"),
        "lz4, zstd, none",
        "",
        "Compression of buffers. LZ4 costs little on any disk; ZSTD pays on slow or small ones.",
    )
    codec_level: int = _option(
        1,
        "codec.level",
        _whole(1, 22),
        "1 to 22",
        "",
        "Level of ZSTD; LZ4 has none.",
    )
    buffer_size: int = _option(
        256 * KIB,
        "buffer.size",
        _size(KIB, GIB),
        "1k to 1g",
        "bytes",
        "Largest payload of one buffer in key-ordered extents. A merge holds at least one per run.",
    )
    read_memory: int = _option(
        64 * MIB,
        "read.memory",
        _size(MIB, 1024 * GIB),
        "1m to 1t",
        "bytes",
        "What one task may read ahead, out of its memory. A merge that fits is read ahead in threads; a"
        " larger one takes parts of its runs, and intermediate files in several passes if need be.",
    )
    read_threads: int = _option(
        4,
        "read.threads",
        _whole(1, 256),
        "1 to 256",
        "threads",
        "Threads that read, verify and decompress ahead of the user's function.",
    )
    skew_factor: float = _option(
        0.0,
        "skew.factor",
        _factor,
        "0, or a number of at least 1",
        "",
        "A subpartition larger than so many times the median, and than the threshold, is read by several"
        " tasks. Rows of one key may then be in several partitions, of which there are more than asked for."
        " 0: every subpartition by one task.",
    )
    skew_threshold: int = _option(
        256 * MIB,
        "skew.threshold",
        _size(KIB, 1024 * GIB),
        "1k to 1t",
        "bytes",
        "A subpartition of up to this many bytes, before compression, is never divided; a larger one into"
        " parts of about as many, or of the median if that is more. The default is that of Spark's skewed"
        " joins.",
    )
    service: str = _option(
        "auto",
        "service",
        _one_of("auto", "off", "external"),
        "auto, off, external",
        "",
        "How hosts read each other's map outputs. auto: where the master is not local, the first task that"
        " writes on a host starts a shuffle service there, which ends 5 s after the application's last"
        " executor there; if the shuffle manager is on, when the application is over. external: an"
        " administrator runs one on each host (sortshuffle serve). off: all hosts see the same files.",
    )
    service_port: int = _option(
        7448,
        "service.port",
        _whole(1, 65535),
        "1 to 65535",
        "",
        "Port of the external services, the same on all hosts. Services that are started by tasks take a free"
        " one.",
    )
    service_memory: int = _option(
        64 * MIB,
        "service.memory",
        _size(4 * MIB, 1024 * GIB),
        "4m to 1t",
        "bytes",
        "What a service that is started by a task reads into, for all of its consumers.",
    )
    service_timeout: float = _option(
        60.0,
        "service.timeout",
        _seconds(1.0),
        "a time of at least 1s, such as 60s, 2min",
        "seconds",
        "How long a consumer tries to reach a service that does not answer, before its task fails. It tries"
        " again after 100 ms, then after twice as long each time, up to 10 s.",
    )
    service_secret_file: str = _option(
        "",
        "service.secret.file",
        _path,
        "an absolute local path",
        "",
        "File with the secret that external services share with their clients, on every host, readable by its"
        " owner only. Empty: Spark's own secret where spark.authenticate is on, or a random one for services"
        " that tasks start.",
    )
    service_tls_certificate: str = _option(
        "",
        "service.tls.certificate",
        _path,
        "an absolute local path",
        "",
        "PEM file, on every host, with the certificate of its service and the chain to the authority; turns"
        " TLS on. Needs service.tls.key and service.tls.authority.",
    )
    service_tls_key: str = _option(
        "", "service.tls.key", _path, "an absolute local path", "", "PEM file with the certificate's key."
    )
    service_tls_authority: str = _option(
        "",
        "service.tls.authority",
        _path,
        "an absolute local path",
        "",
        "PEM file with the authority that clients trust. Settings need all three; Options of"
        " sortshuffle.engine may have it alone, to read.",
    )
    manager: str = _option(
        "auto",
        "manager",
        _one_of("auto", "on", "off"),
        "auto, on, off",
        "",
        "Whether the shuffles of the whole session are sortshuffle's. configure() reads it. auto: where"
        " nothing speaks against it; the log says what does. on: an error where it cannot be. off: Spark's"
        " own shuffle.",
    )
    session_python: str = _option(
        "auto",
        "session.python",
        _one_of("auto", "off"),
        "auto, off",
        "",
        "Whether Python functions of a session of sortshuffle.session() take rows into Python stages of"
        " sortshuffle's. off: Spark runs them, as in plain PySpark. frame() and read() are not concerned.",
    )
    manager_memory: int = _option(
        128 * MIB,
        "manager.memory",
        _size(16 * MIB, 1024 * GIB),
        "16m to 1t",
        "bytes",
        "What the shuffle manager's engine on one host may hold of rows that wait for their region. All map"
        " tasks that write there share it; each may hold 16 MiB in any case. More memory: fewer and larger"
        " extents; on disks, up to half a MiB for each subpartition.",
    )
    manager_python: str = _option(
        "",
        "manager.python",
        _program,
        "an absolute path, ./ and a path from the executor's working directory, or a name on the PATH",
        "",
        "The Python that the shuffle manager's engine runs on, on every host; it needs this package."
        " configure() sets it to that of the workers. Empty: spark.pyspark.python, else the environment's"
        " PYSPARK_PYTHON, else python3.",
    )
    keep: bool = _option(
        False,
        "keep",
        _flag,
        "true, false",
        "",
        "Leave map outputs when the application ends. Needs spark.sortshuffle.dir, because Spark deletes"
        " its own directories.",
    )
    report: str = _option(
        "",
        "report",
        _path,
        "an absolute local path",
        "",
        "Directory on the driver's host that gets a report when the application ends, named after its id."
        " Empty: no report. Needs matplotlib.",
    )
    progress: str = _option(
        "auto",
        "progress",
        _one_of("auto", "off"),
        "auto, off",
        "",
        "Progress bars. auto: below the cell of a notebook; in a terminal, configure() turns Spark's own on,"
        " if spark.ui.showConsoleProgress is not set.",
    )
    grace: float = _option(
        600.0,
        "grace",
        _seconds(5.0),
        "a time of at least 5s, such as 30s, 10min",
        "seconds",
        "How long a finished map output is left alone before Spark has registered it. Spark does so when its"
        " task ends.",
    )

    def __post_init__(self) -> None:
        if self.keep and not self.directories:
            raise OptionError(
                f"{PREFIX}keep=true needs {PREFIX}dir: Spark deletes its own local directories when the"
                " application ends"
            )
        if self.service == "external" and not self.directories:
            raise OptionError(
                f"{PREFIX}service=external needs {PREFIX}dir: the directories that the services serve, the"
                " same on every host"
            )
        if (self.service_tls_certificate or self.service_tls_key) and not all(self.tls_files):
            raise OptionError(_TLS_FILES)

    @property
    def storage_url(self) -> str:
        """The URL of storage that every host sees; empty if map outputs go to local directories."""
        return self.directories[0] if self.directories and _is_url(self.directories[0]) else ""

    @property
    def tls_files(self) -> tuple[str, str, str]:
        """The paths of certificate, key and authority; empty strings without TLS."""
        return self.service_tls_certificate, self.service_tls_key, self.service_tls_authority

    @staticmethod
    def of(settings: Mapping[str, str]) -> Options:
        """Return the options in ``settings``. Keys outside ``spark.sortshuffle.`` are ignored.

        Raises `OptionError` for a name that does not exist or a value that is not allowed.
        """
        specs = {spec.key: (name, spec) for name, spec in _options()}
        chosen: dict[str, Any] = {}
        for key, text in settings.items():
            if not key.startswith(PREFIX):
                continue
            if key not in specs:
                raise OptionError(f"{key} is not an option. {_did_you_mean(key, list(specs))}")
            name, spec = specs[key]
            try:
                chosen[name] = spec.parse(text)
            except ValueError:
                raise OptionError(f"{key} = {text!r} is not allowed: give {spec.allowed}") from None
        options = Options(**chosen)
        if any(options.tls_files) and not all(options.tls_files):
            raise OptionError(_TLS_FILES)  # tasks serve as well as read, and a service needs all three files
        return options


def _options() -> list[tuple[str, OptionSpec]]:
    return [(each.name, each.metadata["spec"]) for each in fields(Options)]


def _did_you_mean(key: str, known: list[str]) -> str:
    names = [each.removeprefix(PREFIX) for each in known]  # with the prefix any two keys would look alike
    close = get_close_matches(key.removeprefix(PREFIX).lower(), names, n=1)
    return f"Did you mean {PREFIX}{close[0]}?" if close else "There are: " + ", ".join(sorted(known))


def format_size(count: float) -> str:
    """Format a number of bytes for people: 1.5 MiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < KIB:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= KIB
    return f"{count:.1f} TiB"


def option_table() -> str:
    """Return the Markdown table of all options, as in `docs/operations.md`."""
    lines = ["| option | default | allowed | what it does, and why |", "|---|---|---|---|"]
    for each in fields(Options):
        spec: OptionSpec = each.metadata["spec"]
        shown = _shown(each.default, spec.unit)
        lines.append(f"| `{spec.key}` | {shown} | {spec.allowed} | {spec.why} |")
    return "\n".join(lines)


def _shown(default: Any, unit: str) -> str:
    if unit == "bytes":
        return format_size(default).replace(".0 ", " ")
    if unit == "seconds":
        return f"{default:g}s"
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, float):
        return f"{default:g}"
    return str(default) if default not in ((), "") else "(empty)"
