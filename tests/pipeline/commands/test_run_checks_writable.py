"""The check that an output can be written to, while its other writers work."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import pipeline
from pipeline import layout
from pipeline.commands.run_checks import check_writable
from pipeline.errors import PipelineError
from pipeline.storage.open import open_storage
from wedlm_core.errors import WeDLMError


def test_a_sweep_by_the_holder_of_the_lease_is_no_lack_of_permission(tmp_path: Path) -> None:
    storage, ended = open_storage(tmp_path / "out", layout.SCRATCH), threading.Event()

    def sweep() -> None:
        while not ended.wait(0.02):
            storage.sweep(0.0)

    sweeper = threading.Thread(target=sweep)
    sweeper.start()
    try:
        for _ in range(40):
            check_writable(storage)
    finally:
        ended.set()
        sweeper.join()


@pytest.mark.parametrize("model", [{}, {"model": "no/such"}])
def test_a_run_whose_model_is_not_there_leaves_no_folder(tmp_path: Path, model: dict[str, Any]) -> None:
    with pytest.raises((PipelineError, WeDLMError), match="model"):
        pipeline.run([{"prompt": "a"}], output=str(tmp_path / "out"), **model)
    assert not (tmp_path / "out").exists()
