"""Checkpoints in Hugging Face folder layout: ``config.json`` and safetensors, single or sharded, both ways.

The decoder fuses projections (:mod:`wedlm_core.model.decoder`); :mod:`wedlm_core.model.expected_tensors` says
which rows of which parameter each Hugging Face tensor fills, :mod:`wedlm_core.model.placing` copies them there.
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
from typing import Any, NoReturn

import torch
from safetensors.torch import save_file

from wedlm_core.checks import is_text, is_whole
from wedlm_core.config import ModelConfig
from wedlm_core.config.model import id_tuple
from wedlm_core.devices import on_device
from wedlm_core.errors import WeightsError, explain, first_line
from wedlm_core.model.decoder import Decoder
from wedlm_core.model.expected_tensors import TensorPlace, expected_tensors
from wedlm_core.model.placing import empty_decoder, equal_rows, opened, place

__all__ = ["load_config", "load_model", "save_model", "stored_dtype"]

_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_DERIVED = "rotary_emb.inv_freq"  # old checkpoints store this; it follows from the configuration
_SHOWN = 3  # names in one line
_LISTED = 20  # problems of a kind, at most; the rest is counted
_FLOATS = ("F64", "F32", "F16", "BF16")


def load_config(folder: str | os.PathLike[str]) -> ModelConfig:
    """Read ``config.json``, completed by what only the generation or tokenizer configuration may say.

    End-of-sequence ids are the union of ``config.json`` and ``generation_config.json``; the mask id, where
    ``config.json`` has none, is taken from ``generation_config.json`` or the tokenizer's mask token.

    Raises:
        WeightsError: a file is missing or is not JSON.
        ConfigError: the configuration describes a model this package does not implement.
    """
    folder = Path(folder)
    raw = _read_json(folder / "config.json", required=True)
    generation = _read_json(folder / "generation_config.json")
    mask = next((source["mask_token_id"] for source in (raw, generation) if source.get("mask_token_id") is not None),
                None)  # fmt: skip
    config = ModelConfig.from_hf(raw, mask_token_id=mask if mask is not None else _tokenizer_mask_id(folder))
    more = id_tuple("eos_token_id", generation.get("eos_token_id"))
    return replace(config, eos_token_ids=tuple(dict.fromkeys(config.eos_token_ids + more)))


def _read_json(path: Path, *, required: bool = False) -> dict[str, Any]:
    """The object in ``path``; empty where an optional file is absent."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        if not required:
            return {}
        raise WeightsError(explain("model", str(path), "this file is required", "Give a complete folder.")) from error
    except (ValueError, OSError, RecursionError) as error:
        reason = f"not readable JSON ({first_line(error)})"
        raise WeightsError(explain("model", str(path), reason, "Download it again.")) from error
    if not isinstance(value, dict):
        raise WeightsError(explain("model", str(path), "a JSON object is expected", "Download it again."))
    return value


def _tokenizer_mask_id(folder: Path) -> int | None:
    """Id of the mask token that the tokenizer's configuration names; None where it names none, or an absent one.

    Raises:
        WeightsError: these files are not as tokenizers write them.
    """
    settings = _read_json(folder / "tokenizer_config.json")
    token = settings.get("mask_token")
    text = token.get("content") if isinstance(token, dict) else token
    if text is None:
        return None
    try:
        for key, entry in settings.get("added_tokens_decoder", {}).items():
            if entry.get("content") == text:
                return int(key)
        tokenizer = _read_json(folder / "tokenizer.json")
        added = {entry["content"]: entry["id"] for entry in tokenizer.get("added_tokens", ())}
        vocab = tokenizer.get("model", {}).get("vocab", {})
        found = added.get(text, vocab.get(text) if isinstance(vocab, dict) else None)
    except (AttributeError, TypeError, KeyError, ValueError) as error:
        reason = f"its tokenizer's files are not as tokenizers write them ({type(error).__name__}: {first_line(error)})"
        raise WeightsError(explain("model", str(folder), reason, "Download them again.")) from error
    if found is not None and not is_whole(found):
        raise WeightsError(explain("mask_token", found, "its id is an integer of 0 or more", "Download it again."))
    return found


def _files_by_tensor(folder: Path) -> dict[str, Path]:
    """``{tensor name: file}`` from the index where there is one, else from the single file.

    Raises:
        WeightsError: no weights, or files the index names are absent or not in the folder.
    """
    if (folder / _INDEX).is_file():
        weight_map = _read_json(folder / _INDEX).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            rule = f"{_INDEX} maps the name of each tensor to its file"
            raise WeightsError(explain("weight_map", weight_map, rule, "Download it again."))
        files = {name: _file_within(folder, name) for name in _distinct(weight_map)}
        absent = sorted(name for name, path in files.items() if not path.is_file())
        if absent:
            few = f"{absent[:_SHOWN]}" + (f" and {len(absent) - _SHOWN} more" if len(absent) > _SHOWN else "")
            raise WeightsError(explain("model", str(folder), f"shards named in {_INDEX} are absent: {few}",
                                       "Download them."))  # fmt: skip
        return {tensor: files[name] for tensor, name in weight_map.items()}
    single = folder / _SINGLE
    if not single.is_file():
        raise WeightsError(explain("model", str(folder), f"has neither {_SINGLE} nor {_INDEX}",
                                   "Convert the checkpoint to safetensors."))  # fmt: skip
    with opened(single) as handle:
        return dict.fromkeys(handle.keys(), single)


