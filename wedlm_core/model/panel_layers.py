"""Layers whose weights are packed while they are read, for an engine that takes a model over on a CPU.

Each row of a file goes to its place in the panels at once, so that wide weights are never in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn, cast

from torch import Tensor, nn

from wedlm_core.model.decoder import Decoder, refuse_packed
from wedlm_core.model.int8 import Int8Embedding, Int8Linear
from wedlm_core.model.panels import PanelWeight

PROJECTIONS = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")
"""The linear layers of a decoder layer, in the order of a forward."""


class PanelLinear(nn.Module):
    """A linear layer in panels. :class:`wedlm_core.model.decoder_team.DecoderTeam` multiplies by it, torch cannot.

    Args:
        outputs: O.
        inputs: I.
        numbers: see :func:`wedlm_core.kernels.cpu.panel_products.numbers_here`.
        bias: its parameter, or None.

    Attributes:
        panels: the weight, without the bias.
    """

    def __init__(self, outputs: int, inputs: int, numbers: str, bias: nn.Parameter | None = None) -> None:
        super().__init__()
        self.panels = PanelWeight.empty(outputs, inputs, numbers)
        self.bias = bias

    def put(self, start: int, weight_RI: Tensor) -> None:
        """See :meth:`wedlm_core.model.panels.PanelWeight.put`."""
        self.panels.put(start, weight_RI)

    def forward(self, x: Tensor) -> NoReturn:
        """Raises :class:`wedlm_core.errors.ConfigError`."""
        refuse_packed(self)


class PanelEmbedding(nn.Module):
    """An embedding that is read from the panels of the output head it is tied to."""

    def __init__(self, head: PanelLinear) -> None:
        super().__init__()
        self.panels = head.panels

    def put(self, start: int, weight_RD: Tensor) -> None:
        """See :meth:`PanelLinear.put`."""
        self.panels.put(start, weight_RD)

    def forward(self, ids: Tensor) -> NoReturn:
        """Raises :class:`wedlm_core.errors.ConfigError`."""
        refuse_packed(self)


def use_panels(model: Decoder, numbers_of: Callable[[nn.Module], str | None]) -> None:
    """Replace the linear layers of a model without weights (on the meta device) by layers in panels, to be filled.

    Biases, norms and an embedding of its own stay on the meta device; one in int8 gets its memory here.
    """

    def packed(linear: nn.Module) -> PanelLinear:
        outputs, inputs = cast(Tensor, linear.weight).shape
        numbers = numbers_of(linear)
        assert numbers is not None
        return PanelLinear(outputs, inputs, numbers, cast("nn.Parameter | None", linear.bias))

    for layer in model.layers:
        for name in PROJECTIONS:
            setattr(layer, name, packed(getattr(layer, name)))
    head = packed(model.lm_head)
    model.set_submodule("lm_head", head)
    if model.config.tie_word_embeddings:
        model.set_submodule("embed", PanelEmbedding(head))
    elif isinstance(model.embed, Int8Embedding):
        table = Int8Linear(*model.embed.weight.shape)
        model.set_submodule("embed", Int8Embedding(table, model.dtype))
