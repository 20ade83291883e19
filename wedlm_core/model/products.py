"""Products of the plain decoder on a CPU, in blocks of rows; and models whose weights it cannot multiply by."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from wedlm_core.errors import ConfigError, explain

BLOCK_ROWS = 32
"""Rows of a product."""


def in_blocks(product: Callable[[Tensor], Tensor], x_RI: Tensor) -> Tensor:
    """A product of torch on a CPU, so many rows at a time that a row has the same bits among any others.

    Libraries choose kernels by row count and threads, and each adds in another order: measured with 1024 inputs and two
    threads, rows of 128 differ from those of 1024. So all products have one shape.
    """
    rows = x_RI.shape[0]
    padded_RI = F.pad(x_RI, (0, 0, 0, -rows % BLOCK_ROWS))
    return torch.cat([product(block_BI) for block_BI in padded_RI.split(BLOCK_ROWS)])[:rows]


class InBlocks(TorchFunctionMode):
    """Linear layers of torch in a ``with`` block multiply by :func:`in_blocks`."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See :class:`torch.overrides.TorchFunctionMode`."""
        if func is not F.linear:
            return func(*args, **(kwargs or {}))
        x_RI, *others = args
        return in_blocks(lambda block_BI: func(block_BI, *others, **(kwargs or {})), x_RI)


def check_not_emptied(model: nn.Module) -> None:
    """Check that no engine took over the weights of a model.

    Raises:
        ConfigError: one did, and packed them.
    """
    weights = (getattr(one, "weight", None) for one in model.modules())
    if any(isinstance(weight, Tensor) and weight.numel() == 0 for weight in weights):
        rule = "an engine took the weights of this model over and packed them"
        raise ConfigError(explain("model", type(model).__name__, rule, "Load the model again."))


def check_not_packed(model: nn.Module) -> None:
    """Check that torch can multiply by the weights of a model.

    Raises:
        ConfigError: they were packed while they were read (:mod:`wedlm_core.model.panel_layers`).
    """
    if any(hasattr(one, "panels") for one in model.modules()):
        refuse_packed(model)


def refuse_packed(module: nn.Module) -> NoReturn:
    """Refuse to compute with a model, or with a layer, whose weights were packed while they were read.

    Raises:
        ConfigError: always.
    """
    rule = "weights as they are stored; these were packed for an engine that runs the kernels of this CPU"
    raise ConfigError(explain("model", type(module).__name__, rule, "Load it with packed=False."))
