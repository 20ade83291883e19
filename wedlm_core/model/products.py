"""Matrix products of the CPU decoder, with weights that are packed once if that works.

``torch.mm`` packs the weight into blocks in every call; for few rows that takes as long as the product itself. oneDNN
can keep weights packed: torch's own compiler emits the same operator for the linear layers of a frozen model.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from wedlm_core.errors import ConfigError, explain

_LOG = logging.getLogger(__name__)
_FEW_ROWS = 64
_BLOCK_ROWS = 32  # of a plain product
_TRIED = (4, 8, 12, 36, 64, 80, 256, 1000)  # a row must have the same bits with these row counts
_TRIED_FEW = (4, 8, 12, 36)  # of these, with more outputs of a weight
_TRIED_OUTPUTS, _TRIED_OUTPUTS_FEW = 1024, 8192
_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2}  # relative to the largest result


@dataclass(frozen=True, kw_only=True)
class RowPadding:
    """The row count of a product is rounded up to a multiple of ``few``, and beyond 64 rows of ``many``.

    A library may use another kernel for fewer rows, with results that differ in the last bits. It also prepares a
    kernel for each row count, so there should be few different ones.
    """

    few: int
    many: int

    def __call__(self, rows: int) -> int:
        """The padded row count."""
        quantum = self.few if rows <= _FEW_ROWS else self.many
        return -(-rows // quantum) * quantum


def plain_padding() -> RowPadding:
    """Padding for :func:`in_blocks`."""
    return RowPadding(few=_BLOCK_ROWS, many=_BLOCK_ROWS)


def in_blocks(product: Callable[[Tensor], Tensor], x_RI: Tensor) -> Tensor:
    """A product of torch on a CPU, so many rows at a time that a row has the same bits among any others.

    Libraries choose kernels by row count and threads, and each adds in another order: measured with 1024 inputs and two
    threads, rows of 128 differ from those of 1024. So all products have one shape.
    """
    rows = x_RI.shape[0]
    padded_RI = F.pad(x_RI, (0, 0, 0, -rows % _BLOCK_ROWS))
    return torch.cat([product(block_BI) for block_BI in padded_RI.split(_BLOCK_ROWS)])[:rows]


class InBlocks(TorchFunctionMode):
    """Linear layers of torch in a ``with`` block multiply by :func:`in_blocks`."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See :class:`torch.overrides.TorchFunctionMode`."""
        if func is not F.linear:
            return func(*args, **(kwargs or {}))
        x_RI, *others = args
        return in_blocks(lambda block_BI: func(block_BI, *others, **(kwargs or {})), x_RI)


class Product(Protocol):
    """``x @ weight.T + bias``."""

    def __call__(self, x_RI: Tensor) -> Tensor:
        """Float32 ``[R, I]`` -> ``[R, O]``."""
        ...


@dataclass(frozen=True, kw_only=True)
class Weight:
    """The parameters of a linear layer: ``weight_OI``, float32 or bfloat16, and ``bias_O`` or None."""

    weight_OI: Tensor
    bias_O: Tensor | None = None


class PlainProduct:
    """A product by ``torch.mm``: the oracle and the fallback of :class:`PackedProduct`."""

    def __init__(self, weight: Weight) -> None:
        self._weight_IO, self._bias_O = weight.weight_OI.detach().t(), weight.bias_O

    def __call__(self, x_RI: Tensor) -> Tensor:
        """See :class:`Product`."""
        return in_blocks(self._block, x_RI.to(self._weight_IO.dtype)).float()

    def _block(self, block_BI: Tensor) -> Tensor:
        if self._bias_O is None:
            return torch.mm(block_BI, self._weight_IO)
        return torch.addmm(self._bias_O, block_BI, self._weight_IO)


