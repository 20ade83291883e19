"""Checkpoints of real shapes with random weights, written shard by shard, for measurements of memory and loading."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file

from wedlm_core import ModelConfig
from wedlm_core.model.expected_tensors import expected_tensors
from wedlm_core.model.sources import resolve

__all__ = ["QWEN3_06B", "write_checkpoint"]

QWEN3_06B = ModelConfig(
    vocab_size=151936,
    hidden_size=1024,
    intermediate_size=3072,
    num_hidden_layers=28,
    num_attention_heads=16,
    num_key_value_heads=8,
    head_dim=128,
    max_position_embeddings=4096,
    tie_word_embeddings=True,
    mask_token_id=3,
    eos_token_ids=(2,),
    pad_token_id=0,
)
"""The shape of Qwen3-0.6B."""
_SHARD_BYTES = 1 << 30


def write_checkpoint(config: ModelConfig, folder: Path, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> Path:
    """Write random weights with the shipped tokenizer; one shard is in memory at a time.

    Args:
        config: of the model.
        folder: to write; an existing one is kept as it is.
        dtype: of the files.
        seed: of the weights.
    """
    if (folder / "config.json").is_file():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    generator, size = torch.Generator().manual_seed(seed), 0
    shards: list[tuple[str, list[str]]] = []
    shard: dict[str, torch.Tensor] = {}
    for name, place in expected_tensors(config).items():
        if name.endswith("norm.weight"):
            tensor = torch.ones(place.shape, dtype=dtype)
        else:
            tensor = torch.empty(place.shape, dtype=torch.float32)
            tensor = tensor.normal_(std=place.shape[-1] ** -0.5, generator=generator).to(dtype)
        shard[name], size = tensor, size + tensor.nbytes
        if size >= _SHARD_BYTES:
            shards.append(_written(shard, folder, len(shards)))
            shard, size = {}, 0
    if shard:
        shards.append(_written(shard, folder, len(shards)))
    weight_map = {name: file for file, names in shards for name in names}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(resolve("tiny") / file, folder / file)
    raw = {**config.to_hf(), "dtype": str(dtype).removeprefix("torch.")}
    (folder / "config.json").write_text(json.dumps(raw, indent=1))
    return folder


def _written(shard: dict[str, torch.Tensor], folder: Path, number: int) -> tuple[str, list[str]]:
    file = f"model-{number:05d}.safetensors"
    save_file(shard, folder / file, metadata={"format": "pt"})
    return file, list(shard)
