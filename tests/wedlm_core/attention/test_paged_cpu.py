"""Attention by the kernels of a CPU equals a plain softmax, and a row has the same bits in any forward."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from testing.engine.attention import Case, make_case
from wedlm_core.attention.paged_cpu import PagedCpuAttention

FP8 = torch.float8_e4m3fn
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}


def attended(case: Case) -> torch.Tensor:
    return PagedCpuAttention().plan(case.rows, case.pool, case.heads).attend(0, case.q_THD)


def softmax_of(case: Case) -> torch.Tensor:
    """Attention by its definition, over the values that the pool holds."""
    pool, rows, out_THD = case.pool, case.rows, torch.zeros_like(case.q_THD)
    transposed = pool.k[0].view(pool.heads, -1, pool.head_dim, pool.key_block).transpose(2, 3)
    k_HED, v_HED = (x.reshape(pool.heads, -1, pool.head_dim).float() for x in (transposed, pool.v[0]))
    if pool.scaled_rows:
        k_HED, v_HED = k_HED * pool.key_scales[0][..., None], v_HED * pool.value_scales[0][..., None]
    for s, (start, count, cached) in enumerate(zip(rows.starts_S, rows.counts_S, rows.cached_S, strict=True)):
        index_L = torch.arange(cached + count)
        entry_L = rows.pages_SP[s, index_L // pool.page_size] * pool.page_size + index_L % pool.page_size
        of_head = torch.arange(case.heads) * pool.heads // case.heads
        k_HLD, v_HLD = k_HED[of_head][:, entry_L].double(), v_HED[of_head][:, entry_L].double()
        q_RHD = case.q_THD[start : start + count].double() * pool.head_dim**-0.5
        score_HRL = torch.einsum("rhd,hld->hrl", q_RHD, k_HLD)
        hidden_RL = index_L > cached + torch.arange(count)[:, None]
        weight_HRL = score_HRL.masked_fill(hidden_RL, -torch.inf).softmax(-1)
        out_THD[start : start + count] = torch.einsum("hrl,hld->rhd", weight_HRL, v_HLD).to(out_THD.dtype)
    return out_THD


@given(
    rows=st.integers(1, 40), sequences=st.integers(1, 12), cached=st.integers(0, 200),
    dim=st.sampled_from([4, 8, 32, 30]), group=st.sampled_from([1, 2, 3]),
    page=st.sampled_from([1, 2, 8, 16, 32, 64, 128]), seed=st.integers(0, 99),
)  # fmt: skip
@example(rows=2, sequences=3, cached=1500, dim=64, group=2, page=64, seed=0)  # more keys than are fetched at once
@example(rows=1, sequences=4, cached=130, dim=32, group=1, page=64, seed=0)
@settings(max_examples=12, deadline=None)
def test_it_equals_a_plain_softmax(
    rows: int, sequences: int, cached: int, dim: int, group: int, page: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    lengths = [(int(rng.integers(1, rows + 1)), int(rng.integers(0, cached + 1))) for _ in range(sequences)]
    shape = {"heads": 2 * group, "kv_heads": 2, "head_dim": dim, "page_size": page, "seed": seed}
    for kv_dtype in (None, torch.bfloat16, torch.int8, FP8):
        case = make_case(lengths, **shape, kv_dtype=kv_dtype, transposed_keys=True)
        torch.testing.assert_close(attended(case), softmax_of(case), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kv_dtype", [None, FP8])
def test_other_numbers_are_computed_in_float32(dtype: torch.dtype, kv_dtype: torch.dtype | None) -> None:
    shape = {"heads": 4, "kv_heads": 2, "head_dim": 32, "page_size": 16, "transposed_keys": True}
    case = make_case([(1, 40), (9, 0), (3, 100)], **shape, dtype=dtype, kv_dtype=kv_dtype)
    found = attended(case)
    assert found.dtype == dtype
    torch.testing.assert_close(found, softmax_of(case), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("kv_dtype", [None, torch.int8, FP8])
@pytest.mark.parametrize("group", [1, 2, 8])
def test_a_row_has_the_same_bits_alone_and_among_others(group: int, kv_dtype: torch.dtype | None) -> None:
    case = make_case([(1, 200), (3, 5), (8, 63), (70, 0), (16, 130)], heads=2 * group, kv_heads=2, head_dim=32,
                     page_size=16, kv_dtype=kv_dtype, transposed_keys=True)  # fmt: skip
    whole_THD, rows = attended(case), case.rows
    for sequence, count in enumerate(rows.counts_S.tolist()):
        for taken in {1, min(2, count), count}:
            end = int(rows.starts_S[sequence]) + count
            few = replace(rows, counts_S=np.array([taken]), cached_S=rows.cached_S[[sequence]] + count - taken,
                          starts_S=np.array([0]), pages_SP=rows.pages_SP[[sequence]])  # fmt: skip
            alone_THD = attended(replace(case, rows=few, q_THD=case.q_THD[end - taken : end]))
            assert torch.equal(alone_THD, whole_THD[end - taken : end]), (sequence, taken)
