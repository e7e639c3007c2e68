"""The command as a process of its own: what it loads, what it prints where, how it ends."""

from __future__ import annotations

import importlib
import json
import os
import pty
import struct
import subprocess
import sys
import termios
from fcntl import ioctl
from pathlib import Path

import pytest
from built_outputs import build
from run_cli import run

import sortshuffle
from sortshuffle.cli.main import SUMMARIES, main
from sortshuffle.storage.files.partitioned_file import PartitionedFile

COMMAND = [sys.executable, "-m", "sortshuffle.cli.main"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(sortshuffle.__file__).parent.parent)}


@pytest.fixture
def file(tmp_path: Path) -> PartitionedFile:
    return build(tmp_path)


def in_a_process(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, env=ENVIRONMENT)


def on_a_terminal(width: int, *arguments: str) -> tuple[int, str]:
    """Exit code and output of the command on a terminal of this width."""
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    environment = {key: value for key, value in ENVIRONMENT.items() if key not in ("COLUMNS", "NO_COLOR")}
    process = subprocess.Popen(
        [*COMMAND, *arguments], stdout=theirs, stderr=theirs, env={**environment, "TERM": "xterm"}
    )
    os.close(theirs)
    chunks = []
    try:
        while chunk := os.read(ours, 65536):
            chunks.append(chunk)
    except OSError:  # how the end of a terminal looks on Linux
        pass
    os.close(ours)
    return process.wait(), b"".join(chunks).decode().replace("\r\n", "\n")


