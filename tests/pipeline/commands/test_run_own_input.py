"""An output never holds its own input, and nothing of it is removed before the next run can begin."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline import layout
from pipeline.codec import SamplingParams
from pipeline.commands.chain import chain_on
from pipeline.commands.chain_config import ChainConfig
from pipeline.commands.etl import etl, etl_on
from pipeline.commands.etl_config import EtlConfig
from pipeline.commands.read import read
from pipeline.commands.run import run, run_on
from pipeline.commands.validate import validate
from pipeline.config import RunConfig
from pipeline.errors import PipelineError, SourceError
from pipeline.storage.open import open_storage
from testing.pipeline.chains import ChainExecutor
from testing.pipeline.fakes import InlineExecutor

ROWS = [{"prompt": f"Count from {i} to 9.", "id": f"q{i}"} for i in range(3)]


@pytest.fixture
def done(tmp_path: Path, qwen3_folder: Path) -> RunConfig:
    """A run over ``in`` to ``out``, which is done; the published rows are JSON Lines with prompts, as is the input."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    config = RunConfig(
        input=str(tmp_path / "in"), output=str(tmp_path / "out"), model=str(qwen3_folder), output_format="jsonl",
        sampling=SamplingParams(max_tokens=4), column_prefix="gen_",
    )  # fmt: skip
    run_on(InlineExecutor(), config, storage(config))
    return config


def storage(config: RunConfig) -> Any:
    return open_storage(config.output, layout.SCRATCH)


def published(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("data-*/part-*")}


INSIDE = [
    "out", "out/data-000000", "out/data-000000/part-000000.jsonl", "out/data-*/*.jsonl", "out/**/*.jsonl", "in/../out",
    "link", "link/data-000000", "folder", "*/data-*/*.jsonl", "in/../*/*/*.jsonl",
]  # fmt: skip


@pytest.mark.sweep(8)
@pytest.mark.parametrize("given", INSIDE)
@pytest.mark.parametrize("mode", ["new", "resume"])
def test_an_input_in_the_output_is_refused_and_stays(tmp_path: Path, done: RunConfig, given: str, mode: Any) -> None:
    os.symlink(tmp_path / "out", tmp_path / "link")
    (tmp_path / "folder").mkdir()
    os.symlink(tmp_path / "out/data-000000", tmp_path / "folder/linked")
    before = published(tmp_path / "out")
    config = replace(done, input=str(tmp_path / given), mode=mode)
    with pytest.raises(SourceError, match="lies in"):
        run(config=config)
    assert published(tmp_path / "out") == before
    assert any("lies in" in problem for problem in validate(config).problems)


@pytest.mark.parametrize("given", ["in/out", "in/../in/x/../out", "link/out", "in/deep/../out"])
def test_an_output_in_the_input_is_refused(tmp_path: Path, done: RunConfig, given: str) -> None:
    (tmp_path / "in/deep").mkdir()
    os.symlink(tmp_path / "in", tmp_path / "link")
    for command in (lambda c: run(config=c), lambda c: etl(EtlConfig(run=c))):
        with pytest.raises(SourceError, match="lies inside"):
            command(replace(done, output=str(tmp_path / given)))
    assert not (tmp_path / "in/out").exists()


def test_scheduled_runs_read_no_link_to_their_table(tmp_path: Path, done: RunConfig) -> None:
    os.symlink(tmp_path / "out", tmp_path / "in/back")
    config = EtlConfig(run=replace(done, mode="new"))
    with pytest.raises(SourceError, match="lies in"):
        etl_on(InlineExecutor(), config, storage(done))
    assert read(done.output, format="arrow").num_rows == 3


FAULTS: dict[str, tuple[str, bytes, dict[str, Any]]] = {
    "gone": ("", b"", {"input": "nothing.jsonl"}),
    "damaged": ("x.parquet", b"PAR1 damaged", {}),
    "no such column": ("x.jsonl", b'{"prompt": "a"}\n', {"prompt_column": "question"}),
    "name of ours": ("x.jsonl", b'{"prompt": "a", "gen_text": 1}\n', {}),
    "no rows": ("x.jsonl", b"\n", {}),
    "all fail": ("x.jsonl", b'{"prompt": ""}\n', {}),
    "ids": ("x.jsonl", b'{"prompt": "a", "id": 1}\n' * 2, {"id_column": "id"}),
    "in memory": ("", b"", {"input": [{"question": "a"}]}),
}


def faulty(config: RunConfig, fault: str, folder: Path) -> RunConfig:
    """The configuration with ``mode="new"`` and an input that is at fault."""
    name, data, fields = FAULTS[fault]
    if name:
        (folder / "other").mkdir()
        (folder / "other" / name).write_bytes(data)
    return replace(config, **{"input": str(folder / "other"), **fields}, mode="new")


@pytest.mark.parametrize("fault", FAULTS)
def test_a_new_run_that_cannot_begin_removes_nothing(tmp_path: Path, done: RunConfig, fault: str) -> None:
    before = published(tmp_path / "out")
    with pytest.raises(PipelineError):
        run_on(InlineExecutor(), faulty(done, fault, tmp_path), storage(done))
    assert published(tmp_path / "out") == before
    assert read(done.output, format="arrow").num_rows == 3
    run_on(InlineExecutor(), done, storage(done))


@pytest.mark.parametrize("fault", ["gone", "damaged", "no such column", "in memory"])
def test_a_new_chain_that_cannot_begin_removes_nothing(tmp_path: Path, done: RunConfig, fault: str) -> None:
    def go(base: RunConfig) -> None:
        chain = ChainConfig.of(
            base, [{"name": "one"}, {"name": "two", "prompt_column": "gen_text", "column_prefix": "b_"}]
        )
        chain_on([ChainExecutor()], chain, [storage(own.run) for own in chain.stages])

    go(done)
    before = published(tmp_path / "out")
    with pytest.raises(PipelineError):
        go(faulty(done, fault, tmp_path))
    assert published(tmp_path / "out") == before


@pytest.mark.parametrize("fault", ["gone", "damaged", "no such column", "name of ours"])
def test_a_new_table_that_cannot_begin_removes_nothing(tmp_path: Path, done: RunConfig, fault: str) -> None:
    table = replace(done, output=str(tmp_path / "table"))
    etl_on(InlineExecutor(), EtlConfig(run=table), storage(table))
    before = published(tmp_path / "table")
    with pytest.raises(PipelineError):
        etl_on(InlineExecutor(), EtlConfig(run=faulty(table, fault, tmp_path)), storage(table))
    assert published(tmp_path / "table") == before


def test_rows_in_memory_begin_a_new_run_in_place_of_a_done_one(tmp_path: Path, done: RunConfig) -> None:
    config = replace(done, input=[*ROWS, {"prompt": "Count from 7 to 9.", "id": "new"}], mode="new")
    run_on(InlineExecutor(), config, storage(config))
    assert read(done.output, format="arrow").num_rows == 4
    run_on(InlineExecutor(), config, storage(config))  # the spooled rows of the run before are kept once
    assert len(storage(config).keys(layout.INPUT)) == 1
