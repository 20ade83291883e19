"""Checkpoints in Hugging Face folder layout: ``config.json`` and safetensors, single or sharded, both ways.

The decoder fuses projections (:mod:`wedlm_core.model.decoder`); :func:`hf_slots` is the one table that says
which rows of which parameter each Hugging Face tensor fills, used for reading and for writing.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from wedlm_core.config import ModelConfig
from wedlm_core.errors import WeightsError, explain
from wedlm_core.model.decoder import Decoder

__all__ = ["Slot", "hf_slots", "load_config", "load_model", "save_model", "stored_dtype"]

_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_DERIVED = "rotary_emb.inv_freq"  # old checkpoints store this; it follows from the configuration
_Shape = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Slot:
    """Place of one Hugging Face tensor: rows ``start : start + shape[0]`` of a parameter of :class:`Decoder`."""

    parameter: str
    start: int
    shape: _Shape


def hf_slots(config: ModelConfig) -> dict[str, Slot]:
    """Every tensor a checkpoint of ``config`` must hold, by Hugging Face name (``lm_head`` only if untied)."""
    width, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
    q_rows, kv_rows = config.num_attention_heads * dim, config.num_key_value_heads * dim
    slots = {"model.embed_tokens.weight": Slot(parameter="embed.weight", start=0, shape=(config.vocab_size, width))}
    for i in range(config.num_hidden_layers):
        theirs, ours = f"model.layers.{i}", f"layers.{i}"

        def put(name: str, parameter: str, *shape: int, start: int = 0, t: str = theirs, o: str = ours) -> None:
            slots[f"{t}.{name}"] = Slot(parameter=f"{o}.{parameter}", start=start, shape=shape)

        start = 0
        for letter, rows in (("q", q_rows), ("k", kv_rows), ("v", kv_rows)):
            put(f"self_attn.{letter}_proj.weight", "qkv_proj.weight", rows, width, start=start)
            if config.attention_bias:
                put(f"self_attn.{letter}_proj.bias", "qkv_proj.bias", rows, start=start)
            start += rows
        if config.qk_norm:
            put("self_attn.q_norm.weight", "q_norm.weight", dim)
            put("self_attn.k_norm.weight", "k_norm.weight", dim)
        put("self_attn.o_proj.weight", "o_proj.weight", width, q_rows)
        put("mlp.gate_proj.weight", "gate_up_proj.weight", inner, width)
        put("mlp.up_proj.weight", "gate_up_proj.weight", inner, width, start=inner)
        put("mlp.down_proj.weight", "down_proj.weight", width, inner)
        put("input_layernorm.weight", "input_norm.weight", width)
        put("post_attention_layernorm.weight", "post_norm.weight", width)
    slots["model.norm.weight"] = Slot(parameter="norm.weight", start=0, shape=(width,))
    if not config.tie_word_embeddings:
        slots["lm_head.weight"] = Slot(parameter="lm_head.weight", start=0, shape=(config.vocab_size, width))
    return slots


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
    eos = generation.get("eos_token_id")
    more = (eos,) if isinstance(eos, int) else tuple(eos or ())
    return replace(config, eos_token_ids=tuple(dict.fromkeys(config.eos_token_ids + more)))


def _read_json(path: Path, *, required: bool = False) -> dict[str, Any]:
    """The object in ``path``; empty where an optional file is absent."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        if not required:
            return {}
        raise WeightsError(explain("model", str(path), "this file is required", "Give a complete folder.")) from error
    except (ValueError, OSError) as error:
        raise WeightsError(explain("model", str(path), f"not readable JSON ({error})", "Download it again.")) from error
    if not isinstance(value, dict):
        raise WeightsError(explain("model", str(path), "a JSON object is expected", "Download it again."))
    return value


def _tokenizer_mask_id(folder: Path) -> int | None:
    settings = _read_json(folder / "tokenizer_config.json")
    token = settings.get("mask_token")
    text = token.get("content") if isinstance(token, dict) else token
    if text is None:
        return None
    for key, entry in settings.get("added_tokens_decoder", {}).items():
        if entry.get("content") == text:
            return int(key)
    tokenizer = _read_json(folder / "tokenizer.json")
    added = {entry["content"]: entry["id"] for entry in tokenizer.get("added_tokens", ())}
    vocab = tokenizer.get("model", {}).get("vocab", {})
    return added.get(text, vocab.get(text) if isinstance(vocab, dict) else None)


def _files_by_tensor(folder: Path) -> dict[str, Path]:
    """``{tensor name: file}`` from the index where there is one, else from the single file.

    Raises:
        WeightsError: no weights, or files the index names are absent.
    """
    if (folder / _INDEX).is_file():
        weight_map = _read_json(folder / _INDEX).get("weight_map", {})
        absent = sorted({name for name in weight_map.values() if not (folder / name).is_file()})
        if absent:
            raise WeightsError(explain("model", str(folder), f"shards named in {_INDEX} are absent: {absent}",
                                       "Download them."))  # fmt: skip
        return {tensor: folder / name for tensor, name in weight_map.items()}
    single = folder / _SINGLE
    if not single.is_file():
        raise WeightsError(explain("model", str(folder), f"has neither {_SINGLE} nor {_INDEX}",
                                   "Convert the checkpoint to safetensors."))  # fmt: skip
    with _opened(single) as handle:
        return dict.fromkeys(handle.keys(), single)


