"""Literal secrets stay in a session of this machine; on a cluster they are refused, with a remedy."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

import pipeline
from pipeline.commands.run_checks import check_secrets
from pipeline.config import RunConfig
from testing.pipeline.s3 import CREDENTIAL, S3Server

LITERAL = "given-literally-7"


def config(**options: Any) -> RunConfig:
    return RunConfig(input="in.jsonl", output="out", **options)


def test_on_a_cluster_every_literal_secret_is_named_and_refused_before_anything_is_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")  # nobody listens there, and nobody is asked
    given = {"storage_options": {"secret": LITERAL}, "dataset_options": {"split": "a", "token": LITERAL}}
    (tmp_path / "in.jsonl").write_text('{"prompt": "a"}\n')
    with pytest.raises(pipeline.ConfigError) as caught:
        pipeline.run(tmp_path / "in.jsonl", output=tmp_path / "out", storage_options=given["storage_options"])
    assert str(caught.value).startswith("storage_options.secret: given literally, and on a cluster")
    assert "Write {env: NAME} or {file: /path}" in str(caught.value)
    with pytest.raises(pipeline.ConfigError, match=r"^storage_options\.secret, dataset_options\.token: "):
        check_secrets(config(**given))
    monkeypatch.setattr("pipeline.commands.validate.check_resources", lambda config: None)  # it would join
    found = pipeline.validate(RunConfig(
        input=str(tmp_path / "in.jsonl"), output=str(tmp_path / "out"), storage_options=given["storage_options"]
    ))  # fmt: skip
    assert any("given literally" in problem for problem in found.problems)
    assert LITERAL not in repr(found)


def test_on_a_cluster_references_and_what_is_no_secret_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    check_secrets(config(storage_options={"key": {"env": "A"}, "secret": {"file": "/b"}, "anon": False}))
    check_secrets(config(storage_options={"endpoint_url": "http://h:1"}))


URLS = [
    ("input", "http://me:pw-7@host/in.jsonl"),
    ("input", "https://host/in.parquet?X-Amz-Credential=a&X-Amz-Signature=b"),
    ("output", "s3://key:pw-7@bucket/out"),
    ("output", "ftp://me:p@w/7@host/out"),
    ("model", "https://token-7@host/model"),
    ("storage_options", {"client_kwargs": {"endpoint_url": "http://me:pw-7@host:1"}}),
]


@pytest.mark.parametrize(("name", "value"), URLS, ids=[str(url) for _, url in URLS])
def test_on_a_cluster_credentials_in_a_url_are_refused_too(
    name: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = RunConfig(**{"input": "in.jsonl", "output": "out", name: value})
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    check_secrets(given)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(pipeline.ConfigError, match=rf"^{name}.*Write|Give") as caught:
        check_secrets(given)
    assert "{env: NAME}" in str(caught.value)
    assert "pw-7" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["abfs://container@account.dfs.core.windows.net/out", "s3://bucket/key=5/a@b", "sftp://me@host/out", "out"]
)
def test_names_before_an_at_are_no_credentials(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    check_secrets(RunConfig(input=url, output=url, model=url))


@pytest.mark.parametrize("name", ["input", "output", "model"])
def test_a_url_whose_credentials_are_masked_is_refused(name: str) -> None:
    with pytest.raises(pipeline.ConfigError, match=rf"{name}=.*stands for credentials that were left out"):
        RunConfig(**{"input": "in", "output": "out", name: "s3://***@bucket/x"})


@pytest.mark.usefixtures("cluster")
def test_in_a_session_that_this_process_began_alone_on_this_machine_literal_ones_are_taken() -> None:
    check_secrets(config(storage_options={"secret": LITERAL}))


def test_without_a_session_literal_ones_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    check_secrets(config(storage_options={"secret": LITERAL}))


@pytest.mark.usefixtures("cluster")
def test_a_worker_that_lacks_the_variable_ends_the_run_with_its_name_and_the_machine(
    s3: S3Server, qwen3_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONLY_IN_THE_DRIVER", CREDENTIAL)  # the session's processes were begun before
    url = s3.bucket("lacking")
    options = {**s3.options, "secret": {"env": "ONLY_IN_THE_DRIVER"}}
    with pytest.raises(pipeline.ConfigError) as caught:
        pipeline.run([{"prompt": "a"}], output=f"{url}/out", model=str(qwen3_folder), storage_options=options)
    said = str(caught.value)
    assert said.startswith("storage_options.secret refers to {env: ONLY_IN_THE_DRIVER}, which is not set, or empty, in")
    assert f"on {socket.gethostname()}. The driver and every worker need it" in said
