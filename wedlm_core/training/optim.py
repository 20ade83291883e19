"""Optimisers and learning-rate schedule for a recipe."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from wedlm_core.model.decoder import Decoder, DecoderLayer
from wedlm_core.training.muon import Muon
from wedlm_core.training.recipe import OptimRecipe


def _layer_matrices(model: Decoder) -> tuple[list[Tensor], dict[int, list[int]]]:
    """The weight matrices of the layers, and the row counts of the parts of fused ones."""
    matrices: list[Tensor] = []
    parts: dict[int, list[int]] = {}
    for layer in model.layers:
        assert isinstance(layer, DecoderLayer)
        qkv, gate_up = layer.qkv_proj.weight, layer.gate_up_proj.weight
        matrices += [qkv, layer.o_proj.weight, gate_up, layer.down_proj.weight]
        q, kv = layer.heads * layer.head_dim, layer.kv_heads * layer.head_dim
        parts[id(qkv)] = [q, kv, kv]
        parts[id(gate_up)] = [gate_up.shape[0] // 2] * 2
    return matrices, parts


def build_optimisers(model: Decoder, recipe: OptimRecipe) -> list[torch.optim.Optimizer]:
    """AdamW over everything, or Muon over layer matrices and AdamW over the rest.

    Norm weights and biases get no weight decay. Every group stores its peak rate as ``peak_lr``.
    """
    matrices, parts = _layer_matrices(model)
    by_muon = {id(p) for p in matrices} if recipe.matrices == "muon" else set()
    rest = [p for p in model.parameters() if id(p) not in by_muon]
    groups = [
        {"params": [p for p in rest if p.ndim >= 2], "weight_decay": recipe.weight_decay},
        {"params": [p for p in rest if p.ndim < 2], "weight_decay": 0.0},
    ]
    found: list[torch.optim.Optimizer] = [
        torch.optim.AdamW([g for g in groups if g["params"]], lr=recipe.lr, betas=recipe.betas, eps=1e-10)
    ]
    if by_muon:
        found.append(Muon(matrices, lr=recipe.muon_lr, weight_decay=recipe.muon_weight_decay, split=parts))
    for optimiser in found:
        for group in optimiser.param_groups:
            group["peak_lr"] = group["lr"]
    return found


def learning_rate_factor(step: int, progress: float, recipe: OptimRecipe) -> float:
    """Share of the peak rate: linear warm-up over steps, then decay over ``progress`` in [0, 1]."""
    warm = min(1.0, (step + 1) / max(1, recipe.warmup_steps))
    left = 1.0 - min(1.0, max(0.0, progress))
    shape = 0.5 * (1.0 - math.cos(math.pi * left)) if recipe.decay == "cosine" else left
    return warm * (recipe.final_share + (1.0 - recipe.final_share) * shape)


def set_learning_rate(optimisers: list[torch.optim.Optimizer], factor: float) -> None:
    """Set the rate of every group to ``factor`` times its peak."""
    for optimiser in optimisers:
        for group in optimiser.param_groups:
            group["lr"] = group["peak_lr"] * factor
