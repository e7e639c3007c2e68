"""The files that paths mean, with Spark's own listing as the oracle; it runs no job."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import boto3
import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec import AbstractFileSystem
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.local import LocalFileSystem
from parquet_cases import files_of_spark, found, ours, plain, write
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import types as st
from s3_server import BUCKET, S3Server
from stores import s3_fixture  # noqa: F401

from sortshuffle.errors import UnsupportedError, UsageError
from sortshuffle.spark.parquet.file_systems import FileSystem
from sortshuffle.spark.parquet.files import ParquetFiles
from sortshuffle.spark.parquet.finding import FoundParquetFile, find_files, schema_files
from sortshuffle.spark.parquet.globs import alternatives, name_matches
from sortshuffle.spark.parquet.listing import size_of
from sortshuffle.spark.parquet.settings import ReadSettings

NAMES = [
    "one/a.parquet",
    "one/b.pq",
    "one/c{1}.parquet",
    "one/[e].parquet",
    "one/deep/x.parquet",
    "one/deep/er/y.parquet",
    "two/a.parquet",
    "two/k.txt",
    "two/_hidden.parquet",
    "two/.dot.parquet",
    "two/x._COPYING_",
    "two/_metadata",
    "two/_metadata_like",
    "two/_underscored/z.parquet",
    "two/.dotted/z.parquet",
]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tree")
    for name in NAMES:
        write(root / name, {"a": [name]})
    (root / "two" / "empty.parquet").touch()
    (root / "nothing").mkdir()
    return root


PATTERNS = [
    "*",
    "*/*",
    "*/*.parquet",
    "**/*.parquet",
    "one/{a,b}*",
    "one/[ab].p*",
    "one/[!a].p*",
    "one/[^a].p*",
    "one/[a-b].p*",
    "one/?.pq",
    "{one/a.parquet,two}",
    "one/{a,{b,c}}*",
    "one/c\\{1\\}.parquet",
    "one/\\[e\\].parquet",
    "one/a.parquet{,x}",
    "one/d*",
    "t?o",
    "*/_*",
    "*/.*",
    "one/*/",
    "{,one}",
    "one/{,deep}",
    "one/{.,deep}",
    "one/{..,deep}",
    "one/{deep,}/",
    "one/{deep,{,b}}",
    "one{,/deep}",
    "one/{deep/er,}",
    "one/{deep/er,.}",
    "one/{,deep}/x*",
    "{one/deep,two}/{x,k}.*",
]


def test_patterns_mean_the_files_that_they_mean_to_spark(spark: SparkSession, tree: Path) -> None:
    for pattern in PATTERNS:
        by_us = {file.path for file in found(spark, f"{tree}/{pattern}", schema="a string").files}
        assert by_us == files_of_spark(spark, f"{tree}/{pattern}"), pattern


@pytest.mark.parametrize(
    ("paths", "options"),
    [
        (["one"], {}),
        (["two"], {}),
        (["two/"], {}),
        (["one", "two"], {}),
        (["two/_underscored"], {}),
        (["two/_hidden.parquet"], {}),
        (["two/_hidden.parquet", "one/a.parquet"], {}),
        (["one"], {"recursiveFileLookup": "true"}),
        (["."], {"recursiveFileLookup": True}),
        (["one"], {"pathGlobFilter": "*.pq"}),
        (["one"], {"pathGlobFilter": "{a,b}.p*"}),
        (["one/a.parquet"], {"pathGlobFilter": "*.pq"}),
        (["two"], {"pathGlobFilter": "[!k]*"}),
        (["nothing"], {}),
    ],
    ids=str,
)
def test_directories_mean_the_files_that_they_mean_to_spark(
    spark: SparkSession, tree: Path, paths: list[str], options: dict[str, object]
) -> None:
    given = [tree / path for path in paths]
    by_us = {file.path for file in found(spark, *given, schema="a string", **options).files}
    assert by_us == files_of_spark(spark, *given, **options)


def test_a_file_is_read_as_often_as_it_is_named(spark: SparkSession, tree: Path) -> None:
    paths = [tree / "one", tree / "one", tree / "one" / "a.parquet"]
    assert ours(spark, *paths).rows == plain(spark, *paths).rows
    assert len(ours(spark, *paths).rows) == 9


@pytest.mark.parametrize(
    ("pattern", "rows"),
    [
        ("{one/a.parquet,one/a.parquet}", 2),
        ("one/a.parquet{,/}", 2),
        ("{one/*.parquet,one/a.parquet}", 4),
        ("one/{a,a}.parquet", 1),
    ],
)
def test_a_file_is_read_for_each_choice_of_a_path(
    spark: SparkSession, tree: Path, pattern: str, rows: int
) -> None:
    assert ours(spark, tree / pattern).rows == plain(spark, f"{tree}/{pattern}").rows
    assert len(ours(spark, tree / pattern).rows) == rows


def test_the_order_of_rows_is_fixed_by_the_paths(spark: SparkSession, tree: Path) -> None:
    names = [file.name for file in found(spark, tree / "two", tree / "one", schema="a string").files]
    assert names == ["a.parquet", "k.txt", "[e].parquet", "a.parquet", "b.pq", "c{1}.parquet"]


@pytest.mark.parametrize(
    "name", ["nowhere", "nox*", "one/a.parquet/*", "one/c{1}.parquet", "one/[e].parquet"]
)
def test_nothing_at_a_path_is_an_error_even_with_a_schema(spark: SparkSession, tree: Path, name: str) -> None:
    with pytest.raises(UsageError, match="there is nothing at"):
        found(spark, tree / "two", tree / name, schema="a string")
    with pytest.raises(AnalysisException, match="PATH_NOT_FOUND"):
        spark.read.schema("a string").parquet(str(tree / "two"), str(tree / name))


@pytest.mark.parametrize("name", ["nothing", "two/_hidden.parquet", "two/empty.parquet"])
def test_without_a_file_there_is_no_schema(spark: SparkSession, tree: Path, name: str) -> None:
    with pytest.raises(UsageError, match=r"there is no Parquet file at .*schema\(\)"):
        found(spark, tree / name)
    with pytest.raises(AnalysisException, match="UNABLE_TO_INFER_SCHEMA"):
        spark.read.parquet(str(tree / name))


def test_no_path_is_an_error(spark: SparkSession) -> None:
    with pytest.raises(UsageError, match="needs at least one path"):
        found(spark)


@pytest.mark.parametrize(
    "pattern", ["{a", "a{b,{c}", "[a", "[]", "[", "[b-a]", "[{]", "[{,}]", "{a,[b,c]}", "{[},a]}"]
)
def test_patterns_that_mean_nothing_are_refused(spark: SparkSession, tree: Path, pattern: str) -> None:
    with pytest.raises(UsageError, match="the pattern"):
        found(spark, f"{tree}/one/{pattern}", schema="a string")


def test_braces_are_choices() -> None:
    assert alternatives("{x,a{b,{c,d}/e,}f}") == ["x", "abf", "a{c,d}/ef", "af"]
    assert alternatives("a{b,{c,d}e,}f/{x,y}") == ["a{b,{c,d}e,}f/{x,y}"]
    assert alternatives(r"a\{b,c\}") == [r"a\{b,c\}"]
    assert alternatives("plain") == ["plain"]


def test_a_closing_brace_in_brackets_is_plain_outside_of_braces() -> None:
    assert name_matches("[a}]", "}")


def test_signs_of_regular_expressions_are_plain() -> None:
    assert name_matches("a.b+(c)|$", "a.b+(c)|$")
    assert not name_matches("a.b", "axb")
    assert name_matches("[.+^]", "^")
    assert name_matches(r"[\]]", "]")
    assert not name_matches("a", "ab")


@pytest.mark.parametrize(
    ("merge", "names"),
    [(False, ["_common_metadata"]), (True, ["a", "b", "_metadata", "_common_metadata"])],
)
def test_summaries_say_what_the_schema_is(merge: bool, names: list[str]) -> None:
    files = [FoundParquetFile(f"/t/{name}", 1) for name in ("_metadata", "b", "_common_metadata", "a")]
    files.append(FoundParquetFile("/t/0", 0))
    assert [file.name for file in schema_files(files, merge)] == names


def test_the_first_file_by_its_path_says_what_the_schema_is_where_there_is_no_summary() -> None:
    files = [FoundParquetFile("/t/b/1", 1), FoundParquetFile("/t/a/2", 1), FoundParquetFile("/t/a/0", 0)]
    assert [file.path for file in schema_files(files, False)] == ["/t/a/2"]
    assert schema_files(files[2:], False) == schema_files([], True) == []


def test_a_summary_is_no_data(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "_metadata", {"a": [1], "b": ["x"]})
    write(tmp_path / "f.parquet", {"a": [2]})
    read = ours(spark, tmp_path)
    assert read == plain(spark, tmp_path)
    assert read.rows == ["(2, None)"]


def test_links_to_directories_are_followed(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "t" / "p=1" / "f.parquet", {"a": [1]})
    write(tmp_path / "elsewhere" / "g.parquet", {"a": [2]})
    write(tmp_path / "elsewhere" / "h.parquet", {"a": [3]})
    (tmp_path / "t" / "p=2").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "t" / "p=3").mkdir()
    (tmp_path / "t" / "p=3" / "link.parquet").symlink_to(tmp_path / "elsewhere" / "g.parquet")
    (tmp_path / "t" / "_hidden").symlink_to(tmp_path / "elsewhere")
    read = ours(spark, tmp_path / "t")
    assert read == plain(spark, tmp_path / "t")
    assert read.rows == ["(1, 1)", "(2, 2)", "(2, 3)", "(3, 2)"]
    assert ours(spark, tmp_path / "t" / "p=*" / "*.parquet") == plain(
        spark, tmp_path / "t" / "p=*" / "*.parquet"
    )


def test_links_in_a_circle_are_an_error(tmp_path: Path) -> None:
    write(tmp_path / "f.parquet", {"a": [1]})
    (tmp_path / "_latest").symlink_to(tmp_path)  # hidden, so not followed
    assert len(ParquetFiles.find([str(tmp_path)]).files) == 1
    (tmp_path / "again").symlink_to(tmp_path)
    with pytest.raises(UsageError, match="links to directories lead in a circle, or more than 8"):
        ParquetFiles.find([str(tmp_path)])


class Renamed(LocalFileSystem):  # type: ignore[misc]
    """The local file system under a protocol of its own."""

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(LocalFileSystem._strip_protocol(path.replace(f"{cls.protocol}://", "file://")))


class LinksOfTheirOwnType(Renamed):
    """Lists links as fsspec's SFTP file system does: of type "link", without "islink"."""

    protocol = "linked"

    def ls(self, path: str, detail: bool = False, **options: Any) -> list[Any]:
        listed = super().ls(path, detail=True, **options)
        for entry in listed:
            if entry.pop("islink"):
                entry["type"] = "link"
        return listed if detail else [entry["name"] for entry in listed]