def _opened(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt", device="cpu")
    except (SafetensorError, OSError) as error:
        rule = f"not a whole safetensors file ({error})"
        raise WeightsError(explain("model", str(path), rule, "Download it again.")) from error


def stored_dtype(folder: str | os.PathLike[str]) -> torch.dtype:
    """The dtype of the embedding in the checkpoint: what ``dtype="auto"`` means."""
    files = _files_by_tensor(Path(folder))
    name = "model.embed_tokens.weight"
    if name not in files:
        raise WeightsError(explain("model", str(folder), f"has no tensor {name}", "Give a causal language model."))
    with _opened(files[name]) as handle:
        return handle.get_slice(name)[:1].dtype


def load_model(
    folder: str | os.PathLike[str],
    *,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
    max_positions: int | None = None,
) -> Decoder:
    """Build the decoder of a checkpoint folder, in evaluation mode, without gradients.

    The network is laid out on the meta device and each tensor is copied straight from the mapped file to
    its place, so memory holds the model once plus one tensor.

    Args:
        folder: local folder in Hugging Face layout; see :mod:`wedlm_core.model.sources` for other places.
        device: where the parameters live.
        dtype: of the parameters, whatever the file holds.
        max_positions: length of the rotary tables; None takes the configuration's.

    Raises:
        WeightsError: files absent or damaged; or tensors missing, misshapen, of a wrong kind or unexpected,
            all of them listed in one message.
    """
    folder = Path(folder)
    config = load_config(folder)
    files = _files_by_tensor(folder)
    slots = hf_slots(config)
    with torch.device("meta"):
        model = Decoder(config, max_positions=1)
    _check_names(folder, config, slots, files)
    places = {n: torch.empty(p.shape, device=device, dtype=dtype) for n, p in model.named_parameters()}
    problems: list[str] = []
    for path in sorted(set(files.values())):
        with _opened(path) as handle:
            for name in sorted(n for n, home in files.items() if home == path and n in slots):
                problems += _place(name, handle.get_tensor(name), slots[name], places)
    _raise_listed(folder, problems)
    _check_tied_head(folder, config, files, places)
    for name, tensor in places.items():
        owner, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(owner), leaf, nn.Parameter(tensor, requires_grad=False))
    if config.tie_word_embeddings:
        model.lm_head.weight = model.embed.weight
    model.set_max_positions(max_positions or config.max_position_embeddings)
    return model.eval()


def _check_names(folder: Path, config: ModelConfig, slots: Mapping[str, Slot], files: Mapping[str, Path]) -> None:
    """Names and shapes of the whole checkpoint against ``slots``, before anything is copied."""
    tied_head = {"lm_head.weight"} if config.tie_word_embeddings else set()
    problems = [f"missing {name}" for name in slots if name not in files]
    problems += [f"unexpected {name}" for name in sorted(files)
                 if name not in slots and name not in tied_head and not name.endswith(_DERIVED)]  # fmt: skip
    for path in sorted(set(files.values())):
        with _opened(path) as handle:
            inside = set(handle.keys())
            for name in (n for n, home in files.items() if home == path and n in slots):
                if name not in inside:
                    problems.append(f"missing {name} ({_INDEX} says it is in {path.name})")
                    continue
                found = tuple(handle.get_slice(name).get_shape())
                if found != slots[name].shape:
                    problems.append(f"misshapen {name}: {list(found)}, needs {list(slots[name].shape)}")
    _raise_listed(folder, problems)


def _place(name: str, found: Tensor, slot: Slot, places: Mapping[str, Tensor]) -> list[str]:
    """Copy one tensor to its rows. Returns what is wrong with it, if anything."""
    if not found.is_floating_point():
        return [f"wrong kind {name}: {found.dtype}, needs a floating-point type (quantised files are not read)"]
    places[slot.parameter].narrow(0, slot.start, slot.shape[0]).copy_(found)
    return []


def _check_tied_head(
    folder: Path, config: ModelConfig, files: Mapping[str, Path], places: Mapping[str, Tensor]
) -> None:
    """Some writers store a tied head as well: it must be the embedding, or the configuration is wrong."""
    name = "lm_head.weight"
    if not config.tie_word_embeddings or name not in files:
        return
    embedding = places["embed.weight"]
    with _opened(files[name]) as handle:
        head = handle.get_tensor(name)
    if head.shape != embedding.shape or not torch.equal(head.to(embedding), embedding):
        _raise_listed(folder, [f"unexpected {name}: differs from the embedding that config.json ties it to"])


def _raise_listed(folder: Path, problems: list[str]) -> None:
    if problems:
        listing = "".join(f"\n  {problem}" for problem in problems)
        raise WeightsError(f"model={str(folder)!r}: the tensors are not those that config.json describes. "
                           f"Mend config.json or convert the checkpoint.{listing}")  # fmt: skip


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
    shards: list[dict[str, Slot]] = [{}]
    size = 0
    for name, slot in hf_slots(model.config).items():
        parameter = parameters[slot.parameter]
        bytes_here = parameter.narrow(0, slot.start, slot.shape[0]).numel() * parameter.element_size()
        if shard_bytes is not None and shards[-1] and size + bytes_here > shard_bytes:
            shards.append({})
            size = 0
        shards[-1][name] = slot
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