def _distinct(weight_map: Mapping[str, Any]) -> list[str]:
    """The names of files in an index, each once; anything but a plain name is refused."""
    for tensor, name in weight_map.items():
        plain = is_text(name) and 1 <= len(name) <= 255 and name not in (".", "..")
        if not plain or any(mark in name for mark in ("/", "\\", ":", "\0")):
            rule = f"{_INDEX} names files of its own folder only, without a path"
            raise WeightsError(explain(f"weight_map[{tensor[:80]!r}]", name, rule, "Download it again."))
    return list(dict.fromkeys(weight_map.values()))


def _file_within(folder: Path, name: str) -> Path:
    """A file of the folder; a link must stay in it, or lead to the blobs beside a snapshot of the hub's cache."""
    path, home = folder / name, folder.resolve()
    target = path.resolve()
    blobs = home.parent.parent / "blobs" if home.parent.name == "snapshots" else home
    if target.is_relative_to(home) or target.is_relative_to(blobs):
        return path
    rule = f"a link out of the model's folder (to {target}) is not followed"
    raise WeightsError(explain("weight_map", name, rule, "Put the file itself there."))


def stored_dtype(folder: str | os.PathLike[str]) -> torch.dtype:
    """The dtype of the embedding in the checkpoint: what ``dtype="auto"`` means."""
    files = _files_by_tensor(Path(folder))
    name = "model.embed_tokens.weight"
    if name not in files:
        raise WeightsError(explain("model", str(folder), f"has no tensor {name}", "Give a causal language model."))
    with opened(files[name]) as handle:
        return handle.get_slice(name)[:1].dtype


def load_model(
    folder: str | os.PathLike[str],
    *,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
    max_positions: int | None = None,
    workers: int | None = None,
) -> Decoder:
    """Build the decoder of a checkpoint folder, in evaluation mode, without gradients.

    Weights go from the mapped files to the device piece by piece (:mod:`wedlm_core.model.placing`): the host
    never holds a copy of the model, unless it is the device.

    Args:
        folder: local folder in Hugging Face layout; see :mod:`wedlm_core.model.sources` for other places.
        device: where the parameters live.
        dtype: of the parameters, whatever the file holds.
        max_positions: length of the rotary tables; None takes the configuration's.
        workers: threads that read; None takes as many as there are cores, up to 8.

    Raises:
        WeightsError: files absent or damaged; or tensors missing, misshapen, of a wrong kind or unexpected,
            all of them listed in one message.
    """
    folder = Path(folder)
    config = load_config(folder)
    files = _files_by_tensor(folder)
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
    """Names, shapes and kinds of the whole checkpoint against ``expected``, before anything is copied."""
    tied_head = {"lm_head.weight"} if config.tie_word_embeddings else set()
    problems = [f"missing {name}" for name in expected if name not in files]
    problems += [f"unexpected {name}" for name in sorted(files)
                 if name not in expected and name not in tied_head and not name.endswith(_DERIVED)]  # fmt: skip
    for path in sorted(set(files.values())):
        with opened(path) as handle:
            inside = set(handle.keys())
            for name in (n for n, home in files.items() if home == path and n in expected):
                if name not in inside:
                    problems.append(f"missing {name} ({_INDEX} says it is in {path.name})")
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
    """Some writers store a tied head as well: it must be the embedding, or the configuration is wrong."""
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

    A new folder appears complete or not at all. In an existing one the weights are replaced file by file
    and ``config.json`` last; other files (the tokenizer's) stay.

    Args:
        model: in any dtype, on any device.
        folder: where to write; parents are made.
        shard_bytes: largest size of one file; None writes a single one.
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
        for file in names:  # safetensors makes files that only their owner can read
            shutil.copymode(staging / "config.json", staging / file)
        if not folder.exists():
            os.replace(staging, folder)
            return
        for file in [*names, "config.json"]:
            os.replace(staging / file, folder / file)
    if _INDEX not in names:
        # Readers prefer the index: one left from an earlier sharded save would hide the new file.
        (folder / _INDEX).unlink(missing_ok=True)
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
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors" if sharded else _SINGLE
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
        (folder / _INDEX).write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")
        files.append(_INDEX)
    return files
