"""What URLs of shared storage mean, and how the errors of a store are told."""

from __future__ import annotations

import errno

import pytest

from sortshuffle.errors import SortShuffleError, UsageError, WorkerSetupError
from sortshuffle.storage.files.partitioned_file import PartitionedFile
from sortshuffle.storage.files.urls import (
    application_url,
    is_past_end,
    is_url,
    mounted_file,
    mounted_path,
    open_store,
    store_error,
    store_errors,
)

URL = "s3://bucket/x.data"


@pytest.mark.parametrize(
    ("path", "url"),
    [
        ("/a/b", False),
        ("relative", False),
        ("s3://bucket/a", True),
        ("file:///mount", True),
        ("memory://a", True),
    ],
)
def test_a_url_has_a_scheme(path: str, url: bool) -> None:
    assert is_url(path) is url


@pytest.mark.parametrize(
    ("url", "path"),
    [("file:///mount/a", "/mount/a"), ("local:///mount", "/mount"), ("s3://bucket/a", None), ("/a", None)],
)
def test_only_a_mounted_directory_has_a_local_path(url: str, path: str | None) -> None:
    assert mounted_path(url) == path
    assert mounted_file(PartitionedFile(url)) == (None if path is None else PartitionedFile(path))


@pytest.mark.parametrize("root", ["s3://bucket/a", "s3://bucket/a/"])
def test_an_applications_directory_is_below_the_root(root: str) -> None:
    assert application_url(root, "app-1") == "s3://bucket/a/app-1"


def test_what_fsspec_does_not_know_is_refused() -> None:
    with pytest.raises(UsageError, match="s4://bucket is no URL that fsspec takes"):
        open_store("s4://bucket")


def test_a_library_that_is_missing_is_named() -> None:
    with pytest.raises(
        WorkerSetupError, match=r"gs://bucket cannot be used by the Python at .*gcsfs.* Install"
    ) as caught:
        open_store("gs://bucket")
    assert caught.value.path == "gs://bucket"


@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        (FileNotFoundError("no such bucket"), FileNotFoundError, errno.ENOENT),
        (PermissionError("Forbidden"), PermissionError, errno.EACCES),
        (OSError(errno.ENOSPC, "quota"), OSError, errno.ENOSPC),
        (TimeoutError(), TimeoutError, errno.ETIMEDOUT),
        (RuntimeError("odd"), OSError, errno.EIO),
    ],
)
def test_an_error_keeps_its_kind_and_gets_the_url(error: Exception, kind: type[OSError], code: int) -> None:
    told = store_error("writing", URL, error)
    assert isinstance(told, kind)
    assert (told.errno, told.filename) == (code, URL)
    assert "writing failed: " in str(told)
    assert "See that this host reaches the store" in str(told)


def test_an_error_is_told_once() -> None:
    with pytest.raises(OSError) as caught, store_errors("reading", URL), store_errors("writing", URL):
        raise RuntimeError("odd")
    assert str(caught.value).count("failed") == 1
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_what_this_package_raises_passes() -> None:
    with pytest.raises(SortShuffleError, match=r"^ours$"), store_errors("reading", URL):
        raise UsageError("ours")


@pytest.mark.parametrize(("code", "behind"), [("InvalidRange", True), ("AccessDenied", False)])
def test_s3_says_that_a_range_is_behind_the_end(code: str, behind: bool) -> None:
    class ClientError(Exception):
        response = {"Error": {"Code": code}}  # noqa: RUF012

    error = OSError(errno.EINVAL, "The requested range is not satisfiable")
    error.__cause__ = ClientError()
    assert is_past_end(error) is behind
    assert not is_past_end(OSError(errno.EINVAL, "of another store"))
