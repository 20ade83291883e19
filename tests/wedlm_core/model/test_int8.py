"""Layers of int8 weights and rows: exact sums, rounding, loading in pieces."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from wedlm_core.config import ModelConfig
from wedlm_core.config.model import MOST_EXACT_INPUTS
from wedlm_core.errors import ConfigError
from wedlm_core.kernels.cpu import eight_bits
from wedlm_core.kernels.rounding import rounded
from wedlm_core.model import placing
from wedlm_core.model.decoder import Decoder
from wedlm_core.model.decoder_team import numbers_of
from wedlm_core.model.int8 import Int8Embedding, Int8Linear, exact_sums
from wedlm_core.model.panels import pack
from wedlm_core.model.quantised import prepare_exact, quantise
from wedlm_core.model.team import Team
from wedlm_core.model.weights import load_model

CPU = torch.device("cpu")
EXTREME = st.sampled_from([-127, -126, -1, 0, 1, 126, 127])


def some_linear(seed: int, *, inputs: int = 48, outputs: int = 32, bias: bool = True) -> nn.Linear:
    torch.manual_seed(seed)
    linear = nn.Linear(inputs, outputs, bias=bias).requires_grad_(False)
    linear.weight.mul_(torch.logspace(-3, 2, outputs)[:, None])
    return linear


@given(rows=st.integers(1, 40), inputs=st.integers(1, 300), outputs=st.integers(1, 40), data=st.data())
@settings(max_examples=40, deadline=None)
def test_sums_are_exact_for_the_largest_numbers(rows: int, inputs: int, outputs: int, data: st.DataObject) -> None:
    """A kernel that adds pairs of products in 16 bits is off here by thousands."""
    byte_RI = torch.full((rows, inputs), data.draw(EXTREME), dtype=torch.int8)
    weight_OI = torch.full((outputs, inputs), data.draw(EXTREME), dtype=torch.int8)
    weight_OI[0] *= -1
    want = byte_RI.numpy().astype(np.int64) @ weight_OI.numpy().astype(np.int64).T
    assert np.array_equal(exact_sums(byte_RI, weight_OI).numpy(), want)


@given(
    rows=st.integers(1, 9), inputs=st.integers(1, 70), seed=st.integers(0, 2**31),
    size=st.sampled_from([1e-20, 1e-3, 1.0, 1e6]),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_the_kernel_rounds_as_the_readable_form_does(rows: int, inputs: int, seed: int, size: float) -> None:
    torch.manual_seed(seed)
    x_RI = torch.randn(rows, inputs) * size * torch.logspace(-2, 2, rows)[:, None]
    x_RI[0] = 0
    x_RI[-1, : inputs // 2] = x_RI[-1, -1] * 0.5  # ties
    byte_RI, scale_R = torch.empty(rows, inputs, dtype=torch.int8), np.empty(rows, dtype=np.float32)
    eight_bits.round_rows(x_RI.numpy(), byte_RI.numpy(), scale_R, 0, rows)
    want, want_scale = rounded(x_RI)
    assert torch.equal(byte_RI, want)
    assert np.array_equal(scale_R, want_scale.numpy())


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 17, 47])
def test_a_row_that_is_no_number_stays_none_and_others_are_what_they_were(value: float, place: int) -> None:
    """Comparisons drop a NaN: a largest number found without it would make plain text of damaged rows."""
    layer = Int8Linear.of(some_linear(3))
    good_RI = torch.randn(3, 48)
    bad_RI = good_RI.clone()
    bad_RI[1, place] = value
    panels = pack(layer.weight, numbers_of(layer) or "", scale_O=layer.scale_O, bias_O=layer.bias)
    for product in (layer, partial(Team().product, panels)):
        found = product(bad_RI)
        assert not found[1].isfinite().any()
        assert torch.equal(found[::2], product(good_RI)[::2])


@given(seed=st.integers(0, 2**31), zero=st.booleans())
@settings(max_examples=20, deadline=None)
def test_weights_come_back_within_half_a_step(seed: int, zero: bool) -> None:
    linear = some_linear(seed)
    if zero:
        linear.weight[3] = 0
    layer = Int8Linear.of(linear)
    error = (layer.weight.float() * layer.scale_O[:, None] - linear.weight).abs()
    assert bool((error <= linear.weight.abs().amax(dim=1, keepdim=True) / 127 / 2 * 1.001 + 1e-12).all())
    x = torch.randn(5, 3, 48)
    assert (layer(x) - linear(x)).norm() < 0.02 * linear(x).norm()


def test_an_embedding_shares_the_memory_of_its_head() -> None:
    table = Int8Linear.of(some_linear(1, bias=False))
    embedding = Int8Embedding(table, torch.float32)
    ids = torch.tensor([[0, 31], [7, 7]])
    found = embedding(ids)
    assert found.shape == (2, 2, 48)
    assert embedding.weight.data_ptr() == table.weight.data_ptr()
    out = torch.empty(4, 48)
    table = embedding.weight.numpy(), embedding.scale_V.numpy()
    eight_bits.widen_rows(*table, ids.flatten().numpy(), out.numpy(), 0, 4)
    assert torch.equal(out, found.flatten(0, 1))


def state(model: Decoder) -> dict[str, torch.Tensor]:
    return {name: value for name, value in (*model.named_parameters(), *model.named_buffers()) if "cos" not in name}


@pytest.mark.parametrize("head", [True, False])
@pytest.mark.parametrize("fixture", ["qwen3_folder", "qwen25_folder"])
def test_loading_in_pieces_gives_the_bytes_of_rounding_a_loaded_model(
    fixture: str, head: bool, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder: Path = request.getfixturevalue(fixture)
    monkeypatch.setattr(placing, "PIECE_BYTES", 1000)
    loaded = load_model(folder, weight_dtype="int8", quantised_head=head)
    after = quantise(load_model(folder), "int8", head=head)
    assert state(loaded).keys() == state(after).keys()
    for name, value in state(after).items():
        assert torch.equal(state(loaded)[name], value), name
    assert isinstance(loaded.lm_head, Int8Linear) is head
    kept = sum(b.numel() for b in loaded.buffers() if b.dtype == torch.int8)
    assert kept > sum(p.numel() for p in loaded.parameters()) or not head


def test_layers_too_wide_for_32_bits_are_refused() -> None:
    wide = ModelConfig(
        vocab_size=8, hidden_size=8, intermediate_size=MOST_EXACT_INPUTS + 1, num_hidden_layers=1,
        num_attention_heads=1, num_key_value_heads=1, head_dim=8, max_position_embeddings=8, mask_token_id=1,
    )  # fmt: skip
    with torch.device("meta"):
        model = Decoder(wide)
    with pytest.raises(ConfigError, match="32 bits"):
        prepare_exact(model, "int8", "meta")
    wide.check_weight_dtype("auto")