def test_help_loads_click_and_nothing_heavy() -> None:
    code = (
        "import sys; from sortshuffle.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "print([name for name in ('pyspark', 'pyarrow', 'numpy', 'rich', 'pandas') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=ENVIRONMENT)
    assert result.stdout.splitlines()[-1] == "[]"


def test_looking_into_files_does_not_load_spark(file: PartitionedFile) -> None:
    code = (
        "import sys; from sortshuffle.cli.main import main\n"
        f"for arguments in (['dump', {file.data_path!r}], ['verify', {file.data_path!r}], ['clean', '.']):\n"
        "    main(arguments, standalone_mode=False)\n"
        "print([name for name in ('pyspark', 'pandas') if name in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        cwd=os.path.dirname(file.base),
    )
    assert result.stdout.splitlines()[-1] == "[]", result.stderr


def test_help_lists_every_command_with_its_own_summary() -> None:
    text = run("--help").stdout
    assert "Exit codes: 0 all is well" in text
    for name, summary in SUMMARIES.items():
        assert summary in text
        command = getattr(importlib.import_module(f"sortshuffle.cli.{name}"), name)
        assert main.get_command(None, name) is command  # type: ignore[arg-type]
        assert command.short_help == summary
        assert "Exit codes: 0" in run(name, "--help").stdout


def test_a_wrong_command_and_the_version() -> None:
    assert run("dumb").exit_code == 2
    assert run("--version").stdout == f"sortshuffle {sortshuffle.__version__}\n"


def test_a_process_prints_plain_lines(file: PartitionedFile) -> None:
    result = in_a_process("dump", file.data_path)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == run("dump", file.data_path).stdout
    assert "\x1b" not in result.stdout
    assert json.loads(in_a_process("dump", file.data_path, "--json").stdout)["state"] == "complete"


def test_a_process_ends_with_the_documented_codes(file: PartitionedFile) -> None:
    os.truncate(file.data_path, 1000)
    assert in_a_process("dump", file.data_path).returncode == 1
    assert in_a_process("verify", file.data_path).returncode == 1
    result = in_a_process("dump", sys.executable)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.count("\n") == 1 and "is not a file of sortshuffle" in result.stderr


def test_a_reader_that_has_enough_is_no_error(tmp_path: Path) -> None:
    file = build(tmp_path, subpartitions=5000, broadcast=False, count=20_000)
    with subprocess.Popen(
        [*COMMAND, "dump", "--all", file.data_path],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=ENVIRONMENT,
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == b"exchange-3-map-0-attempt-100: complete\n"
        process.stdout.close()
        assert b"Traceback" not in process.stderr.read()


@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("--version",),
        ("verify", "--help"),
        ("conf",),
        ("verify", "{directory}"),
        ("verify", "--json", "{directory}"),
        ("dump", "{directory}"),
        ("dump", "--json", "{directory}"),
        ("clean", "--dry-run", "{directory}"),
    ],
    ids=" ".join,
)
def test_an_output_that_takes_no_more_has_a_line_and_a_code_of_its_own(
    file: PartitionedFile, arguments: tuple[str, ...]
) -> None:
    """1 would say that files are damaged, and they are sound."""
    words = [word.format(directory=os.path.dirname(file.base)) for word in arguments]
    with open("/dev/full", "w") as full:
        result = subprocess.run(
            [*COMMAND, *words], stdout=full, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
        )
    assert result.returncode == 3
    assert result.stderr.splitlines()[-1] == "Error: the output cannot be written: No space left on device"
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("arguments", [("verify", "{file}"), ("--help",)], ids=" ".join)
def test_a_pipe_that_was_closed_is_no_fault_of_the_files(
    file: PartitionedFile, arguments: tuple[str, ...]
) -> None:
    words = [word.format(file=file.data_path) for word in arguments]
    reader, writer = os.pipe()
    os.close(reader)
    result = subprocess.run([*COMMAND, *words], stdout=writer, stderr=subprocess.PIPE, env=ENVIRONMENT)
    os.close(writer)
    assert (result.returncode, result.stderr) == (3, b"")


@pytest.mark.parametrize("arguments", [("verify", "{file}"), ("dump", "{file}"), ("--help",)], ids=" ".join)
def test_an_output_that_was_closed_before_has_the_same_code(
    file: PartitionedFile, arguments: tuple[str, ...]
) -> None:
    """As a shell's ``>&-`` leaves it."""
    words = [word.format(file=file.data_path) for word in arguments]
    line = ["/bin/sh", "-c", 'exec "$@" >&-', "sh", *COMMAND, *words]
    result = subprocess.run(line, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
    assert result.stderr == "Error: the output cannot be written: Bad file descriptor\n"
    assert result.returncode == 3
    silent = subprocess.run(["/bin/sh", "-c", 'exec "$@" >&- 2>&-', "sh", *COMMAND, *words], env=ENVIRONMENT)
    assert silent.returncode == 3


def test_values_that_the_terminal_cannot_show_are_escaped(tmp_path: Path) -> None:
    file = build(tmp_path, application="größer 数")
    result = subprocess.run(
        [*COMMAND, "dump", file.data_path],
        capture_output=True,
        env={**ENVIRONMENT, "PYTHONIOENCODING": "latin-1"},
    )
    assert result.returncode == 0
    assert b"gr\xf6\xdfer \\u6570" in result.stdout


def test_a_terminal_gets_colours_and_rules_within_its_width(file: PartitionedFile) -> None:
    content = bytearray(Path(file.data_path).read_bytes())
    content[100] ^= 1
    Path(file.data_path).write_bytes(content)
    code, text = on_a_terminal(80, "dump", file.data_path)
    assert code == 1
    assert "\x1b[31m" in text and "───" in text
    table = [line for line in text.split("\n") if "   0  " in line or "───" in line]
    plain = [line.replace("\x1b[31m", "").replace("\x1b[2m", "").replace("\x1b[0m", "") for line in table]
    assert len(plain) > 8 and max(map(len, plain)) <= 80


def test_rows_wider_than_the_terminal_stand_upright(file: PartitionedFile) -> None:
    code, text = on_a_terminal(50, "dump", file.data_path, "--records", "1", "--subpartition", "2")
    assert code == 0
    last = [line.split() for line in text.replace("\x1b[2m", "").replace("\x1b[0m", "").split("\n")[-7:-1]]
    assert last[0] == ["row", "0"]
    assert last[1:3] == [["k", "18"], ["name", "name", "18"]]
