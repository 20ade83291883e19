"""Observed-first order against its definition in plain Python."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from wedlm_core.ordering import observed_first, to_logical

ROWS = st.integers(1, 40).flatmap(
    lambda width: st.lists(
        st.lists(st.sampled_from(["observed", "mask", "unused"]), min_size=width, max_size=width),
        min_size=1, max_size=4,
    )
)  # fmt: skip


def plain(row: list[str]) -> list[int]:
    return [i for kind in ("observed", "mask", "unused") for i, slot in enumerate(row) if slot == kind]


@given(rows=ROWS)
def test_observed_then_masks_then_unused_each_ascending(rows: list[list[str]]) -> None:
    observed = torch.tensor([[slot == "observed" for slot in row] for row in rows])
    valid = torch.tensor([[slot != "unused" for slot in row] for row in rows])
    assert observed_first(observed, valid).tolist() == [plain(row) for row in rows]
    two_groups = [["mask" if slot == "unused" else slot for slot in row] for row in rows]
    assert observed_first(observed).tolist() == [plain(row) for row in two_groups]


@given(rows=ROWS)
def test_logical_order_is_the_inverse(rows: list[list[str]]) -> None:
    observed = torch.tensor([[slot == "observed" for slot in row] for row in rows])
    order = observed_first(observed)
    assert torch.equal(to_logical(order, order), torch.arange(order.shape[1]).expand_as(order))
    values = torch.rand(order.shape)
    assert torch.equal(to_logical(order, values.gather(1, order)), values)