@pytest.mark.parametrize("prefix", ["linked://", "filecache::file://"])
def test_links_are_followed_however_a_file_system_lists_them(tmp_path: Path, prefix: str) -> None:
    write(tmp_path / "t" / "p=1" / "f.parquet", {"a": [1]})
    write(tmp_path / "elsewhere" / "g.parquet", {"a": [2]})
    (tmp_path / "t" / "p=2").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "t" / "p=1" / "link.parquet").symlink_to(tmp_path / "elsewhere" / "g.parquet")
    (tmp_path / "nothing").mkdir()
    (tmp_path / "t" / "p=3").symlink_to(tmp_path / "nothing")
    fsspec.register_implementation("linked", LinksOfTheirOwnType, clobber=True)
    expected = [str(tmp_path / "t" / name) for name in ("p=1/f.parquet", "p=1/link.parquet", "p=2/g.parquet")]
    for path in ("t", "t/p=*", "t/p=*/*", "t/p={1,2,3}"):
        assert [file.path for file in ParquetFiles.find([f"{prefix}{tmp_path}/{path}"]).files] == expected, (
            path
        )
    assert [file.path for file in ParquetFiles.find([f"{prefix}{tmp_path}/t/p=2"]).files] == expected[2:]


class SizesUnlisted(Renamed):
    """Lists files without their sizes, as fsspec's file system for http does. Knows none of secret ones."""

    protocol = "unlisted"

    def info(self, path: Any, **options: Any) -> dict[str, Any]:
        found: dict[str, Any] = super().info(path, **options)
        is_listed = isinstance(path, os.DirEntry)
        return {**found, "size": None} if is_listed or "secret" in found["name"] else found


