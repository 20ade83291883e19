"""Listings: which files are shown, that folders out of range are not looked into, and stamps."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import fsspec
import pytest

from pipeline.errors import ConfigError, SourceError
from pipeline.sources import walking
from pipeline.sources.finding import find_files
from pipeline.sources.identity import source_file
from pipeline.sources.listing import PartitionRange, found_of, list_files
from testing.pipeline.s3 import S3Server

EVERYTHING = PartitionRange(key="dt")
NAMES = [
    "top.jsonl", "dt=1/a.jsonl", "dt=2/a.jsonl", "dt=2/deep/b.jsonl", "dt=10/a.jsonl", "x/dt=2/c.jsonl",
    "x/dt=3/c.jsonl", "dt=__HIVE_DEFAULT_PARTITION__/n.jsonl", "_tmp/h.jsonl", "dt=2/.h.jsonl", "dt=2/_deep/h.jsonl",
]  # fmt: skip
SEEN = [name for name in NAMES if "h.jsonl" not in name]


@pytest.fixture(params=["local", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, dict[str, Any]]:
    """A folder or prefix with files, and its file system's options."""
    url, options = str(tmp_path), {}
    if request.param == "s3":
        server: S3Server = request.getfixturevalue("s3")
        url, options = f"{server.bucket(f'listing{os.getpid()}-{id(request)}')}/in", server.options
    fs, root = fsspec.core.url_to_fs(url, **options)
    for name in NAMES:
        fs.makedirs(f"{root}/{name}".rpartition("/")[0], exist_ok=True)
        fs.pipe_file(f"{root}/{name}", b'{"prompt": "a"}\n')
    return url, options


def keys(place: tuple[str, dict[str, Any]], within: PartitionRange = EVERYTHING) -> set[str]:
    return {file.key for file in list_files(*place, within)}


def test_without_a_range_all_but_hidden_files_are_there_as_for_any_other_input(
    place: tuple[str, dict[str, Any]]
) -> None:  # fmt: skip
    assert keys(place) == set(SEEN) == {found.key for found in find_files(*place).files}


@pytest.mark.parametrize(
    ("first", "last", "shown"),
    [
        ("2", None, {"dt=2/a", "dt=2/deep/b", "dt=10/a", "x/dt=2/c", "x/dt=3/c"}),
        (None, "2", {"dt=1/a", "dt=2/a", "dt=2/deep/b", "x/dt=2/c"}),
        ("3", "9", {"x/dt=3/c"}),
    ],
)
def test_a_range_shows_its_partitions_at_any_depth(
    place: tuple[str, dict[str, Any]], first: str | None, last: str | None, shown: set[str]
) -> None:
    found = keys(place, PartitionRange(key="dt", first=first, last=last))
    assert found == {f"{name}.jsonl" for name in shown}


def test_a_listed_file_has_the_stamp_and_the_digest_of_one_that_was_found(place: tuple[str, dict[str, Any]]) -> None:
    by_key = {found.key: source_file(found, place[1]) for found in find_files(*place).files}
    for file in list_files(*place, EVERYTHING):
        assert file.stamp == by_key[file.key].stamp
        assert source_file(found_of(file), place[1]) == by_key[file.key]
        assert file.size == 16
        assert file.modified is not None


def test_folders_out_of_range_are_not_looked_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for day in range(1, 6):
        (tmp_path / f"dt={day}" / "deep").mkdir(parents=True)
    looked = []
    listed = os.listdir
    monkeypatch.setattr(walking.os, "listdir", lambda path: looked.append(Path(path).name) or listed(path))
    list(list_files(tmp_path, {}, PartitionRange(key="dt", first="4")))
    assert set(looked) == {tmp_path.name, "dt=4", "dt=5", "deep"}
    assert len(looked) == 5


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path, s3: S3Server) -> None:
    with pytest.raises(SourceError, match="no such folder"):
        list(list_files(tmp_path / "none", {}, EVERYTHING))
    with pytest.raises(SourceError, match="nobucket-at-all"):
        list(list_files("s3://nobucket-at-all/in", s3.options, EVERYTHING))


@pytest.mark.parametrize(
    ("first", "last", "value", "inside"),
    [
        ("2026-11-01", "2026-11-30", "2026-11-30", True),
        ("2026-11-01", "2026-11-30", "2026-12-01", False),
        ("2026-11-01", "2026-11-30", "2026-10-31", False),
        ("2026-11", "2026-11", "2026-11-21", True),
        (None, "9", "10", False),
        ("9", None, "10", True),
        (None, "9", "90", False),
        (None, "x", None, False),
        (None, None, None, True),
    ],
)
def test_bounds_belong_to_a_range(first: str | None, last: str | None, value: str | None, inside: bool) -> None:
    text = "__HIVE_DEFAULT_PARTITION__" if value is None else value
    assert PartitionRange(key="dt", first=first, last=last).holds(f"a/dt={text}/b") is inside


def test_an_empty_range_is_refused() -> None:
    with pytest.raises(ConfigError, match="dt=10 to dt=9"):
        PartitionRange(key="dt", first="10", last="9")
    PartitionRange(key="dt", first="2026-11-21", last="2026-11")
