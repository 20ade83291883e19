"""A file system travels as URL and references: its pickle holds no secret, and opens where the reference leads."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray

from pipeline import layout
from pipeline.config import RunConfig
from pipeline.errors import ConfigError
from pipeline.plan.job import resolve_job
from pipeline.sources.source_opening import source_of
from pipeline.storage.open import open_storage
from pipeline.storage.urls import open_filesystem
from testing.pipeline.s3 import S3Server


@pytest.fixture
def options(s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setenv("URLS_KEY", "urls-key-Xc71")
    (tmp_path / "secret").write_text("urls-secret-Xc72\n")
    return {**s3.options, "key": {"env": "URLS_KEY"}, "secret": {"file": str(tmp_path / "secret")}}


def test_a_pickled_file_system_holds_references_only_and_works_again(s3: S3Server, options: dict[str, Any]) -> None:
    url = s3.bucket("urls")
    fs, _ = open_filesystem(url, options)
    fs.pipe_file("urls/a", b"x")
    for dumped in (pickle.dumps(fs), ray.cloudpickle.dumps([fs])):
        assert b"Xc7" not in dumped
        assert b"URLS_KEY" in dumped
    assert pickle.loads(pickle.dumps(fs)).cat_file("urls/a") == b"x"


def test_what_is_sent_to_tasks_and_actors_holds_no_secret_once_it_was_used(
    s3: S3Server, options: dict[str, Any], qwen3_folder: Path
) -> None:
    url = s3.bucket("urls2")
    fs, _ = open_filesystem(url, options)
    with fs.open("urls2/in.parquet", "wb") as file:
        pq.write_table(pa.table({"prompt": ["a", "b"]}), file)
    config = RunConfig(
        input=f"{url}/in.parquet", output=f"{url}/out", model=str(qwen3_folder), storage_options=options
    )  # fmt: skip
    storage = open_storage(config.output, layout.SCRATCH, config.output_options)
    storage.put("probe", b"x")
    job = resolve_job(config, source_of(config, storage), storage)
    assert sum(table.num_rows for table in job.source.read(list(job.source.slices(5)))) == 2
    dumped = ray.cloudpickle.dumps(job)
    assert b"URLS_KEY" in dumped
    assert b"Xc7" not in dumped


def test_a_process_without_the_secret_says_so_instead_of_asking_the_store(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("URLS_KEY")
    with pytest.raises(ConfigError, match=r"options\.key refers to \{env: URLS_KEY\}, which is not set"):
        open_filesystem("s3://urls", options)
