"""Pickled weights are refused by name, and never opened: opening one can run any code."""

from __future__ import annotations

import os
import pickle
import shutil
from pathlib import Path

import pytest

from pipeline.config import RunConfig
from pipeline.prompts.model_files import check_model
from wedlm_core import LLM
from wedlm_core.errors import WeDLMError, WeightsError
from wedlm_core.model.checkpoint import INDEX_FILE, SINGLE_FILE, files_by_tensor


class Bomb:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.folder),)


@pytest.fixture
def pickled(qwen3_folder: Path, tmp_path: Path) -> Path:
    """A model folder whose weights are a pickle that acts when it is opened."""
    folder = tmp_path / "pickled"
    shutil.copytree(qwen3_folder, folder)
    for path in folder.glob("*.safetensors*"):
        path.unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb(tmp_path / "exploded")))
    return folder


def test_a_pickled_checkpoint_is_refused_by_name_and_is_not_opened(pickled: Path, tmp_path: Path) -> None:
    said = r"pytorch_model\.bin: pickles, which can run any code when they are opened, and are not\. Convert"
    with pytest.raises(WeightsError, match=said):
        LLM(pickled)
    with pytest.raises(WeDLMError, match=said):
        check_model(RunConfig(input="a", output="b", model=str(pickled)))
    assert not (tmp_path / "exploded").exists()
    with (pickled / "pytorch_model.bin").open("rb") as file:
        pickle.load(file)
    assert (tmp_path / "exploded").exists(), "it would have acted"


def test_a_pickle_under_the_name_of_safetensors_is_refused_too(pickled: Path, tmp_path: Path) -> None:
    (pickled / "pytorch_model.bin").rename(pickled / SINGLE_FILE)
    with pytest.raises(WeightsError, match="not a whole safetensors file"):
        LLM(pickled)
    (pickled / INDEX_FILE).write_text('{"weight_map": {"a": "pytorch_model.bin"}}')
    (pickled / SINGLE_FILE).rename(pickled / "pytorch_model.bin")
    with pytest.raises(WeightsError, match="safetensors"):
        LLM(pickled)
    assert files_by_tensor(pickled) == {"a": pickled / "pytorch_model.bin"}, "it is the opening that refuses it"
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize("name", ["storage_options", "dataset_options"])
def test_code_of_models_and_data_sets_is_not_run_whoever_asks(name: str) -> None:
    with pytest.raises(WeDLMError, match=r"trust_remote_code=True: .* No code of a model is run"):
        LLM("tiny", trust_remote_code=True)  # type: ignore[call-arg]
    with pytest.raises(WeDLMError, match=f"{name}.trust_remote_code: no code of data sets or models is run"):
        RunConfig.from_mapping({"input": "a", "output": "b", name: {"trust_remote_code": True}})