class PackedProduct:
    """A product by oneDNN on a packed copy of the weight. Later changes of the weight have no effect."""

    def __init__(self, weight: Weight) -> None:
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.weight_OI.detach())
        self._bias_O, self._dtype = weight.bias_O, weight.weight_OI.dtype

    def __call__(self, x_RI: Tensor) -> Tensor:
        """See :class:`Product`."""
        near_RI = x_RI.to(self._dtype)
        product: Tensor = torch.ops.mkldnn._linear_pointwise(near_RI, self._packed, self._bias_O, "none", [], "")
        return product.float()


@dataclass(frozen=True, kw_only=True)
class Products:
    """Products in the order of their weights, and how to pad their rows."""

    products: Sequence[Product]
    padding: RowPadding


def plain_products(weights: Sequence[Weight]) -> Products:
    """Products by ``torch.mm``."""
    return Products(products=[PlainProduct(weight) for weight in weights], padding=plain_padding())


@torch.inference_mode()
def products_of(weights: Sequence[Weight], packed: Callable[[int], None] | None = None) -> Products:
    """Packed products if a check on this machine shows that their rows are batch invariant; else plain ones.

    Args:
        weights: all of one dtype, float32 or bfloat16.
        packed: called with the index of a weight when its packed copy exists. The caller may then drop the weight,
            from ``weights`` too, so that both are never in memory for all weights at once.
    """
    if why := _why_not_packed(weights):
        _LOG.warning("weights are not packed (%s): forwards on this CPU take longer", why)
        return plain_products(weights)
    products = []
    for i in range(len(weights)):
        products.append(PackedProduct(weights[i]))
        if packed is not None:
            packed(i)
    return Products(products=products, padding=RowPadding(few=4, many=8))


def int8_padding() -> RowPadding:
    """For exact products, whose rows need no padding: only so that a library prepares fewer kernels."""
    return RowPadding(few=1, many=8)


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


def why_no_bfloat16(model: nn.Module) -> str | None:
    """Why this CPU gains nothing from the bfloat16 weights of a model; None if its packed products work.

    Without instructions for bfloat16, oneDNN widens weights in every product, and float32 is faster.
    """
    if not torch.cpu._is_avx512_bf16_supported():
        return "this CPU has no instructions for bfloat16"
    linears = (one for one in model.modules() if isinstance(one, nn.Linear))
    return _why_not_packed([Weight(weight_OI=one.weight) for one in linears])


@torch.inference_mode()
def _why_not_packed(weights: Sequence[Weight]) -> str | None:
    """The fault of packed products of these shapes on this machine; None if nothing was found.

    Many outputs of a shape are tried with few rows, and few of them with many: a library chooses its kernel by rows. Of
    an output head that is a part, so that it is not packed twice.
    """
    try:
        for most, counts in ((_TRIED_OUTPUTS_FEW, _TRIED_FEW), (_TRIED_OUTPUTS, _TRIED)):
            parts = [weight.weight_OI[:most] for weight in reversed(weights)]
            for part in {part.shape: part for part in parts}.values():  # matrices cut to one shape are one trial
                tried = Weight(weight_OI=part)
                if why := _problem(PackedProduct(tried), PlainProduct(tried), part, counts):
                    return why
    except Exception as error:  # the operator is not public: it may be missing or raise anything
        return str(error)
    return None


def _problem(product: Product, oracle: Product, weight_OI: Tensor, counts: Sequence[int]) -> str | None:
    """The fault of a product; None if it is correct and its rows are independent of each other."""
    width, tolerance = weight_OI.shape[1], _TOLERANCE[weight_OI.dtype]
    x_RI = torch.randn(max(counts), width, generator=torch.Generator().manual_seed(0))
    whole_RO, expected_RO = product(x_RI), oracle(x_RI)
    off = ((whole_RO - expected_RO).abs().max() / expected_RO.abs().max().clamp_min(1e-30)).item()
    if not off <= tolerance:
        return f"packed products of {width} elements are off by {off:.3g} of the largest"
    for rows in counts:
        first, last = product(x_RI[:rows]), product(x_RI[-rows:])
        if not (torch.equal(first, whole_RO[:rows]) and torch.equal(last, whole_RO[-rows:])):
            return f"packed products of {rows} rows differ from those of {len(x_RI)} in the last bits"
    return None