def test_a_size_that_is_not_listed_is_asked_for(tmp_path: Path) -> None:
    """A file of unknown size must not count as empty."""
    fsspec.register_implementation("unlisted", SizesUnlisted, clobber=True)
    write(tmp_path / "f.parquet", {"a": [1]})
    (listed,) = ParquetFiles.find([f"unlisted://{tmp_path}"]).files
    assert listed.size == (tmp_path / "f.parquet").stat().st_size
    write(tmp_path / "secret.parquet", {"a": [1]})
    with pytest.raises(UnsupportedError, match=r"the size of .*/secret.parquet cannot be found out"):
        ParquetFiles.find([f"unlisted://{tmp_path}"])


def test_an_unknown_size_is_said_without_the_password() -> None:
    class Nameless(AbstractFileSystem):  # type: ignore[misc]
        def info(self, path: str, **options: Any) -> dict[str, Any]:
            return {"name": path, "type": "file", "size": None}

    with pytest.raises(UnsupportedError, match="the size of http://host/f cannot be found out"):
        size_of(Nameless(), "http://me:word@host/f", {"size": None})


def test_links_to_nothing_are_left_out(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "p=1" / "f.parquet", {"a": [1]})
    (tmp_path / "p=x").mkdir()
    for name in ("p=1/gone", "p=x/gone", "p=2"):
        (tmp_path / name).symlink_to(tmp_path / "nowhere")
    (tmp_path / "p=1" / "below").symlink_to(tmp_path / "p=1" / "f.parquet" / "x")
    (tmp_path / "p=1" / "loop").symlink_to(tmp_path / "p=1" / "loop")
    for path in (tmp_path, tmp_path / "p=*", tmp_path / "p=1" / "*"):
        assert ours(spark, path) == plain(spark, path), path
    assert ours(spark, tmp_path).rows == ["(1, 1)"]
    assert len(ParquetFiles.find([f"filecache::file://{tmp_path}"]).files) == 1


