"""Files as the command line looks into them: what the system says when one is closed hides nothing."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from sortshuffle import calls
from sortshuffle.storage.inspection.open_files import open_file


def test_closing_a_file_that_was_read_hides_no_other_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"bytes")

    def close(descriptor: int) -> None:
        os.close(descriptor)
        raise OSError(errno.EIO, "closing fails")

    monkeypatch.setattr(calls, "close", close)
    with open_file(str(path)) as file:
        assert bytes(file.read(1, 3)) == b"yte"
    with pytest.raises(ValueError, match="its own"), open_file(str(path)):
        raise ValueError("its own")
