"""Load and save models in Hugging Face folder layout: ``config.json`` and safetensors, in one file or in shards.

The decoder has fused projections. :mod:`wedlm_core.model.expected_tensors` maps Hugging Face tensors to its parameters,
:mod:`wedlm_core.model.checkpoint_files` finds the files, and :mod:`wedlm_core.model.placing` copies the tensors.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import NoReturn

import torch
from safetensors.torch import save_file

from wedlm_core.checks import is_whole
from wedlm_core.config import ModelConfig
from wedlm_core.config.model import id_tuple
from wedlm_core.devices import on_device
from wedlm_core.errors import WeightsError, explain, first_line
from wedlm_core.model.checkpoint_files import INDEX_FILE, SINGLE_FILE, files_by_tensor, read_json
from wedlm_core.model.decoder import Decoder
from wedlm_core.model.expected_tensors import TensorPlace, expected_tensors
from wedlm_core.model.placing import empty_decoder, equal_rows, opened, place

__all__ = ["load_config", "load_model", "save_model"]

_DERIVED = "rotary_emb.inv_freq"  # some old checkpoints store this; it follows from the configuration
_LISTED = 20  # most problems listed per kind; the rest is counted
_FLOATS = ("F64", "F32", "F16", "BF16")


def load_config(folder: str | os.PathLike[str]) -> ModelConfig:
    """Read ``config.json``, completed from the generation and tokenizer configurations.

    End-of-sequence ids are the union of ``config.json`` and ``generation_config.json``. If ``config.json`` has no mask
    id, it is that of ``generation_config.json``, else the tokenizer's mask token.

    Raises:
        WeightsError: a file is missing or is not JSON.
        ConfigError: the configuration describes a model this package does not implement.
    """
    folder = Path(folder)
    raw = read_json(folder / "config.json", required=True)
    generation = read_json(folder / "generation_config.json")
    mask = next((source["mask_token_id"] for source in (raw, generation) if source.get("mask_token_id") is not None),
                None)  # fmt: skip
    config = ModelConfig.from_hf(raw, mask_token_id=mask if mask is not None else _tokenizer_mask_id(folder))
    more = id_tuple("eos_token_id", generation.get("eos_token_id"))
    return replace(config, eos_token_ids=tuple(dict.fromkeys(config.eos_token_ids + more)))


def _tokenizer_mask_id(folder: Path) -> int | None:
    """Id of the mask token in the tokenizer's configuration; None if there is none, or no such token.

    Raises:
        WeightsError: the tokenizer's files do not have the format that tokenizers write.
    """
    settings = read_json(folder / "tokenizer_config.json")
    token = settings.get("mask_token")
    text = token.get("content") if isinstance(token, dict) else token
    if text is None:
        return None
    try:
        for key, entry in settings.get("added_tokens_decoder", {}).items():
            if entry.get("content") == text:
                return int(key)
        tokenizer = read_json(folder / "tokenizer.json")
        added = {entry["content"]: entry["id"] for entry in tokenizer.get("added_tokens", ())}
        vocab = tokenizer.get("model", {}).get("vocab", {})
        found = added.get(text, vocab.get(text) if isinstance(vocab, dict) else None)
    except (AttributeError, TypeError, KeyError, ValueError) as error:
        reason = f"its tokenizer's files are not as tokenizers write them ({type(error).__name__}: {first_line(error)})"
        raise WeightsError(explain("model", str(folder), reason, "Download them again.")) from error
    if found is not None and not is_whole(found):
        raise WeightsError(explain("mask_token", found, "its id is an integer of 0 or more", "Download it again."))
    return found


def load_model(
    folder: str | os.PathLike[str],
    *,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
    max_positions: int | None = None,
    workers: int | None = None,
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

    Raises:
        WeightsError: files are absent or damaged; or tensors are missing, misshapen, of a wrong dtype or unexpected.
            One message lists all of them.
    """
    folder = Path(folder)
    config = load_config(folder)
    files = files_by_tensor(folder)
    expected = expected_tensors(config)
    _check_tensors(folder, config, expected, files)
    with on_device(torch.device(device)):
        model = empty_decoder(config, device=device, dtype=dtype)
        place(files, expected, model, workers=workers)
        _check_tied_head(folder, files, model)
        model.set_max_positions(max_positions or config.max_position_embeddings)
    return model


def _check_tensors(
    folder: Path, config: ModelConfig, expected: Mapping[str, TensorPlace], files: Mapping[str, Path]
) -> None:
    """Compare names, shapes and dtypes of the whole checkpoint with ``expected``, before anything is copied."""
    tied_head = {"lm_head.weight"} if config.tie_word_embeddings else set()
    problems = [f"missing {name}" for name in expected if name not in files]
    problems += [f"unexpected {name}" for name in sorted(files)
                 if name not in expected and name not in tied_head and not name.endswith(_DERIVED)]  # fmt: skip
    for path in sorted(set(files.values())):
        with opened(path) as handle:
            inside = set(handle.keys())
            for name in (n for n, home in files.items() if home == path and n in expected):
                if name not in inside:
                    problems.append(f"missing {name} ({INDEX_FILE} says it is in {path.name})")
                    continue
                found = handle.get_slice(name)
                shape, kind = found.get_shape(), found.get_dtype()
                if tuple(shape) != expected[name].shape:
                    problems.append(f"misshapen {name}: {shape}, needs {list(expected[name].shape)}")
                if kind not in _FLOATS:
                    problems.append(f"wrong kind {name}: {kind}, needs one of {_FLOATS} (quantised files are not read)")
    if problems:
        _raise_listed(folder, problems)


def _check_tied_head(folder: Path, files: Mapping[str, Path], model: Decoder) -> None:
    """Check that a stored ``lm_head`` equals the embedding if ``config.json`` ties them."""
    name = "lm_head.weight"
    if not model.config.tie_word_embeddings or name not in files:
        return
    with opened(files[name], model.embed.weight.device) as handle:
        if not equal_rows(handle, name, model.embed.weight):
            _raise_listed(folder, [f"unexpected {name}: differs from the embedding that config.json ties it to"])


def _raise_listed(folder: Path, problems: list[str]) -> NoReturn:
    lines = []
    for kind, found in groupby(problems, key=lambda problem: problem.split()[0]):
        own = list(found)
        lines += own[:_LISTED] + ([f"and {len(own) - _LISTED} more {kind}"] if len(own) > _LISTED else [])
    listing = "".join(f"\n  {line}" for line in lines)
    raise WeightsError(f"model={str(folder)!r}: the tensors are not those that config.json describes. "
                       f"Correct config.json or convert the checkpoint.{listing}")  # fmt: skip


def save_model(model: Decoder, folder: str | os.PathLike[str], shard_bytes: int | None = None) -> None:
    """Write ``config.json`` and safetensors that :func:`load_model` and Hugging Face read back.

    A new folder appears complete or not at all. In an existing folder the weights are replaced file by file, then
    ``config.json``; other files (the tokenizer's) stay.

    Args:
        model: a decoder in any dtype on any device.
        folder: folder to write; parents are created.
        shard_bytes: largest size of one file; None writes a single file.
    """
    folder = Path(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as name:
        staging = Path(name) / "model"
        staging.mkdir()
        dtype = str(model.embed.weight.dtype).removeprefix("torch.")
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
