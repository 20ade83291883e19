"""Bounded index lists against ``torch.nonzero``."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from wedlm_core.decoding.compact import compact_indices


@given(flags=st.lists(st.booleans(), max_size=40), spare=st.integers(0, 9), fill=st.sampled_from([0, 7, -1]))
def test_it_is_nonzero_then_the_filler(flags: list[bool], spare: int, fill: int) -> None:
    flag = torch.tensor(flags, dtype=torch.bool)
    wanted = torch.nonzero(flag).flatten()
    index, count = compact_indices(flag, len(wanted) + spare, fill=fill)
    assert index.dtype == torch.int64
    assert int(count) == len(wanted)
    assert index.tolist() == wanted.tolist() + [fill] * spare


@given(flags=st.lists(st.booleans(), min_size=1, max_size=40), bound=st.integers(0, 12))
def test_what_does_not_fit_is_left_out_and_counted(flags: list[bool], bound: int) -> None:
    flag = torch.tensor(flags)
    index, count = compact_indices(flag, bound)
    wanted = torch.nonzero(flag).flatten().tolist()
    assert index.tolist() == (wanted + [0] * bound)[:bound]
    assert int(count) == len(wanted)


@pytest.mark.gpu  # counts syncs of a CUDA stream
def test_it_does_not_wait_for_the_device() -> None:
    flag = torch.rand(4096, device="cuda") < 0.1
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        index, count = compact_indices(flag, 4096, fill=-1)
    finally:
        torch.cuda.set_sync_debug_mode(before)
    wanted = torch.nonzero(flag).flatten()
    assert torch.equal(index[: int(count)], wanted)
    assert bool((index[int(count) :] == -1).all())
