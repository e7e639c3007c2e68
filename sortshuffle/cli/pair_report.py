"""Looks at pairs of files: inspects each and, unless ``quick``, checks all its data behind a progress bar."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import click

from sortshuffle import calls
from sortshuffle.cli.output import Advance, plural, progress
from sortshuffle.cli.records import record_counter
from sortshuffle.errors import UsageError
from sortshuffle.format.encryption import EncryptionKey, FileCipher
from sortshuffle.homes.owner import OWNER_FILE
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.files.presence import is_gone
from sortshuffle.storage.files.urls import is_url, mounted_path
from sortshuffle.storage.inspection.contents import FileFault, Inspection, PairState, Totals, inspect
from sortshuffle.storage.inspection.data_check import DataCheck, check_data, cipher_of
from sortshuffle.storage.inspection.finding import find_pairs
from sortshuffle.storage.inspection.open_files import is_file, size_of


@dataclass(frozen=True, slots=True)
class PairReport:
    """What is known of one pair. ``check``: None if the data was not read. ``totals``, ``regions``: None
    without an index. ``encryption``: whether encrypted payloads were decrypted; empty for others.
    ``is_locked``: a key was given, but does not decrypt them."""

    inspection: Inspection
    check: DataCheck | None
    totals: Totals | None
    regions: int | None
    encryption: str = ""
    is_locked: bool = False

    @property
    def faults(self) -> tuple[FileFault, ...]:
        return self.inspection.faults + (self.check.faults if self.check else ())

    @property
    def state(self) -> PairState:
        state = self.inspection.state(self.check.faults if self.check else ())
        return PairState.NOT_ALL_CHECKED if state is PairState.COMPLETE and self.unchecked else state

    @property
    def unchecked(self) -> str:
        """Why not all records could be decoded on this host; empty if they could, or were not to be."""
        return self.check.unchecked if self.check else ""

    @property
    def name(self) -> str:
        return os.path.basename(self.inspection.base)

    @property
    def directory(self) -> str:
        return os.path.dirname(self.inspection.base)

    @property
    def reason(self) -> str:
        """What is wrong with the pair, or what is not known of it, in one line."""
        if not self.faults:
            return self.state.value + (f": {self.unchecked}" if self.unchecked else "")
        first, more = self.faults[0], len(self.faults) - 1
        return f"{first}" + (f"; and {plural(more, 'more fault')}" if more else "")

    def without_table(self) -> PairReport:
        """Return a copy without index entries, which may be megabytes: a listing keeps thousands of looks."""
        return replace(self, inspection=replace(self.inspection, table=None))


class AnyPath(click.Path):
    """Accepts an existing file or directory, or a URL. The URL of a mounted path becomes that path."""

    def __init__(self) -> None:
        super().__init__(exists=True)

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        path = mounted_path(value) or value
        return path.rstrip("/") if is_url(path) else super().convert(path, parameter, context)


def look(path: str, quick: bool = False, position: str = "", key: EncryptionKey | None = None) -> PairReport:
    """Look at the pair that a file belongs to. ``position``: of the pair in a list, for the progress bar.
    ``key``: decrypts the pair. Raises `UsageError` if the file is not one of ours, or is gone."""
    with progress(position + os.path.basename(path), 0 if quick else _data_bytes(path)) as advance:
        return _look(path, quick, advance, key)


def look_at_all(
    paths: Sequence[str], quick: bool = False, key: EncryptionKey | None = None
) -> Iterator[PairReport]:
    """Look at pairs that were found in directories, leaving out those that have been removed since."""
    total = 0 if quick else sum(map(_data_bytes, paths))
    with progress(f"{len(paths)} map outputs", total) as advance:
        for path in paths:
            try:
                yield _look(path, quick, advance, key)
            except UsageError:
                if is_there(path):
                    raise


def pairs_below(directory: str, on_error: Callable[[OSError], None]) -> list[str]:
    """Return one path of each pair at or below a directory. ``on_error``: gets errors of listing one."""
    return list(find_pairs(directory, on_error))


def _look(path: str, quick: bool, advance: Advance, key: EncryptionKey | None) -> PairReport:
    inspection = inspect(path, keeps_locks=_is_in_home(path))
    cipher = cipher_of(inspection.header, key)
    check = None if quick else check_data(inspection, record_counter(inspection), advance, cipher)
    table = inspection.table
    if table is None:
        found = PairReport(inspection, check, None, None)
    else:
        found = PairReport(inspection, check, table.totals, len(table.kinds))
    if inspection.header is not None and inspection.header.is_encrypted:
        is_locked = key is not None and cipher is None
        found = replace(found, encryption=_encryption(key, cipher), is_locked=is_locked)
    if found.faults and not _is_there(inspection):
        raise UsageError(f"{inspection.base} has been removed meanwhile")
    return found


def _is_in_home(path: str) -> bool:
    """Return whether a file lies in a home. Writers lock their files there, and not in a directory that other
    hosts have mounted (`storage.files.local_pair`), whose local path does not show that it is one."""
    return not is_url(path) and not is_gone(os.path.join(os.path.dirname(path), OWNER_FILE))


def _encryption(key: EncryptionKey | None, cipher: FileCipher | None) -> str:
    if cipher is not None:
        return "encrypted"
    return f"encrypted, and {'there is no key' if key is None else 'the key is another one'}"


def _is_there(inspection: Inspection) -> bool:
    files = (inspection.data, inspection.index)
    return any(file is not None and is_there(file.path) for file in files)


def is_there(path: str) -> bool:
    """Return whether the name exists, even as a dangling link."""
    return is_file(path) if is_url(path) else calls.lexists(path)


def _data_bytes(path: str) -> int:
    file = PartitionedFile.of(path)
    names = [path] if file is None else [file.data_path, file.partial_data_path]
    return max(map(size_of, names))
