"""Optimisers and learning-rate schedule for a recipe; with Muon (K. Jordan et al., 2024), batched by shape."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from wedlm_core.model.decoder import Decoder, DecoderLayer
from wedlm_core.training.recipe import OptimRecipe
from wedlm_core.training.sharding import sharded_as, whole

_A, _B, _C = 3.4445, -4.7750, 2.0315  # quintic Newton-Schulz coefficients of the Muon write-up


def orthogonalise(matrices: Tensor, steps: int = 5) -> Tensor:
    """Approximate ``U V^T`` of each matrix ``[N, rows, columns]`` (rows <= columns) by Newton-Schulz."""
    x = matrices / (matrices.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = _A * x + (_B * gram + _C * gram @ gram) @ x
    return x


class Muon(torch.optim.Optimizer):
    """Muon for 2-D parameters. A fused matrix is orthogonalised part by part.

    Args:
        params: the matrices.
        lr: learning rate; an update is scaled by ``sqrt(max(1, rows / columns))``.
        momentum: Nesterov momentum.
        weight_decay: decoupled.
        split: row counts of the parts of a fused matrix (q, k, v; gate, up), by ``id`` of the parameter.
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float = 0.02,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
        split: dict[int, list[int]] | None = None,
    ) -> None:
        super().__init__(list(params), {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self._split = split or {}

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            # An update needs whole matrices: sharded ones are gathered one at a time.
            one_by_one = any(isinstance(p, DTensor) for p in parameters)
            for some in [[p] for p in parameters] if one_by_one else [parameters]:
                self._update(some, group)

    def _update(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        parts: dict[tuple[int, int], list[tuple[Tensor, Tensor]]] = {}
        steps: list[tuple[Tensor, Tensor]] = []
        for parameter in parameters:
            assert parameter.grad is not None
            buffer = self.state[parameter].setdefault("momentum", torch.zeros_like(parameter))
            buffer.lerp_(parameter.grad, 1 - group["momentum"])
            update = whole(parameter.grad.lerp(buffer, group["momentum"]))
            if group["weight_decay"]:
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
            target = parameter
            if isinstance(parameter, DTensor):
                target = torch.zeros_like(update)
                steps.append((parameter, target))
            rows = self._split.get(id(parameter), [parameter.shape[0]])
            for weight, piece in zip(target.split(rows), update.split(rows), strict=True):
                wide = piece if piece.shape[0] <= piece.shape[1] else piece.mT
                parts.setdefault((wide.shape[0], wide.shape[1]), []).append((weight, piece))
        for (rows_, _), members in parts.items():
            stacked = torch.stack([p if p.shape[0] == rows_ else p.mT for _, p in members])
            for (weight, piece), flat in zip(members, orthogonalise(stacked), strict=True):
                scale = max(1.0, weight.shape[0] / weight.shape[1]) ** 0.5
                weight.add_(flat if piece.shape == flat.shape else flat.mT, alpha=-group["lr"] * scale)
        for parameter, step in steps:
            parameter.add_(sharded_as(step, parameter))


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