def test_a_path_has_one_spelling(spark: SparkSession, tree: Path) -> None:
    names = (
        "one//a.parquet",
        "two/../one",
        "one/./deep/",
        "*/./../one/deep/er",
        "two/..//one/d*",
        "{one/..,zz}/one/a*",
        "{./one,zz}/a*",
    )
    for name in names:
        by_us = {file.path for file in found(spark, f"{tree}/{name}", schema="a string").files}
        assert by_us == files_of_spark(spark, f"{tree}/{name}") != set(), name
    twice = [f"{tree}/one", f"{tree}//one/."]
    recursive = {"recursiveFileLookup": "true"}
    assert ours(spark, *twice, **recursive) == plain(spark, *twice, **recursive)


def test_an_empty_path_is_an_error() -> None:
    with pytest.raises(UsageError, match="a path is empty"):
        ParquetFiles.find([""])


@pytest.mark.parametrize("chain", ["zip://t::", "zip::file://", "simplecache::zip://t::file://"])
def test_chained_urls_are_refused(tmp_path: Path, chain: str) -> None:
    with pytest.raises(UnsupportedError, match=f"{chain}.* is a chained URL"):
        ParquetFiles.find([f"{chain}{tmp_path}/t.zip"])


class Store(AsyncFileSystem):  # type: ignore[misc]
    """An object store that has `_find` only, as fsspec's file systems for some clouds."""

    cachable = False

    async def _find(self, path: str, **options: Any) -> dict[str, Any]:
        return {f"{path}/p={day}/f": {"size": 1} for day in range(3)}

    async def _info(self, path: str, **options: Any) -> dict[str, Any]:
        return {"name": path, "type": "directory", "size": 0}

    async def _ls(self, path: str, detail: bool = True, **options: Any) -> list[Any]:
        raise AssertionError("a store lists all files at once")


