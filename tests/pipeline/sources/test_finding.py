"""The files read of an input, their keys, and the names of the others."""

from __future__ import annotations

import gzip
import json
import os
import uuid
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline import layout
from pipeline.codec import SamplingParams
from pipeline.commands.run import run_on
from pipeline.commands.validate import validate
from pipeline.commands.verify import verify
from pipeline.config import RunConfig
from pipeline.errors import SourceError
from pipeline.sources import BAD, FileSource, check_apart, open_source
from pipeline.sources.finding import find_files
from pipeline.storage.local import LocalStorage
from pipeline.storage.open import open_storage
from pipeline.storage.urls import lies_inside, plain_name
from testing.pipeline.fakes import InlineExecutor
from testing.pipeline.s3 import S3Server
from testing.pipeline.source_rows import all_rows, opened

LINE = b'{"prompt": "Count from 3 to 9."}\n'


@pytest.fixture(params=["local", "memory", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """A folder or prefix, its options, and a function that puts a file there."""
    name, options = f"f{uuid.uuid4().hex[:10]}", {}
    url = f"memory://{name}" if request.param == "memory" else str(tmp_path)
    if request.param == "s3":
        server: S3Server = request.getfixturevalue("s3")
        url, options = server.bucket(name), server.options
    fs, root = fsspec.core.url_to_fs(url, **options)

    def put(key: str, data: bytes = LINE) -> None:
        fs.makedirs(f"{root}/{key}".rpartition("/")[0], exist_ok=True)
        fs.pipe_file(f"{root}/{key}", data)

    return url, options, put


def source_of(name: str, folder: Path, options: Any = None, **more: Any) -> FileSource:
    source = open_source(name, LocalStorage(folder / "out", layout.SCRATCH), options=options, **more)
    assert isinstance(source, FileSource)
    return source


def test_files_that_are_not_read_are_counted_and_named(place: Any, tmp_path: Path) -> None:
    url, options, put = place
    for name in ("a.jsonl", "B.JSONL", "c.NDJSON.GZ", "_hidden.jsonl", "deep/.d.jsonl", "README.md", "e.jsonl.zip"):
        put(f"in/{name}", gzip.compress(LINE) if name.endswith(".GZ") else LINE)
    source = source_of(f"{url}/in", tmp_path, options)
    assert [file.key for file in source.files] == ["B.JSONL", "a.jsonl", "c.NDJSON.GZ"]
    assert all_rows(source, 5).num_rows == 3
    assert source.unread.count == 4
    assert set(source.unread.names) == {"_hidden.jsonl", "deep/.d.jsonl", "README.md", "e.jsonl.zip"}


def test_validate_and_the_summary_name_them(tmp_path: Path, qwen3_folder: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in ("a.jsonl", "b.jsonl.orig"):
        (tmp_path / "in" / name).write_bytes(LINE)
    os.symlink(tmp_path / "nothing", tmp_path / "in/broken.jsonl")
    os.mkfifo(tmp_path / "in/pipe.jsonl")
    config = RunConfig(
        input=str(tmp_path / "in"), output=str(tmp_path / "out"), model=str(qwen3_folder),
        sampling=SamplingParams(max_tokens=4),
    )  # fmt: skip
    summary = run_on(InlineExecutor(), config, open_storage(config.output, layout.SCRATCH))
    for text in (summary.describe(), " ".join(validate(config).warnings)):
        assert "3 files below the input" in text
        assert all(name in text for name in ("b.jsonl.orig", "broken.jsonl", "pipe.jsonl"))


@pytest.mark.parametrize("name", ["a[1].jsonl", "b [x]/c*d?.jsonl", "[e].jsonl"])
def test_names_with_brackets_are_names_if_a_file_has_them(place: Any, tmp_path: Path, name: str) -> None:
    url, options, put = place
    put(f"in [0]/{name}")
    put("in [0]/other.jsonl")
    assert [file.key for file in source_of(f"{url}/in [0]/{name}", tmp_path, options).files] == [name.split("/")[-1]]
    assert [file.key for file in source_of(f"{url}/in [0]", tmp_path, options).files] == sorted([name, "other.jsonl"])


def test_a_pattern_finds_folders_of_any_depth_and_keys_begin_at_its_first_wildcard(place: Any) -> None:
    url, options, put = place
    for name in ("in/a.jsonl", "in/x/b.jsonl", "in/x/y/c.jsonl"):
        put(name)
    keys = {
        "in/**/*.jsonl": ["a.jsonl", "x/b.jsonl", "x/y/c.jsonl"], "in/*/*.jsonl": ["x/b.jsonl"],
        "in/x/**/c.jsonl": ["y/c.jsonl"], "in/[x]/b.jsonl": ["x/b.jsonl"], "in/?.jsonl": ["a.jsonl"],
        "i*/a.jsonl": ["in/a.jsonl"],
    }  # fmt: skip
    for pattern, expected in keys.items():
        assert [found.key for found in find_files(f"{url}/{pattern}", options).files] == expected


def test_folders_that_a_pattern_names_are_not_read_and_named(place: Any, tmp_path: Path) -> None:
    url, options, put = place
    for name in ("in/a.jsonl", "in/dt=1/b.jsonl", "in/x/y/c.jsonl"):
        put(name)
    source = source_of(f"{url}/in/*", tmp_path, options)
    assert [file.key for file in source.files] == ["a.jsonl"]
    assert set(source.unread.names) == {"dt=1/", "x/"}
    assert set(find_files(f"{url}/in/**", options).unread) == set()
    with pytest.raises(SourceError, match=r"no file is there.*FOLDER/\*\*"):
        source_of(f"{url}/in/dt=*", tmp_path, options)


def test_a_uri_of_a_path_is_that_path(tmp_path: Path) -> None:
    path = tmp_path / "a b [1] %41 #\u00e9?.jsonl"
    path.write_bytes(LINE)
    assert plain_name(path.as_uri()) == str(path)
    assert [file.key for file in source_of(path.as_uri(), tmp_path).files] == [path.name]
    assert [file.key for file in source_of(tmp_path.as_uri(), tmp_path / "other").files] == [path.name]
    assert plain_name(f"file://localhost{path.parent}") == str(path.parent)
    assert lies_inside(path.as_uri(), tmp_path)


@pytest.mark.parametrize(
    ("one", "other", "inside"),
    [
        ("s3://b/in/x", "s3a://b/in", True), ("s3://b/in/../out", "s3://b/in", False),
        ("s3://b/in/../out", "s3://b/out", True),
        ("s3://b/inner", "s3://b/in", False), ("memory://in/x", "s3://in", False),
    ],
)  # fmt: skip
def test_places_in_stores_are_compared_by_what_they_name(one: str, other: str, inside: bool) -> None:
    assert lies_inside(one, other) is inside


def test_parquet_files_without_a_suffix_are_read_with_those_that_have_one(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in ("a.parquet", "part-00000", "c.snappy"):
        pq.write_table(pa.table({"prompt": [name]}), tmp_path / "in" / name)
    (tmp_path / "in/notes").write_text("PAR")
    source = source_of(str(tmp_path / "in"), tmp_path)
    assert all_rows(source, 5)["prompt"].to_pylist() == ["a.parquet", "c.snappy", "part-00000"]
    assert source.unread.names == ("notes",)
    assert [file.key for file in source_of(str(tmp_path / "in/part-*"), tmp_path).files] == ["part-00000"]


def test_a_folder_that_cannot_be_listed_is_an_error_and_not_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in/closed").mkdir(parents=True)
    (tmp_path / "in/a.jsonl").write_bytes(LINE)
    listed = os.listdir

    def denied(path: str) -> list[str]:
        if path.endswith("closed"):
            raise PermissionError(13, "Permission denied", path)
        return listed(path)

    monkeypatch.setattr("pipeline.sources.walking.os.listdir", denied)
    for name in ("in", "in/**/*.jsonl"):
        with pytest.raises(SourceError, match="closed: cannot be listed"):
            source_of(str(tmp_path / name), tmp_path)


# --- text files -------------------------------------------------------------------------------------


def test_a_text_file_is_one_prompt_as_it_is(place: Any, tmp_path: Path) -> None:
    url, options, put = place
    texts = {
        "a.txt": b"Count\n from 3\r\n to 9.\n",
        "b/C.TXT": b"\xef\xbb\xbfx",
        "d.txt": b"\xff",
        "e.txt.gz": gzip.compress(b"y"),
    }
    for name, data in texts.items():
        put(f"in/{name}", data)
    put("in/rows.jsonl")
    source = source_of(f"{url}/in", tmp_path, options, input_format="text")
    rows = all_rows(source, 5)
    assert [file.key for file in source.files] == list(texts)
    assert rows["prompt"].to_pylist() == ["Count\n from 3\r\n to 9.\n", "x", None, "y"]
    assert ["UTF-8" in str(fault) for fault in rows[BAD].to_pylist()] == [False, False, True, False]
    assert source.unread.names == ("rows.jsonl",)


def test_text_files_have_to_be_asked_for(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.txt").write_text("x")
    with pytest.raises(SourceError, match=r"unknown suffix of 'a\.txt'.*input_format=\"text\""):
        opened(tmp_path / "in", tmp_path)
    (tmp_path / "in/rows.jsonl").write_bytes(LINE)
    assert source_of(str(tmp_path / "in"), tmp_path).unread.names == ("a.txt",)
    with pytest.raises(SourceError, match=r"unknown suffix of 'rows\.jsonl'"):
        source_of(str(tmp_path / "in/rows.jsonl"), tmp_path, input_format="text")


def test_a_run_over_text_files_is_proved_and_goes_on(tmp_path: Path, qwen3_folder: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.txt").write_text("Count from 3 to 9.")
    config = RunConfig(
        input=str(tmp_path / "in"), output=str(tmp_path / "out"), model=str(qwen3_folder), input_format="text",
        sampling=SamplingParams(max_tokens=4),
    )  # fmt: skip
    for rows, name in ((1, "b.txt"), (2, "c.txt")):
        assert run_on(InlineExecutor(), config, open_storage(config.output, layout.SCRATCH)).total.rows == rows
        assert verify(config.output, input=config.input).problems == ()
        (tmp_path / "in" / name).write_text(f"Count from 4 to {name}")


def test_a_tilde_is_the_home_folder_at_the_begin_of_a_name_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, here = tmp_path / "home", tmp_path / "here"
    for folder, text in ((home, "home"), (here / "~", "here")):
        folder.mkdir(parents=True)
        (folder / "a.jsonl").write_text(json.dumps({"prompt": text}) + "\n")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(here)
    for name in (".", "./~", "./~/a.jsonl", "*/a.jsonl"):
        assert [file.path for file in source_of(name, tmp_path / "out").files] == [str(here / "~" / "a.jsonl")]
    assert [file.path for file in source_of("~/a.jsonl", tmp_path / "out").files] == [str(home / "a.jsonl")]
    assert LocalStorage("./~/out", layout.SCRATCH).url == str(here / "~" / "out")


def test_names_that_cannot_be_read_are_refused_by_their_cause(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "link.jsonl").symlink_to("nowhere.jsonl")
    causes = {"pipe.jsonl": "a pipe, socket or device", "link.jsonl": "a link without a target",
              "x" * 300 + ".jsonl": "cannot be looked up .File name too long."}  # fmt: skip
    for name, cause in causes.items():
        check_apart(str(tmp_path / name), str(tmp_path / "out"))
        with pytest.raises(SourceError, match=f"^input=.*: {cause}"):
            source_of(str(tmp_path / name), tmp_path / "out")
