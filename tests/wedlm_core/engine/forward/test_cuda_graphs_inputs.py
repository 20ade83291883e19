"""The buffers of captured forwards hold the same, filled by one kernel or part by part."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from testing.engine.copied_inputs import CopiedInputs
from wedlm_core.attention import DeviceRows
from wedlm_core.engine.forward.cuda_graphs import StaticInputs
from wedlm_core.engine.forward.graph_policy import GraphKey
from wedlm_core.engine.forward.pack_gpu import DeviceBatch

ROOM, PAGE = 150, 4
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")  # where the kernel is interpreted
BUFFERS = ("_id_T", "_position_T", "_slot_T", "_cu_rows_Z", "_kv_lengths_S")


def batch_of(size: int, sequences: int, columns: int, seed: int) -> DeviceBatch:
    torch.manual_seed(seed)
    given_3T = torch.randint(-1, 1000, (3, size)).to(DEVICE)
    return DeviceBatch(
        id_T=given_3T[0],
        position_T=given_3T[1],
        kv_entry_T=given_3T[2],
        rows=DeviceRows(
            cu_rows_Z=torch.randint(0, size, (sequences + 1,), dtype=torch.int32).sort().values.to(DEVICE),
            kv_lengths_S=torch.randint(1, 99, (sequences,), dtype=torch.int32).to(DEVICE),
            pages_SP=torch.randint(0, 99, (sequences, columns), dtype=torch.int32).to(DEVICE),
            max_rows=size,
            max_kv=columns * PAGE,
            total=size,
        ),
    )


def buffers(inputs: StaticInputs, key: GraphKey) -> dict[str, torch.Tensor]:
    return {name: getattr(inputs, name) for name in BUFFERS} | {"pages": inputs._page_table(key)}


@given(
    size=st.integers(1, 300), sequences=st.integers(1, 9), columns=st.integers(1, 140), more=st.integers(0, 9),
    seed=st.integers(0, 99),
)  # fmt: skip
@example(size=300, sequences=ROOM, columns=3, more=0, seed=0)
@settings(max_examples=12, deadline=None)
def test_one_kernel_fills_what_copies_fill(size: int, sequences: int, columns: int, more: int, seed: int) -> None:
    key = GraphKey(size=size, sequences=ROOM, max_rows=size, max_kv=PAGE * (columns + more))
    by_kernel, by_parts = (
        kind(rows=300, sequences=ROOM, page_size=PAGE, device=DEVICE) for kind in (StaticInputs, CopiedInputs)
    )
    for number in range(2):  # the second finds the first one's values
        batch = batch_of(size, max(1, sequences - number), columns, seed + number)
        for one in (by_kernel, by_parts):
            one.fill(key, batch)
        for name, value in buffers(by_kernel, key).items():
            assert torch.equal(value, buffers(by_parts, key)[name]), name


def test_a_page_table_that_is_a_part_of_another_is_refused() -> None:
    batch = batch_of(4, 2, 6, 0)
    cut = replace(batch, rows=replace(batch.rows, pages_SP=batch.rows.pages_SP[:, :3]))
    inputs = StaticInputs(rows=4, sequences=2, page_size=PAGE, device=DEVICE)
    with pytest.raises(AssertionError):
        inputs.fill(GraphKey(size=4, sequences=2, max_rows=4, max_kv=24), cut)
