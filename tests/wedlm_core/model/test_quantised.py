"""Quantised layers: their rounding, their results, and whole models that use them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from wedlm_core import LLM, EngineConfig, SamplingParams
from wedlm_core.config import EXACT_WEIGHT_DTYPES
from wedlm_core.errors import ConfigError
from wedlm_core.model.quantised import EXACT_DTYPES, QUANTISED_DTYPES, Fp8Linear, quantise
from wedlm_core.model.weights import load_model


def some_linear(seed: int, *, inputs: int = 48, outputs: int = 32, bias: bool = True) -> nn.Linear:
    torch.manual_seed(seed)
    linear = nn.Linear(inputs, outputs, bias=bias).requires_grad_(False)
    linear.weight.mul_(torch.logspace(-3, 2, outputs)[:, None])  # outputs of very different size
    return linear


@given(seed=st.integers(0, 2**31), bias=st.booleans(), zero=st.booleans())
@settings(max_examples=20, deadline=None)
def test_weights_come_back_within_half_a_step(seed: int, bias: bool, zero: bool) -> None:
    linear = some_linear(seed, bias=bias)
    if zero:
        linear.weight[3] = 0
    layer = Fp8Linear(linear)
    error = (layer.weight.float() * layer.scale_O[:, None] - linear.weight).abs()
    largest = linear.weight.abs().amax(dim=1, keepdim=True)
    # Three bits after the leading one, and steps of 2^-9 of the scale near zero.
    bound = torch.maximum(linear.weight.abs() / 16, largest / 448 * 2**-10)
    assert bool((error <= bound * 1.001 + 1e-12).all())


def test_it_computes_with_the_rounded_numbers() -> None:
    linear = some_linear(7)
    layer = Fp8Linear(linear)
    x = torch.randn(5, 3, 48)
    x[0, 0] = 0
    scale = x.abs().amax(-1, keepdim=True).clamp_min(1e-9) / 448  # each row is rounded at its own scale
    taken = (x / scale).to(torch.float8_e4m3fn).double() * scale
    weight = layer.weight.double() * layer.scale_O[:, None].double()
    want = (taken @ weight.t() + linear.bias.double()).float()
    got = layer(x)
    assert got.shape == (5, 3, 32)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-4)
    assert (got - linear(x)).norm() < 0.05 * linear(x).norm()
    torch.testing.assert_close(layer(x[1]), got[1])


@pytest.mark.parametrize("name", ["int8", "fp8_e4m3"])
@pytest.mark.parametrize("fixture", ["qwen3_folder", "qwen25_folder"])
def test_a_model_keeps_one_byte_per_weight_of_its_layers(
    name: str, fixture: str, request: pytest.FixtureRequest
) -> None:
    folder: Path = request.getfixturevalue(fixture)
    before, model = load_model(folder), load_model(folder)
    assert quantise(model, "auto") is model
    assert sum(p.numel() for p in model.parameters()) == sum(p.numel() for p in before.parameters())
    quantise(model, name)
    kept = {b.data_ptr(): b.numel() for b in model.buffers() if b.dtype == QUANTISED_DTYPES[name]}
    lost = sum(p.numel() for p in before.parameters()) - sum(p.numel() for p in model.parameters())
    assert sum(kept.values()) == lost > 0
    if name != "int8":
        assert torch.equal(model.embed.weight, before.embed.weight)
        assert torch.equal(model.lm_head.weight, before.lm_head.weight)


@pytest.mark.parametrize("name", sorted(set(QUANTISED_DTYPES) - {"int4"}))  # which is for GPUs
def test_the_tiny_model_still_counts(name: str) -> None:
    llm = LLM("tiny", config=EngineConfig(weight_dtype=name), device="cpu", dtype="float32")
    (out,) = llm.chat([{"role": "user", "content": "Count from 3 to 9."}], SamplingParams(max_tokens=48))
    assert "3, 4, 5, 6, 7, 8, 9" in out.text


def test_unknown_dtypes_are_refused(qwen3_folder: Path) -> None:
    with pytest.raises(ConfigError, match="weight_dtype"):
        EngineConfig(weight_dtype="int3")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="weight_dtype"):
        quantise(load_model(qwen3_folder), "int3")


@pytest.mark.skipif(torch.__version__ < (2, 12), reason="on a CPU torch 2.11 has no scales of rows, only of tensors")
def test_the_product_for_tensor_cores_gives_the_same_numbers() -> None:
    """Torch implements it on CPU too, with a bfloat16 result."""
    layer = Fp8Linear(some_linear(4, inputs=64, outputs=48))
    x = torch.randn(5, 64)
    want = layer(x)
    layer._on_tensor_cores = True
    torch.testing.assert_close(layer(x), want, rtol=2**-7, atol=1e-4 * float(want.abs().max()))


@pytest.mark.gpu  # products of 8-bit floats on tensor cores
def test_tensor_cores_compute_what_a_cpu_does() -> None:
    linear = some_linear(3, inputs=256, outputs=512)
    x = torch.randn(33, 256)
    want = Fp8Linear(linear)(x)
    layer = Fp8Linear(linear.cuda().bfloat16())
    got = layer(x.cuda().bfloat16()).float().cpu()
    assert (got - want).norm() < 0.03 * want.norm()


def test_names_of_exact_weights_are_those_of_the_configuration() -> None:
    assert tuple(EXACT_DTYPES) == EXACT_WEIGHT_DTYPES
