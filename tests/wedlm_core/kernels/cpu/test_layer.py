"""The CPU kernels of a layer equal readable torch code, at sizes that fill vectors and at sizes that do not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numba import njit

from testing.engine.models import random_decoder
from wedlm_core.kernels.cpu import scalar, vector
from wedlm_core.kernels.cpu.layer import add_rms_norm, place_heads, rms_norm, silu_mul
from wedlm_core.kernels.rounding import rounded
from wedlm_core.model.decoder import RMSNorm
from wedlm_core.model.rotary import apply_rope, rope_tables

EPS = np.float32(1e-6)


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def norm_of(size: int, seed: int) -> RMSNorm:
    norm = RMSNorm(size, float(EPS))
    norm.weight.data = noise(size, seed=seed)
    return norm


@pytest.mark.parametrize("size", [5, 56, 128])
def test_residual_and_norm(size: int) -> None:
    norm, x, delta = norm_of(size, 9), noise(5, size), noise(5, size, seed=1)
    weight, alone, added, kept = norm.weight.detach().numpy(), torch.zeros(5, size), torch.zeros(5, size), x.clone()
    rms_norm(x.numpy(), weight, EPS, alone.numpy(), 1, 4)
    torch.testing.assert_close(alone[1:4], norm(x[1:4]).detach())
    assert not alone[[0, 4]].any(), "other rows are left alone"
    add_rms_norm(kept.numpy(), delta.numpy(), weight, EPS, added.numpy(), np.empty(0, dtype=np.int64), 0, 5)
    torch.testing.assert_close(added, norm(x + delta).detach())
    assert torch.equal(kept, x + delta)


@pytest.mark.parametrize("size", [7, 48, 100])
def test_gated_activation(size: int) -> None:
    gate_up, out = noise(3, 2 * size) * 40, torch.zeros(3, size)
    gate, up = gate_up.chunk(2, dim=-1)
    silu_mul(gate_up.numpy(), out.numpy(), 0, 3)
    torch.testing.assert_close(out, F.silu(gate) * up)


@pytest.mark.parametrize("normed", [True, False])
@pytest.mark.parametrize("block", [4, 64])
@pytest.mark.parametrize("head_dim", [24, 80])
def test_queries_keys_and_values(head_dim: int, block: int, normed: bool) -> None:
    heads, kv_heads, entries_of_pool = 6, 3, 128
    config = replace(random_decoder(qwen3=True, seed=0).config, head_dim=head_dim)
    cos, sin = rope_tables(config, 90)
    # Runs of entries across block ends, runs longer than a vector, descending entries, single ones.
    entries = torch.tensor([*range(60, 85), 3, 2, 1, 100, 7, 8, 9])
    rows = len(entries)
    positions = (entries * 5 + 3) % 90
    qkv, norms = noise(rows, (heads + 2 * kv_heads) * head_dim), [norm_of(head_dim, seed) for seed in (1, 2)]
    weights = [norm.weight.detach().numpy() if normed else np.zeros(0, dtype=np.float32) for norm in norms]

    def placed(parts: list[tuple[int, int]], dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
        q_out = torch.zeros(rows, heads * head_dim)
        keys = torch.zeros(kv_heads, entries_of_pool // block, head_dim, block, dtype=dtype)
        values = torch.zeros(kv_heads, entries_of_pool, head_dim, dtype=dtype)
        tables = (cos.numpy(), sin.numpy(), positions.numpy(), entries.numpy())
        scales = torch.zeros(2, kv_heads, entries_of_pool)
        bits = torch.uint16 if dtype == torch.bfloat16 else dtype
        pool = (q_out.numpy(), keys.view(bits).numpy(), values.view(bits).numpy(), *scales.numpy())
        for first, last in parts:
            place_heads(qkv.numpy(), *weights, EPS, *tables, heads, *pool, first, last, 0, kv_heads)
        return q_out, keys, values, scales

    q_out, keys, values, scales = together = placed([(0, rows)])
    q, k, v = qkv.unflatten(-1, (-1, head_dim)).split((heads, kv_heads, kv_heads), dim=-2)
    if normed:
        q, k = norms[0](q).detach(), norms[1](k).detach()
    angles = cos[positions].unsqueeze(-2), sin[positions].unsqueeze(-2)
    torch.testing.assert_close(q_out.unflatten(-1, (heads, head_dim)), apply_rope(q, *angles))
    by_entry = keys.transpose(2, 3).flatten(1, 2)
    torch.testing.assert_close(by_entry[:, entries].transpose(0, 1), apply_rope(k, *angles))
    assert torch.equal(values[:, entries].transpose(0, 1), v)
    others = [entry for entry in range(entries_of_pool) if entry not in entries.tolist()]
    assert not by_entry[:, others].any()
    assert not values[:, others].any()
    assert not scales.any(), "only int8 has scales"
    alone = placed([(t, t + 1) for t in range(rows)])
    assert all(torch.equal(a, b) for a, b in zip(together, alone, strict=True)), "a row's bits are its own"
    _, narrow_keys, narrow_values, _ = placed([(0, 5), (5, rows)], torch.bfloat16)
    assert torch.equal(narrow_keys, keys.bfloat16()), "rounded as torch rounds"
    assert torch.equal(narrow_values, values.bfloat16())
    _, byte_keys, byte_values, scales = placed([(0, 5), (5, rows)], torch.int8)
    for byte, wide, scale in (
        (byte_keys.transpose(2, 3).flatten(1, 2), by_entry, scales[0]),
        (byte_values, values, scales[1]),
    ):
        want = rounded(wide[:, entries].flatten(0, 1))
        assert torch.equal(byte[:, entries].flatten(0, 1), want[0])
        assert torch.equal(scale[:, entries].flatten(), want[1])
        assert not scale[:, others].any()


@njit
def _functions_of_vectors(x, exponentials, logarithms):  # type: ignore[no-untyped-def]
    for i in range(0, len(x), vector.LANES):
        part = vector.load(x, i, len(x) - i, np.float32(1.0))
        vector.store(exponentials, i, len(x) - i, scalar.exp(part))
        vector.store(logarithms, i, len(x) - i, scalar.log(part * part))


@njit
def _functions_of_numbers(x, exponentials, logarithms):  # type: ignore[no-untyped-def]
    for i in range(len(x)):
        exponentials[i] = scalar.exp(x[i])
        logarithms[i] = scalar.log(x[i] * x[i])


def test_functions_give_a_vector_the_bits_of_its_numbers() -> None:
    x = np.linspace(-87, 88, 10_007, dtype=np.float32)
    of_vectors, of_numbers = np.zeros((2, len(x)), dtype=np.float32), np.zeros((2, len(x)), dtype=np.float32)
    _functions_of_vectors(x, *of_vectors)
    _functions_of_numbers(x, *of_numbers)
    assert np.array_equal(of_vectors.view(np.int32), of_numbers.view(np.int32))
    np.testing.assert_allclose(of_vectors[0], np.exp(x), rtol=3e-7)
    np.testing.assert_allclose(of_vectors[1], np.log(x * x), rtol=3e-7, atol=1e-7)


@njit
def _copied(x, out):  # type: ignore[no-untyped-def]
    for i in range(0, len(x), vector.LANES):
        vector.store(out, i, len(x) - i, vector.load(x, i, len(x) - i, np.float32(7.0)))


@njit
def _put_one_by_one(x, out):  # type: ignore[no-untyped-def]
    for i in range(len(x)):
        vector.put(out, i, x[i])


def test_bfloat16_is_rounded_as_torch_rounds_and_widened_exactly() -> None:
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.00390625, 1.01171875, 3.4e38, -3.4e38, 1e-40]
    x = np.array([*special, *np.random.default_rng(0).standard_normal(5001) * 1e3], dtype=np.float32)
    want = torch.from_numpy(x).bfloat16()
    for store in (_copied, _put_one_by_one):
        bits = np.zeros(len(x), dtype=np.uint16)
        store(x, bits)
        found = torch.from_numpy(bits).view(torch.bfloat16)
        torch.testing.assert_close(found, want, rtol=0, atol=0, equal_nan=True)
        wide = np.zeros_like(x)
        _copied(bits, wide)
        np.testing.assert_array_equal(wide, want.float().numpy())
