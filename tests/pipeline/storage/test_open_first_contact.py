"""A store that does not answer is told soon, with its endpoint; one that refuses has answered."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobs import generate
from pipeline.config import RunConfig
from pipeline.errors import ConfigError, OutputError, SourceError
from pipeline.prompts.model_files import check_model
from pipeline.sources.finding import find_files
from pipeline.storage import open as opening
from pipeline.storage.open import open_storage
from testing.pipeline.s3 import S3Server

LIMIT = 5.0


@pytest.fixture
def mute() -> Iterator[str]:
    """An endpoint that takes connections and never answers, as a firewall or a hung proxy does."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(16)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def closed() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


def options(endpoint: str) -> dict[str, Any]:
    return {"key": "a", "secret": "b", "endpoint_url": endpoint}


def test_a_run_with_a_store_that_never_answers_ends_soon(
    mute: str, qwen3_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert opening._LIMIT_SECONDS <= 6, "within ten seconds"
    monkeypatch.setattr(opening, "_LIMIT_SECONDS", 0.5)
    begin = time.monotonic()
    status = generate.main([
        "--input", "s3://bucket/in.jsonl", "--output", str(tmp_path / "out"), "--model", str(qwen3_folder),
        "--storage-options", f"{{key: a, secret: b, endpoint_url: '{mute}'}}"])  # fmt: skip
    assert time.monotonic() - begin < LIMIT
    last = capsys.readouterr().err.splitlines()[-1]
    assert status == 2
    assert last.startswith(
        f"error: input='s3://bucket/in.jsonl': the store at {mute} does not answer (none within 0.5 s)"
    )
    assert "Check endpoint_url of storage_options" in last


def test_a_store_that_refuses_connections_is_told_for_input_output_and_model_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(opening, "_LIMIT_SECONDS", 0.5)
    endpoint = closed()
    config = RunConfig(input="a", output="b", model="s3://bucket/model", storage_options=options(endpoint))
    for failure, name, ask in (
        (SourceError, "input='s3://bucket/x'", lambda: find_files("s3://bucket/x", options(endpoint))),
        (OutputError, "output='s3://bucket/y'", lambda: open_storage("s3://bucket/y", "scratch", options(endpoint))),
        (ConfigError, "model='s3://bucket/model'", lambda: check_model(config)),
    ):
        with pytest.raises(failure, match=f"{name}: the store at {endpoint} does not answer .*Connection refused"):
            ask()


def test_a_store_that_answers_is_asked_once_even_if_it_refuses(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "_reached", set())
    asked: list[str] = []
    ask = opening._ask
    monkeypatch.setattr(opening, "_ask", lambda fs, bucket, found: asked.append(bucket) or ask(fs, bucket, found))
    assert find_files("s3://no-such-bucket-1/x/*", s3.options).files == []
    assert find_files("s3://no-such-bucket-2/x/*", s3.options).files == []
    assert asked == ["no-such-bucket-1"]
