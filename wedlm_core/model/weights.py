"""Load and save models in Hugging Face folder layout: ``config.json`` and safetensors, read from one file or shards.

The decoder has fused projections. :mod:`wedlm_core.model.checkpoint` maps Hugging Face tensors to its parameters,
:mod:`wedlm_core.model.checkpoint` checks the files, and :mod:`wedlm_core.model.placing` copies the tensors.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from wedlm_core.devices import on_device
from wedlm_core.errors import ConfigError, explain
from wedlm_core.model.adapter import with_adapter
from wedlm_core.model.checkpoint import (
    INDEX_FILE,
    SINGLE_FILE,
    Checkpoint,
    expected_tensors,
    load_config,
    opened,
    read_checkpoint,
    refuse_tensors,
)
from wedlm_core.model.decoder import Decoder
from wedlm_core.model.placing import empty_decoder, equal_rows, place
from wedlm_core.model.quantised import EXACT_DTYPES, quantise
from wedlm_core.model.smoothing import Smoothing

__all__ = ["load_config", "load_model", "save_model"]


def load_model(
    folder: str | os.PathLike[str],
    *,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
    max_positions: int | None = None,
    workers: int | None = None,
    weight_dtype: str = "auto",
    quantised_head: bool = True,
    smoothing: Smoothing | None = None,
    packed: bool = False,
    adapter: Path | None = None,
) -> Decoder:
    """Build the decoder of a checkpoint folder, in evaluation mode, without gradients.

    Weights are copied from the mapped files to the device in pieces (:mod:`wedlm_core.model.placing`), so that a GPU
    model never has a complete copy on the host.

    Args:
        folder: local folder in Hugging Face layout; see :mod:`wedlm_core.model.sources` for other places.
        device: device of the parameters.
        dtype: dtype of the parameters; the files may have another.
        max_positions: length of the rotary tables; None takes the configuration's.
        workers: number of reading threads; None takes the number of cores, at most 8.
        weight_dtype: as in ``EngineConfig``. "int8" and "int4" round each piece as it is read, so that the wide
            weights are never in memory together.
        quantised_head: as in ``EngineConfig``.
        smoothing: folded into the weights before they are rounded.
        packed: pack the weights for an engine while they are read, if this CPU's kernels use panels. Weights are in
            memory once, and only such an engine can use the model. Elsewhere it changes nothing.
        adapter: folder of a LoRA adapter in peft's format, which is added to the weights.

    Raises:
        ConfigError: ``weight_dtype`` does not fit the model.
        WeightsError: files are absent or damaged; or tensors are missing, misshapen, of a wrong dtype or unexpected.
            One message lists all of them.
    """
    found = read_checkpoint(folder)
    found = found if adapter is None else with_adapter(found, adapter)
    with on_device(torch.device(device)):
        exact = weight_dtype in EXACT_DTYPES

        model = empty_decoder(
            found.config, device=device, dtype=dtype, weight_dtype=weight_dtype, quantised_head=quantised_head,
            packed=packed and torch.device(device).type == "cpu",
        )  # fmt: skip
        place(found.files, expected_tensors(found.config), model, workers=workers, smoothing=smoothing,
              adapter=found.adapter)  # fmt: skip
        _check_tied_head(found, model)
        model.set_max_positions(max_positions or found.config.max_position_embeddings)
    return model if exact else quantise(model, weight_dtype)


def _check_tied_head(found: Checkpoint, model: Decoder) -> None:
    """Check that a stored ``lm_head`` equals the embedding if ``config.json`` ties them."""
    name = "lm_head.weight"
    if not model.config.tie_word_embeddings or name not in found.files:
        return
    with opened(found.files[name], device=model.device) as handle:
        if not equal_rows(handle, name, model.embed):
            fault = f"unexpected {name}: differs from the embedding that config.json ties it to"
            refuse_tensors(found.folder, [fault])


def save_model(model: Decoder, folder: str | os.PathLike[str]) -> None:
    """Write ``config.json`` and one file of safetensors that :func:`load_model` and Hugging Face read back.

    A new folder appears complete or not at all. In an existing folder the weights are replaced, then ``config.json``;
    other files (the tokenizer's) stay.

    Args:
        model: a decoder in any dtype on any device.
        folder: folder to write; parents are created.

    Raises:
        ConfigError: the decoder has no wide weights: they are quantised, or packed for an engine.
    """
    _check_wide(model)
    folder = Path(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as name:
        staging = Path(name) / "model"
        staging.mkdir()
        dtype = str(model.dtype).removeprefix("torch.")
        raw = {**model.config.to_hf(), "dtype": dtype}
        (staging / "config.json").write_text(json.dumps(raw, indent=1) + "\n", encoding="utf-8")
        save_file(_tensors_of(model), staging / SINGLE_FILE, metadata={"format": "pt"})
        # safetensors creates files that only the owner can read
        shutil.copymode(staging / "config.json", staging / SINGLE_FILE)
        if not folder.exists():
            os.replace(staging, folder)
            return
        for file in (SINGLE_FILE, "config.json"):
            os.replace(staging / file, folder / file)
    # Readers prefer the index: one of a sharded model here would hide the new file.
    (folder / INDEX_FILE).unlink(missing_ok=True)
    for old in folder.glob("model*.safetensors"):
        if old.name != SINGLE_FILE:
            old.unlink()


def _tensors_of(model: Decoder) -> dict[str, Tensor]:
    """A copy of every weight by its name in checkpoints."""
    parameters = dict(model.named_parameters())
    return {
        name: parameters[where.parameter].detach().narrow(0, where.start, where.shape[0]).cpu().clone()
        for name, where in expected_tensors(model.config).items()
    }


def _check_wide(model: Decoder) -> None:
    """Check that the decoder has every weight as it is stored."""
    parameters = dict(model.named_parameters())
    for where in expected_tensors(model.config).values():
        name = where.parameter
        if name not in parameters or len(parameters[name]) < where.start + where.shape[0]:
            rule = "a decoder with all weights as they are stored; it was quantised, or packed for an engine"
            raise ConfigError(explain("model", name, rule, 'Load it again with weight_dtype="auto" and save that.'))
