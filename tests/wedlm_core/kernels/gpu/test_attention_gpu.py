"""The Triton attention kernels equal the oracle. Without a GPU they run in Triton's interpreter."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from testing.engine.attention import Case, make_case
from wedlm_core.attention import DeviceRows
from wedlm_core.attention.oracle import OracleAttention
from wedlm_core.attention.paged_gpu import TritonPlan

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
case_of = partial(make_case, device=DEVICE)
sequences = st.lists(st.tuples(st.integers(1, 21), st.integers(0, 90)), min_size=1, max_size=4)


def triton(case: Case, *, invariant: bool = False, splits: int | None = None) -> torch.Tensor:
    rows = DeviceRows.of(case.rows, case.q_THD.device)
    return TritonPlan(rows, case.pool, case.heads, batch_invariant=invariant, splits=splits).attend(0, case.q_THD)


def oracle(case: Case) -> torch.Tensor:
    return OracleAttention().plan(case.rows, case.pool, case.heads).attend(0, case.q_THD)


@given(
    lengths=sequences,
    shape=st.sampled_from([(4, 4, 16), (4, 2, 32), (6, 2, 24), (8, 1, 16), (14, 2, 64)]),
    page_size=st.sampled_from([1, 4, 16, 64, 128]),
    splits=st.sampled_from([1, 2, 3]),
    invariant=st.booleans(),
    seed=st.integers(0, 1000),
)
@settings(max_examples=4, deadline=None)
def test_rows_equal_the_oracle(
    lengths: list[tuple[int, int]], shape: tuple[int, int, int], page_size: int, splits: int, invariant: bool, seed: int
) -> None:
    heads, kv_heads, head_dim = shape
    case = case_of(lengths, heads=heads, kv_heads=kv_heads, head_dim=head_dim, page_size=page_size, seed=seed)
    found = triton(case, invariant=invariant, splits=splits)
    torch.testing.assert_close(found, oracle(case), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("dtype", "kv_dtype"),
    [(torch.float32, torch.bfloat16), (torch.float32, torch.float8_e4m3fn), (torch.float16, torch.float8_e4m3fn)],
)
def test_narrow_dtypes_equal_the_oracle(dtype: torch.dtype, kv_dtype: torch.dtype | None) -> None:
    lengths = [(1, 200), (9, 0), (17, 63)]
    case = case_of(
        lengths, heads=4, kv_heads=2, head_dim=32, page_size=16, dtype=dtype, kv_dtype=kv_dtype
    )  # fmt: skip
    tolerance = 1e-5 if dtype == torch.float32 else 4e-3
    torch.testing.assert_close(triton(case, splits=3), oracle(case), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("size", [2.0**-40, 1.0, 2.0**60])
def test_queries_of_any_size_read_floats_of_8_bits(size: float) -> None:
    """They are multiplied in float16, whose largest number is 65,504."""
    narrow = torch.float8_e4m3fn
    case = case_of(
        [(1, 90), (5, 3)], heads=4, kv_heads=2, head_dim=32, page_size=16, dtype=torch.bfloat16, kv_dtype=narrow
    )
    case.q_THD.mul_(size)
    wide = case_of([(1, 90), (5, 3)], heads=4, kv_heads=2, head_dim=32, page_size=16)
    for held, read in ((wide.pool.k, case.pool.k), (wide.pool.v, case.pool.v)):
        held[0].copy_(read[0].view(narrow).float())
    expected = oracle(replace(wide, q_THD=case.q_THD.float()))
    torch.testing.assert_close(triton(case).float(), expected, rtol=2**-7, atol=1e-3)


def test_unused_places_and_padding_change_nothing() -> None:
    case = case_of([(3, 10), (1, 70), (5, 0)], heads=4, kv_heads=2, head_dim=16, page_size=16)
    rows = DeviceRows.of(case.rows, case.q_THD.device)
    cu = rows.cu_rows_Z
    # An unused place between sequences and two after them; bounds and unused rows.
    padded = replace(
        rows,
        cu_rows_Z=torch.cat([cu[:2], cu[1:], cu[-1:], cu[-1:]]).to(torch.int32),
        kv_lengths_S=torch.tensor([13, 0, 71, 5, 0, 0], dtype=torch.int32, device=DEVICE),
        pages_SP=torch.cat(
            [rows.pages_SP[[0, 0, 1, 2, 0, 0]], torch.zeros(6, 3, dtype=torch.int32, device=DEVICE)], dim=1
        ),
        max_rows=32,
        max_kv=128,
        total=40,
    )
    q = torch.cat([case.q_THD, torch.full((31, 4, 16), torch.nan, device=DEVICE)])
    found = TritonPlan(padded, case.pool, 4, batch_invariant=False, splits=2).attend(0, q)
    torch.testing.assert_close(found[:9], oracle(case), rtol=1e-5, atol=1e-5)
    assert torch.equal(found[9:], torch.zeros_like(found[9:]))


@pytest.fixture
def dots_row_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tile's rows do not depend on their place in it: on a GPU, and with this in the interpreter.

    There a dot is a product of the host's BLAS, which on some processors treats the rows of a tile differently.
    """
    if DEVICE == "cuda":
        return
    from triton.runtime import interpreter

    def dot(_: object, a: Any, b: Any, d: Any, *__: object) -> Any:
        rows = [row[None] @ b.data for row in a.data]
        return interpreter.TensorHandle(np.concatenate(rows).astype(d.data.dtype) + d.data, d.dtype.scalar)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", dot)


@pytest.mark.usefixtures("dots_row_by_row")
def test_an_invariant_row_has_the_same_bits_in_any_forward() -> None:
    together = case_of([(4, 30), (20, 50), (1, 3)], heads=4, kv_heads=2, head_dim=16, page_size=16, seed=5)
    whole = triton(together, invariant=True)
    for begin, end in ((0, 7), (7, 20), (19, 20)):  # rows of the second sequence, in chunks of their own
        rows = DeviceRows(
            cu_rows_Z=torch.tensor([0, end - begin], dtype=torch.int32, device=DEVICE),
            kv_lengths_S=torch.tensor([50 + end], dtype=torch.int32, device=DEVICE),
            pages_SP=together.rows.pages_SP[1:2].to(torch.int32),
            max_rows=end - begin,
            max_kv=50 + end,
            total=end - begin,
        )
        plan = TritonPlan(rows, together.pool, 4, batch_invariant=True)
        alone = plan.attend(0, together.q_THD[4 + begin : 4 + end])
        assert torch.equal(alone, whole[4 + begin : 4 + end])
