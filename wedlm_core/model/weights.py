"""Load and save models in Hugging Face folder layout: ``config.json`` and safetensors, in one file or in shards.

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

from wedlm_core.devices import on_device
from wedlm_core.errors import ConfigError, explain
from wedlm_core.model.checkpoint import (
    INDEX_FILE,
    SINGLE_FILE,
    Checkpoint,
    TensorPlace,
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

    Raises:
        ConfigError: ``weight_dtype`` does not fit the model.
        WeightsError: files are absent or damaged; or tensors are missing, misshapen, of a wrong dtype or unexpected.
            One message lists all of them.
    """
    found = read_checkpoint(folder)
    with on_device(torch.device(device)):
        exact = weight_dtype in EXACT_DTYPES

        model = empty_decoder(
            found.config, device=device, dtype=dtype, weight_dtype=weight_dtype, quantised_head=quantised_head,
            packed=packed and torch.device(device).type == "cpu",
        )  # fmt: skip
        place(found.files, expected_tensors(found.config), model, workers=workers, smoothing=smoothing)
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


def save_model(model: Decoder, folder: str | os.PathLike[str], shard_bytes: int | None = None) -> None:
    """Write ``config.json`` and safetensors that :func:`load_model` and Hugging Face read back.

    A new folder appears complete or not at all. In an existing folder the weights are replaced file by file, then
    ``config.json``; other files (the tokenizer's) stay.

    Args:
        model: a decoder in any dtype on any device.
        folder: folder to write; parents are created.
        shard_bytes: largest size of one file; None writes a single file.

    Raises:
        ConfigError: the decoder has no wide weights: they are quantised, or an engine has taken them over.
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
        names = _write_shards(model, staging, shard_bytes)
        for file in names:  # safetensors creates files that only the owner can read
            shutil.copymode(staging / "config.json", staging / file)
        if not folder.exists():
            os.replace(staging, folder)
            return
        for file in [*names, "config.json"]:
            os.replace(staging / file, folder / file)
    if INDEX_FILE not in names:
        # Readers prefer the index: one of an earlier sharded save would hide the new file.
        (folder / INDEX_FILE).unlink(missing_ok=True)
    for old in folder.glob("model*.safetensors"):
        if old.name not in names:
            old.unlink()


def _check_wide(model: Decoder) -> None:
    """Check that the decoder has every weight as it is stored."""
    parameters = dict(model.named_parameters())
    for where in expected_tensors(model.config).values():
        name = where.parameter
        if name not in parameters or len(parameters[name]) < where.start + where.shape[0]:
            rule = "a decoder with all weights as they are stored; it was quantised, or an engine has taken them over"
            raise ConfigError(explain("model", name, rule, 'Load it again with weight_dtype="auto" and save that.'))


def _write_shards(model: Decoder, folder: Path, shard_bytes: int | None) -> list[str]:
    """Write the weight files (index last) and return their names."""
    parameters = dict(model.named_parameters())
    shards: list[dict[str, TensorPlace]] = [{}]
    size = 0
    for name, tensor in expected_tensors(model.config).items():
        parameter = parameters[tensor.parameter]
        bytes_here = parameter.narrow(0, tensor.start, tensor.shape[0]).numel() * parameter.element_size()
        if shard_bytes is not None and shards[-1] and size + bytes_here > shard_bytes:
            shards.append({})
            size = 0
        shards[-1][name] = tensor
        size += bytes_here
    sharded = shard_bytes is not None and len(shards) > 1
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors" if sharded else SINGLE_FILE
        tensors = {
            name: parameters[s.parameter].detach().narrow(0, s.start, s.shape[0]).cpu().clone()
            for name, s in shard.items()
        }
        save_file(tensors, folder / file, metadata={"format": "pt"})
        weight_map.update(dict.fromkeys(shard, file))
    files = list(dict.fromkeys(weight_map.values()))
    if sharded:
        total = sum(p.numel() * p.element_size() for p in parameters.values())
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (folder / INDEX_FILE).write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")
        files.append(INDEX_FILE)
    return files
