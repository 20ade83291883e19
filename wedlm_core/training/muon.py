"""The Muon optimiser: momentum with orthogonalised matrix updates (K. Jordan et al., 2024), batched by shape."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

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
            # An update needs whole matrices: of sharded ones, one is whole at a time.
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
