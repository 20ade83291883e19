"""A widened model computes the same as the small one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.decode.random_model import SHAPES
from benchmarks.decode.widened import widened
from wedlm_core import ModelConfig
from wedlm_core.model.decoder import Decoder
from wedlm_core.model.sources import resolve
from wedlm_core.model.weights import load_model

_LARGE = SHAPES["25m"]


@pytest.fixture(scope="module")
def tiny() -> Decoder:
    return load_model(resolve("tiny"))


def _attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention within a batch."""
    heads = [x.transpose(-2, -3) for x in (q, k, v)]
    return F.scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=True).transpose(-2, -3)


@torch.no_grad()
def _logits(model: Decoder, ids_BT: Tensor) -> Tensor:
    positions_BT = torch.arange(ids_BT.shape[1]).expand_as(ids_BT)
    return model.logits(model(ids_BT, positions_BT, _attend))


@pytest.mark.parametrize(
    "sizes",
    [
        {},
        {"head_dim": 32},
        {"head_dim": 128, "num_hidden_layers": 5},
        {"num_attention_heads": 4, "num_key_value_heads": 2},
    ],
)
def test_a_larger_shape_has_the_logits_of_the_model(tiny: Decoder, sizes: dict[str, int]) -> None:
    large = widened(tiny, replace(_LARGE, **sizes))
    ids_BT = torch.randint(10, 900, (3, 40), generator=torch.Generator().manual_seed(1))
    want, got = _logits(tiny, ids_BT), _logits(large, ids_BT)
    torch.testing.assert_close(got, want, atol=5e-3, rtol=0)  # a norm's eps weighs more beside zeros
    assert (got.argmax(-1) == want.argmax(-1)).all()


def test_nothing_depends_on_the_weights_of_spare_layers(tiny: Decoder) -> None:
    ids_BT = torch.arange(10, 50)[None]
    one, other = (_logits(widened(tiny, _LARGE, seed=seed), ids_BT) for seed in (0, 1))
    assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("sizes", "rule"),
    [
        ({"hidden_size": 64}, "hidden_size=64: the model has 128"),
        ({"head_dim": 48}, "head_dim=48"),
        ({"num_key_value_heads": 2}, "3 heads for each head of keys"),
    ],
)
def test_a_shape_that_does_not_hold_the_model_is_refused(tiny: Decoder, sizes: dict[str, int], rule: str) -> None:
    shape: ModelConfig = replace(_LARGE, **sizes)
    with pytest.raises(ValueError, match=rule):
        widened(tiny, shape)
