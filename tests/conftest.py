"""Models and the S3 server that every test may use, made once per session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.support.models import write_model
from tests.support.s3 import S3Server, serve_s3

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def qwen3_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Qwen3-style model."""
    return write_model(tmp_path_factory.mktemp("models") / "qwen3", qwen3=True, seed=1)


@pytest.fixture(scope="session")
def qwen25_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Qwen2.5-style model, tied embeddings."""
    return write_model(tmp_path_factory.mktemp("models") / "qwen25", qwen3=False, seed=2)


@pytest.fixture(scope="session")
def agreeing_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Qwen3-style model whose masks often propose what its next-token head chooses."""
    folder = tmp_path_factory.mktemp("models") / "agreeing"
    return write_model(folder, qwen3=True, seed=3, sharpness=2.0, common=0.5)


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    """A real server of the S3 protocol; tests take a bucket each."""
    pytest.importorskip("moto.server", reason="moto[server] is not installed")
    with serve_s3() as server:
        yield server
