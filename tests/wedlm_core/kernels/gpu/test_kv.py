"""The Triton kernel stores the same keys and values as torch."""

from __future__ import annotations

import pytest
import torch

from testing.engine.attention import model_shape
from wedlm_core.kv.pool import KVPool

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def pools(dtype: torch.dtype, kv_dtype: torch.dtype | None) -> tuple[KVPool, KVPool]:
    config = model_shape(6, 3, 24)
    made = [KVPool(config, 4, 8, device=DEVICE, dtype=dtype, kv_dtype=kv_dtype) for _ in range(2)]
    made[0].on_gpu = False  # by torch on a GPU too
    return made[0], made[1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kv_dtype", [None, torch.float8_e4m3fn, torch.bfloat16])
def test_both_writers_store_the_same_numbers(dtype: torch.dtype, kv_dtype: torch.dtype | None) -> None:
    by_torch, by_kernel = pools(dtype, kv_dtype)
    qkv = torch.randn(5, 12, 24, generator=torch.Generator().manual_seed(1)).to(DEVICE, dtype)
    if kv_dtype == torch.float8_e4m3fn:
        qkv = torch.where(qkv > 2.5, 30000.0, qkv).to(dtype)  # some beyond the largest 8-bit float
    entries = torch.tensor([5, -1, 31, 8, -1], device=DEVICE)
    k, v = qkv[:, 6:9], qkv[:, 9:]  # strided, as a split of the fused projection is
    by_torch.write_entries(0, entries, k, v)
    by_kernel.write_entries_gpu(0, entries, k, v)
    for ours, theirs in ((by_kernel.k, by_torch.k), (by_kernel.v, by_torch.v)):
        assert torch.equal(ours[0].float(), theirs[0].float())
    stored = by_torch.keys(0, by_torch.flat_index(torch.tensor([31], device=DEVICE))).view(3, 24)
    expected = k[2].to(kv_dtype or dtype).to(dtype)
    if kv_dtype == torch.float8_e4m3fn:
        expected = k[2].float().clamp(-448, 448).to(kv_dtype).to(dtype)
    assert torch.equal(stored, expected)


def test_padding_rows_are_not_stored() -> None:
    by_torch, by_kernel = pools(torch.float32, None)
    noise = torch.randn(3, 3, 24, device=DEVICE)
    entries = torch.tensor([2, -1, -1], device=DEVICE)
    by_torch.write_entries(0, entries, noise, noise)
    by_kernel.write_entries_gpu(0, entries, noise, noise)
    for pool in (by_torch, by_kernel):
        assert int((pool.k[0].view(3, 32, 24) != 0).any(-1).sum()) == 3
