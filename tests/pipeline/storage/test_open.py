"""Kinds of outputs, and the message for one that cannot be written to."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import fsspec
import pytest

import pipeline
from pipeline import layout
from pipeline.errors import ConfigError, SourceError
from pipeline.storage.open import check_output_url, open_storage
from testing.pipeline.s3 import S3Server


@pytest.fixture
def no_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An environment without credentials for the S3 client, with pauses between attempts as in a run."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setattr("pipeline.storage.retry._FIRST_WAIT_SECONDS", 5.0)


@pytest.mark.parametrize("output", ["", "file://", "s3://", "a\0b", None, 5])
@pytest.mark.parametrize("command", [pipeline.read, pipeline.status, pipeline.verify, pipeline.report])
def test_an_output_that_names_no_folder_is_refused(command: Any, output: Any) -> None:
    with pytest.raises(ConfigError, match=r"output=.*: names no folder\. Name a folder"):
        command(output)


@pytest.mark.parametrize("below", ["", "/sub/folder"])
def test_an_output_that_is_a_file_says_so(tmp_path: Path, below: str) -> None:
    (tmp_path / "out.parquet").write_bytes(b"mine")
    output = f"{tmp_path}/out.parquet{below}"
    for use in (
        lambda: pipeline.run([{"prompt": "a"}], output=output),
        lambda: pipeline.read(output),
        lambda: pipeline.status(output),
    ):
        with pytest.raises(ConfigError, match=r"is a file\. Name a folder") as caught:
            use()
        assert f"out.parquet{below}'" in str(caught.value)
    assert (tmp_path / "out.parquet").read_bytes() == b"mine"


def test_an_output_that_is_an_object_says_so(s3: S3Server) -> None:
    bucket = s3.bucket("an-object")
    with fsspec.open(f"{bucket}/out.parquet", "wb", **s3.options) as file:
        file.write(b"mine")
    with pytest.raises(ConfigError, match=r"out\.parquet' is an object\. Name a folder"):
        pipeline.run([{"prompt": "a"}], output=f"{bucket}/out.parquet", storage_options=s3.options)
    check_output_url(f"{bucket}/out", s3.options)
    check_output_url(f"{bucket}/", s3.options)


def test_a_store_without_credentials_fails_at_once_and_does_not_speak_of_what_is_committed(
    no_credentials: None, s3: S3Server, tmp_path: Path
) -> None:
    bucket = s3.bucket("locked")
    options = {"endpoint_url": s3.endpoint}
    begin = time.monotonic()
    with pytest.raises(SourceError) as of_input:
        pipeline.run(f"{bucket}/in", output=str(tmp_path / "out"), model="tiny", storage_options=options)
    with pytest.raises(ConfigError) as of_output:
        pipeline.run([{"prompt": "a"}], output=f"{bucket}/out", model="tiny", storage_options=options)
    with pytest.raises(pipeline.PipelineError) as of_read:
        open_storage(f"{bucket}/out", layout.SCRATCH, options).read("x")
    assert time.monotonic() - begin < 5.0, "no pause, so no second attempt"
    for caught in (of_input, of_output, of_read):
        said = str(caught.value)
        assert bucket in said
        assert "no usable credentials" in said
        assert "AWS_ACCESS_KEY_ID" in said
        assert "'anon': True" in said
        assert "committed" not in said
        assert "times" not in said
