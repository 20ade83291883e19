"""Frames of outputs hold the integers that the output has, also where rows failed."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd
import pyarrow as pa
import pytest

from pipeline import RunResult
from pipeline.commands.read import exact_frame
from testing.pipeline.exactly_once import SmallJob

BITS = (8, 16, 32, 64)
INTEGERS = [getattr(pa, f"{kind}{bits}")() for kind in ("int", "uint") for bits in BITS]


@pytest.mark.parametrize("arrow", INTEGERS, ids=str)
@pytest.mark.parametrize("nulls", [[], [None]], ids=["full", "with a null"])
def test_the_largest_integers_come_back(arrow: pa.DataType, nulls: list[None]) -> None:
    unsigned = pa.types.is_unsigned_integer(arrow)
    largest = 2 ** (arrow.bit_width - (not unsigned)) - 1
    values = [largest, largest - 1, 0 if unsigned else -largest, *nulls]
    table = pa.table(
        {
            "a": pa.chunked_array([pa.array(values, arrow)] * 2),
            "b": pa.array([values] * (2 * len(values)), pa.list_(arrow)),
        }
    )
    frame = exact_frame(table)
    assert [None if value is pd.NA else int(value) for value in frame["a"]] == values * 2
    assert [None if value is None else int(value) for value in frame["b"][0]] == values
    assert str(frame["a"].dtype).lower() == str(arrow)


def test_seeds_and_counts_of_a_run_with_failed_rows_are_those_of_its_files(
    make_job_that_ran: Callable[[], SmallJob],
) -> None:
    result = RunResult(summary=make_job_that_ran().run())
    table, frame = result.to_arrow(), result.to_pandas()
    assert table["seed"].null_count
    assert any(seed is not None and seed > 2**53 for seed in table["seed"].to_pylist())
    for name in ("seed", "prompt_tokens", "completion_tokens"):
        assert [None if value is pd.NA else value for value in frame[name]] == table[name].to_pylist()
        assert str(frame[name].dtype).startswith("Int")
    assert frame["sample_index"].dtype == "int32"
    assert frame["completion_tokens"].sum() == sum(filter(None, table["completion_tokens"].to_pylist()))
