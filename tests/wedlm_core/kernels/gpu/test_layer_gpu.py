"""DecoderGpu equals the plain decoder, kernel by kernel and as a whole. Without a GPU the kernels are interpreted."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from testing.engine.attention import model_shape
from testing.engine.models import random_decoder
from wedlm_core.attention import PagedAttend
from wedlm_core.kernels.gpu.layer_gpu import (
    Rotation,
    add_rms_norm,
    norm_rope,
    norm_rope_write,
    silu_mul,
    silu_mul_int8,
)
from wedlm_core.kernels.rounding import rounded
from wedlm_core.kv.pool import KVPool
from wedlm_core.model.decoder import Decoder, RMSNorm
from wedlm_core.model.decoder_gpu import DecoderGpu, disagreement, use_gpu_decoder
from wedlm_core.model.rotary import apply_rope, rope_tables

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPES = [torch.float32, torch.bfloat16]
# Relative. The interpreter cuts bfloat16 off where a GPU rounds, up to three times on the way to a result.
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 3 * 2**-7}


def noise(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype).to(DEVICE)


def assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert found.dtype == expected.dtype
    torch.testing.assert_close(found, expected, rtol=TOLERANCE[found.dtype], atol=TOLERANCE[found.dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [32, 56])
def test_residual_and_norm(size: int, dtype: torch.dtype) -> None:
    norm = RMSNorm(size, 1e-6).to(DEVICE)
    norm.weight.data = noise(size, dtype=dtype, seed=9)
    x, delta = noise(5, size, dtype=dtype), noise(5, size, dtype=dtype, seed=1)
    alone, kept = x.clone(), x.clone()
    assert_close(add_rms_norm(alone, None, norm.weight.detach(), 1e-6), norm(x).detach())
    assert torch.equal(alone, x)
    assert_close(add_rms_norm(kept, delta, norm.weight.detach(), 1e-6), norm(x + delta).detach())
    assert_close(kept, x + delta)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("normed", [True, False])
@pytest.mark.parametrize("head_dim", [8, 24])
def test_norm_and_rotation_of_heads(head_dim: int, normed: bool, dtype: torch.dtype) -> None:
    heads, kv_heads, rows = 6, 3, 4
    config = replace(random_decoder(qwen3=True, seed=0).config, head_dim=head_dim)
    cos, sin = (t.to(DEVICE, dtype) for t in rope_tables(config, 90))
    position = torch.tensor([0, 7, 89, 7], device=DEVICE)
    qkv = noise(rows, (heads + 2 * kv_heads) * head_dim, dtype=dtype)
    norms = [RMSNorm(head_dim, 1e-6).to(DEVICE) for _ in range(2)]
    for i, norm in enumerate(norms):
        norm.weight.data = noise(head_dim, dtype=dtype, seed=i)
    q, k, v = qkv.unflatten(-1, (-1, head_dim)).split((heads, kv_heads, kv_heads), dim=-2)
    if normed:
        q, k = norms[0](q).detach(), norms[1](k).detach()
    angles = cos[position].unsqueeze(-2), sin[position].unsqueeze(-2)
    weights = (norms[0].weight.detach(), norms[1].weight.detach()) if normed else None
    rotation = Rotation(
        position_T=position, cos=cos, sin=sin, weights=weights, eps=1e-6, heads=heads, kv_heads=kv_heads,
        head_dim=head_dim,
    )  # fmt: skip
    found = norm_rope(qkv, rotation)
    for ours, plain in zip(found, (apply_rope(q, *angles), apply_rope(k, *angles), v), strict=True):
        assert_close(ours, plain)
    for kv_dtype in {dtype, torch.bfloat16, torch.float8_e4m3fn}:
        pools = [
            KVPool(model_shape(heads, kv_heads, head_dim), 4, 8, device=DEVICE, dtype=dtype, kv_dtype=kv_dtype)
            for _ in range(2)
        ]
        entries = torch.tensor([5, -1, 31, 8], device=DEVICE)
        pools[0].write_entries(0, entries, *found[1:])
        assert torch.equal(norm_rope_write(qkv, rotation, *pools[1].held(0), entries), found[0])
        for ours, theirs in zip(pools[1].held(0), pools[0].held(0), strict=True):
            assert torch.equal(ours, theirs), "as torch writes them"
            assert (ours != 0).any(dim=-1).sum() == 3 * kv_heads, "padding is not stored"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [48, 1500])
def test_gated_activation(size: int, dtype: torch.dtype) -> None:
    gate_up = noise(3, 2 * size, dtype=dtype) * 4
    gate, up = gate_up.chunk(2, dim=-1)
    assert_close(silu_mul(gate_up), F.silu(gate) * up)


@pytest.mark.sweep(3)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 3, 64, 100])
def test_a_rounded_gate_finds_the_largest_number_wherever_it_is(size: int, dtype: torch.dtype) -> None:
    """A row is two powers of two to its kernel; the second may end after the row."""
    gate_up = noise(2 * size, 2 * size, dtype=dtype)
    places = torch.arange(size)
    gate_up[places, places] = gate_up[places, size + places] = 9.0
    gate_up[size + places, places] = torch.nan
    found, want = silu_mul_int8(gate_up), rounded(silu_mul(gate_up[:size]))
    if DEVICE.type == "cpu":  # a GPU may fuse the multiply-adds of the second
        assert torch.equal(found.byte_RI[:size], want.byte_RI)
        assert torch.equal(found.scale_R[:size], want.scale_R)
    assert (found.byte_RI[places, places] == 127).all()
    assert found.scale_R.isnan().tolist() == [False] * size + [True] * size


def mixing(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Something that depends on all three and on the layer, in the shape of attention."""
    return q.cumsum(dim=0) * (layer + 1) + (k - v).repeat_interleave(q.shape[-2] // k.shape[-2], dim=-2)


@pytest.mark.parametrize("qwen3", [True, False])
def test_the_whole_decoder(qwen3: bool) -> None:
    model = random_decoder(qwen3=qwen3, seed=4).to(DEVICE)
    ids, positions = torch.tensor([[5, 300, 5, 17], [0, 1, 2, 400]], device=DEVICE)
    with torch.no_grad():
        plain = model(ids, positions, mixing)
        model.packed_forward = DecoderGpu(model)
        torch.testing.assert_close(model(ids, positions, mixing), plain, rtol=2e-5, atol=2e-5)
        batched = model(ids[None], positions[None], lambda *a: mixing(a[0], *(t[0] for t in a[1:]))[None])
    torch.testing.assert_close(batched[0], plain)
    model.requires_grad_(True)
    assert model(ids, positions, mixing).requires_grad, "gradients go through the plain layers"


def test_keys_and_values_of_a_pool_are_stored_by_the_kernel_that_rotates_them(monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_decoder(qwen3=True, seed=4).to(DEVICE)
    ids, positions, entries = torch.tensor([[5, 300, 5, 17], [0, 1, 2, 40], [3, 9, -1, 12]], device=DEVICE)
    pools = [KVPool(model.config, 2, 8, device=DEVICE, dtype=torch.float32) for _ in range(2)]
    plan: Any = SimpleNamespace(attend=lambda layer, q: q * (layer + 1))

    def apart(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        pools[0].write_entries(layer, entries, k, v)
        return q * (layer + 1)

    with torch.no_grad():
        expected = DecoderGpu(model)(ids, positions, apart)
        monkeypatch.setattr(KVPool, "write_entries", lambda *_: 1 / 0)
        pools[1].on_gpu = True
        found = DecoderGpu(model)(ids, positions, PagedAttend(plan=plan, pool=pools[1], entry_T=entries))
    assert torch.equal(found, expected)
    for layer in range(model.config.num_hidden_layers):
        for ours, theirs in zip(pools[1].held(layer), pools[0].held(layer), strict=True):
            assert torch.equal(ours, theirs)


def test_a_row_does_not_depend_on_the_others() -> None:
    model = random_decoder(qwen3=True, seed=4).to(DEVICE)
    forward = DecoderGpu(model)
    ids, positions = torch.tensor([[5, 300, 9, 17], [3, 1, 2, 40]], device=DEVICE)

    def own(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return q

    with torch.no_grad():
        together = forward(ids, positions, own)
        # Products of 4 rows and more are bitwise alike for any number of them, so rows are repeated.
        alone = forward(ids[1:2].repeat(4), positions[1:2].repeat(4), own)
    assert torch.equal(together[1], alone[0])


def test_the_check_before_use_finds_a_layer_that_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_decoder(qwen3=True, seed=4).to(DEVICE)
    assert disagreement(model, range(3)) is None
    monkeypatch.setattr("wedlm_core.kernels.gpu.layer_gpu.silu_mul", lambda x: x.chunk(2, dim=-1)[0].contiguous())
    assert "is off by" in str(disagreement(model, range(3)))
    monkeypatch.setattr("wedlm_core.kernels.gpu.layer_gpu.silu_mul", lambda x: 1 / 0)
    assert "ZeroDivisionError" in str(disagreement(model, range(3)))


def test_on_a_cpu_the_plain_layers_run() -> None:
    model: Decoder = random_decoder(qwen3=True, seed=4)
    assert not use_gpu_decoder(model)
    assert model.packed_forward is None
