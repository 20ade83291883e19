"""Ids of rows follow from the name of the input and never from the files that are there: no row is done twice."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import pytest

from pipeline import layout
from pipeline.codec import SamplingParams
from pipeline.commands.read import read
from pipeline.commands.run import run_on
from pipeline.commands.validate import validate
from pipeline.commands.verify import verify
from pipeline.config import RunConfig
from pipeline.errors import FingerprintError
from pipeline.storage.open import open_storage
from testing.pipeline.fakes import InlineExecutor
from testing.pipeline.s3 import S3Server

Put = Callable[[str, int], None]


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, dict[str, Any], Put]:
    """A folder or prefix, its options, and a function that puts a file of three rows there."""
    url, options = str(tmp_path), {}
    if getattr(request, "param", "local") == "s3":
        server: S3Server = request.getfixturevalue("s3")
        url, options = server.bucket(f"names{uuid.uuid4().hex[:8]}"), server.options
    fs, root = fsspec.core.url_to_fs(url, **options)

    def put(name: str, first: int) -> None:
        fs.makedirs(f"{root}/{name}".rpartition("/")[0], exist_ok=True)
        lines = [{"prompt": f"Count from {i} to 9.", "id": f"q{i}"} for i in range(first, first + 3)]
        fs.pipe_file(f"{root}/{name}", "".join(f"{json.dumps(line)}\n" for line in lines).encode())

    return url, options, put


@pytest.fixture
def config(tmp_path: Path, qwen3_folder: Path) -> RunConfig:
    return RunConfig(
        input="in", output=str(tmp_path / "out"), model=str(qwen3_folder), sampling=SamplingParams(max_tokens=4)
    )


def go(config: RunConfig) -> list[str]:
    """The row ids of the output, in order of their text, after a run that ``verify`` proves."""
    run_on(InlineExecutor(), config, open_storage(config.output, layout.SCRATCH), lambda progress: None)
    proved = verify(config.output, input=config.input, input_storage_options=config.input_options)
    assert proved.problems == ()
    return sorted(read(config.output, format="arrow")["row_id"].to_pylist())


def ids(*keys: str) -> list[str]:
    return sorted(f"{key}:{row}" for key in keys for row in range(3))


PATTERNS = ["in/dt=*/a.jsonl", "in/**/*.jsonl", "in"]


@pytest.mark.sweep(4)
@pytest.mark.parametrize(
    ("place", "pattern", "id_column"),
    [*(("local", pattern, name) for pattern in PATTERNS for name in (None, "id")), ("s3", "in/**/*.jsonl", None),
     ("s3", "in", "id")],
    indirect=["place"],
)  # fmt: skip
def test_folders_that_come_later_double_no_row(
    place: Any, config: RunConfig, pattern: str, id_column: str | None
) -> None:  # fmt: skip
    url, options, put = place
    config = replace(config, input=f"{url}/{pattern}", input_storage_options=options, id_column=id_column)
    put("in/dt=1/a.jsonl", 0)
    first, second = ids("dt=1/a.jsonl"), ids("dt=2/a.jsonl")
    if id_column is not None:
        first, second = ["q0", "q1", "q2"], ["q10", "q11", "q12"]
    assert go(config) == first
    put("in/dt=2/a.jsonl", 10)
    assert go(config) == sorted([*first, *second])
    assert go(config) == sorted([*first, *second])


@pytest.mark.parametrize("pattern", PATTERNS)
def test_folders_that_go_change_no_id(place: Any, config: RunConfig, pattern: str) -> None:
    url, options, put = place
    config = replace(config, input=f"{url}/{pattern}", input_storage_options=options, unit_rows=3)
    put("in/dt=1/a.jsonl", 0)
    put("in/dt=2/a.jsonl", 10)
    assert go(config) == ids("dt=1/a.jsonl", "dt=2/a.jsonl")
    fs, root = fsspec.core.url_to_fs(url, **options)
    fs.rm(f"{root}/in/dt=1", recursive=True)
    put("in/dt=3/a.jsonl", 20)
    run_on(InlineExecutor(), config, open_storage(config.output, layout.SCRATCH), lambda progress: None)
    found = read(config.output, format="arrow")["row_id"].to_pylist()
    assert sorted(found) == ids("dt=1/a.jsonl", "dt=2/a.jsonl", "dt=3/a.jsonl")


@pytest.mark.parametrize(
    ("first", "then"), [("in/x/*.jsonl", "in/*/*.jsonl"), ("in/x/a.jsonl", "in/**/a.jsonl"), ("in/x", "in")]
)
def test_a_run_keeps_the_folder_that_it_was_begun_with(
    place: Any, config: RunConfig, first: str, then: str
) -> None:  # fmt: skip
    url, options, put = place
    config = replace(config, input=f"{url}/{first}", input_storage_options=options)
    put("in/x/a.jsonl", 0)
    assert go(config) == ids("a.jsonl")
    put("in/y/a.jsonl", 10)
    assert go(replace(config, input=f"{url}/{then}")) == ids("a.jsonl", "../y/a.jsonl")
    assert go(replace(config, input=f"{url}/in")) == ids("a.jsonl", "../y/a.jsonl")


def test_an_input_that_was_moved_keeps_its_ids(place: Any, config: RunConfig) -> None:
    url, options, put = place
    config = replace(config, input_storage_options=options)
    put("in/dt=1/a.jsonl", 0)
    assert go(replace(config, input=f"{url}/in/*/a.jsonl")) == ids("dt=1/a.jsonl")
    for name, first in (("moved/dt=1/a.jsonl", 0), ("moved/dt=2/a.jsonl", 10)):
        put(name, first)
    assert go(replace(config, input=f"{url}/moved/*/a.jsonl")) == ids("dt=1/a.jsonl", "dt=2/a.jsonl")


@pytest.mark.parametrize("check", [go, lambda config: [] if (v := validate(config)).ok else _fail(v.problems)])
def test_a_file_of_the_run_under_another_name_is_an_error_that_names_both(
    place: Any, config: RunConfig, check: Callable[[RunConfig], Any]
) -> None:
    url, options, put = place
    config = replace(config, input=f"{url}/in", input_storage_options=options)
    put("in/a.jsonl", 0)
    put("in/kept.jsonl", 10)
    go(config)
    fs, root = fsspec.core.url_to_fs(url, **options)
    fs.mv(f"{root}/in/a.jsonl", f"{root}/in/b.jsonl")
    with pytest.raises(FingerprintError, match=r"'a\.jsonl'.* is gone, and 'b\.jsonl' has the same content"):
        check(config)
    fs.mv(f"{root}/in/b.jsonl", f"{root}/in/a.jsonl")
    assert go(config) == ids("a.jsonl", "kept.jsonl")


def _fail(problems: tuple[str, ...]) -> list[str]:
    raise FingerprintError(problems[0])


def test_files_of_equal_content_are_no_renamed_ones(place: Any, config: RunConfig) -> None:
    url, options, put = place
    config = replace(config, input=f"{url}/in", input_storage_options=options)
    put("in/a.jsonl", 0)
    go(config)
    put("in/b.jsonl", 0)
    assert go(config) == ids("a.jsonl", "b.jsonl")


def test_links_to_folders_are_read_by_a_folder_and_a_pattern_and_end(tmp_path: Path, config: RunConfig) -> None:
    lines = json.dumps({"prompt": "Count from 3 to 9."})
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/b.jsonl").write_text(lines)
    (tmp_path / "in").mkdir()
    os.symlink(tmp_path / "elsewhere", tmp_path / "in/linked")
    os.symlink(tmp_path / "in", tmp_path / "in/loop")
    os.symlink(tmp_path / "elsewhere/b.jsonl", tmp_path / "in/a.jsonl")
    expected = ["a.jsonl:0", "linked/b.jsonl:0"]
    for number, name in enumerate(("in", "in/**/*.jsonl")):
        assert go(replace(config, input=str(tmp_path / name), output=str(tmp_path / f"out{number}"))) == expected