def test_object_stores_list_all_files_at_once() -> None:
    assert list(find_files(FileSystem("store", Store()), ["b/t"]).files) == [
        f"b/t/p={day}/f" for day in range(3)
    ]


def put(name: str, data: bytes = b"") -> None:
    """Write an object as another process would: fsspec knows nothing of it."""
    boto3.client("s3").put_object(Bucket=BUCKET, Key=name, Body=data)


def test_objects_that_others_have_written_since_are_found(s3: S3Server, tmp_path: Path) -> None:
    write(tmp_path / "f.parquet", {"a": [1]})
    data = (tmp_path / "f.parquet").read_bytes()
    schema = st.StructType().add("a", "long")

    def names(path: str) -> list[str]:
        return [file.name for file in ParquetFiles.find([f"s3://{BUCKET}/{path}"], declared=schema).files]

    put("t/a.parquet")  # it holds nothing yet
    assert [names(path) for path in ("t", "t/*", "t/a.parquet")] == [[], [], []]
    put("t/a.parquet", data)
    put("t/b.parquet", data)
    both = ["a.parquet", "b.parquet"]
    assert [names(path) for path in ("t", "t/*", "t/a.parquet")] == [both, both, ["a.parquet"]]
    put("t/c.parquet", data)
    inside = ReadSettings(storage={"path": BUCKET, "target_protocol": "s3"})
    found = ParquetFiles.find(["dir://t/*"], inside, schema)
    assert [file.name for file in found.files] == [*both, "c.parquet"]


def test_an_empty_object_that_stands_for_a_directory_is_no_file(s3: S3Server, tmp_path: Path) -> None:
    write(tmp_path / "f.parquet", {"a": [1]})
    put("m/y=1/f.parquet", (tmp_path / "f.parquet").read_bytes())
    for marker in ("m/", "m/y=1/", "m/y=x/"):
        put(marker)
    for path in ("m", "m/*"):
        found = ParquetFiles.find([f"s3://{BUCKET}/{path}"])
        assert [file.path for file in found.files] == [f"{BUCKET}/m/y=1/f.parquet"], path
    assert ParquetFiles.find([f"s3://{BUCKET}/m"]).schema["y"].dataType == st.IntegerType()


def test_links_below_a_directory_as_a_file_system(tmp_path: Path) -> None:
    write(tmp_path / "t" / "p=1" / "f.parquet", {"a": [1]})
    write(tmp_path / "elsewhere" / "g.parquet", {"a": [2]})
    (tmp_path / "t" / "p=2").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    settings = ReadSettings(storage={"path": str(tmp_path), "target_protocol": "file"})
    files = ParquetFiles.find(["dir://t"], settings).files
    assert [file.path for file in files] == ["t/p=1/f.parquet", "t/p=2/g.parquet"]


def test_files_at_the_root_of_a_file_system_whose_paths_begin_with_no_slash(tmp_path: Path) -> None:
    write(tmp_path / "h.parquet", {"a": [3]})
    settings = ReadSettings(storage={"path": str(tmp_path), "target_protocol": "file"})
    assert [file.path for file in ParquetFiles.find(["dir://"], settings).files] == ["h.parquet"]


def test_partitions_at_the_root_of_a_file_system_whose_paths_begin_with_no_slash(tmp_path: Path) -> None:
    for day in (1, 2):
        write(tmp_path / f"p={day}" / "f.parquet", {"a": [day]})
    storage = {"path": str(tmp_path), "target_protocol": "file"}
    found = ParquetFiles.find(["dir://"], ReadSettings(storage=storage))
    assert dict(found.constants) == {"p=1": (1,), "p=2": (2,)}
    below = ParquetFiles.find(["dir://p=1"], ReadSettings(storage=storage, base_path="dir://"))
    assert dict(below.constants) == {"p=1": (1,)}


def test_what_only_begins_with_the_path_is_not_below_it() -> None:
    named = {name: ["memory://x", 0, 1] for name in ("t/f.parquet", "t2/f.parquet")}
    filesystem = FileSystem("reference", fsspec.filesystem("reference", fo=named))
    assert list(find_files(filesystem, ["t"]).files) == ["t/f.parquet"]


def test_a_directory_that_cannot_be_listed_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows would be missing. This user may list everything, so the error is made."""
    write(tmp_path / "p=1" / "f.parquet", {"a": [1]})
    write(tmp_path / "p=2" / "f.parquet", {"a": [2]})
    scandir = os.scandir

    def refusing(path: str) -> Any:
        if str(path).endswith("p=2"):
            raise PermissionError(13, "on purpose", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    with pytest.raises(PermissionError, match="on purpose"):
        ParquetFiles.find([str(tmp_path)])


@pytest.mark.parametrize("name", ["_common_metadata", "_metadata"])
@pytest.mark.parametrize("merge", ["false", "true"])
def test_a_summary_beside_partitions_says_what_the_schema_is(
    spark: SparkSession, tmp_path: Path, name: str, merge: str
) -> None:
    write(tmp_path / name, {"a": [1], "b": ["x"]})
    write(tmp_path / "p=1" / "f.parquet", {"a": [2]})
    write(tmp_path / "p=2" / "f.parquet", {"a": [3], "b": ["y"]})
    read = ours(spark, tmp_path, mergeSchema=merge)
    assert read == plain(spark, tmp_path, mergeSchema=merge)
    assert read.schema.names == ["a", "b", "p"]


def test_files_of_other_names_have_a_say_in_the_types_of_partitions(
    spark: SparkSession, tmp_path: Path
) -> None:
    write(tmp_path / "p=1" / "f.parquet", {"a": [2]})
    write(tmp_path / "p=x" / "b.csv", {"a": [3]})
    read = ours(spark, tmp_path, pathGlobFilter="*.parquet")
    assert read == plain(spark, tmp_path, pathGlobFilter="*.parquet")
    assert read.rows == ["(2, '1')"]


def test_files_in_memory_are_found_like_others() -> None:
    memory = fsspec.filesystem("memory")
    for name in ("/scan/a.parquet", "/scan/_SUCCESS", "/scan/day=1/b.parquet", "/scan/day=2/c.parquet"):
        with memory.open(name, "wb") as file:
            pq.write_table(pa.table({"name": [name]}), file)
    try:
        whole = ParquetFiles.find(["memory://scan"])
        assert whole.schema.names == ["name", "day"]
        assert [file.path for file in whole.files] == ["/scan/day=1/b.parquet", "/scan/day=2/c.parquet"]
        assert [file.path for file in ParquetFiles.find(["memory://scan/*.parquet"]).files] == [
            "/scan/a.parquet"
        ]
    finally:
        memory.rm("/scan", recursive=True)
