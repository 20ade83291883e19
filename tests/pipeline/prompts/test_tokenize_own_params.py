"""A row's own sampling parameter has the kind that its input gives it, whatever stands in the rows around it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import IterableDataset

from pipeline.codec import SamplingParams
from pipeline.commands.preview import preview
from pipeline.config import RunConfig

MIXED = ["x", 5, [1], ["x", "y"], "5", None]


def errors(given: Any, model: Path, param: str, **fields: Any) -> list[str | None]:
    """The error of each row of an input whose column ``m`` has a parameter."""
    config = RunConfig(
        input=str(given) if isinstance(given, Path) else given, output="unused", model=str(model),
        sampling=SamplingParams(max_tokens=1), sampling_columns={param: "m"}, **fields,
    )  # fmt: skip
    return [row["error"] for row in preview(config, rows=20).to_pylist()]


def jsonl(values: list[Any], folder: Path) -> Path:
    path = folder / "in.jsonl"
    path.write_text("".join(json.dumps({"prompt": "a", "m": value}) + "\n" for value in values))
    return path


def rows(values: list[Any], folder: Path) -> Any:
    return [{"prompt": "a", "m": value} for value in values]


def stream(values: list[Any], folder: Path) -> Any:
    def generate() -> Iterator[dict[str, Any]]:
        yield from rows(values, folder)

    return IterableDataset.from_generator(generate)


def frame(values: list[Any], folder: Path) -> Any:
    return pd.DataFrame(rows(values, folder))


@pytest.mark.parametrize("way", [jsonl, rows, stream, frame])
def test_a_value_of_another_kind_fails_its_row_among_values_of_several(
    way: Callable[[list[Any], Path], Any], qwen3_folder: Path, tmp_path: Path
) -> None:
    found = errors(way(MIXED, tmp_path), qwen3_folder, "stop")
    assert [error is None for error in found] == [True, False, False, True, True, True]
    assert found[1] is not None
    assert found[1].startswith("column 'm': stop=5: at most")
    found = errors(way([2, "2", True], tmp_path), qwen3_folder, "max_tokens")
    assert [error is None for error in found] == [True, False, False]


def test_a_cell_of_csv_is_text_for_parameters_of_text_and_a_value_for_others(
    qwen3_folder: Path, tmp_path: Path
) -> None:
    for cells in (["5", "7", ""], ["5", "x", '"[""x"", ""y""]"', "", "[1]", "true"], ["1.5"], ["true", "false"]):
        (tmp_path / "in.csv").write_text("prompt,m\n" + "".join(f"a,{cell}\n" for cell in cells))
        assert errors(tmp_path / "in.csv", qwen3_folder, "stop") == [None] * len(cells)
    (tmp_path / "in.csv").write_text("prompt,m\na,2\na,\na,x\n")
    found = errors(tmp_path / "in.csv", qwen3_folder, "max_tokens")
    assert [error is None for error in found] == [True, True, False]


def test_whole_numbers_in_lists_stay_whole_beside_fractions(qwen3_folder: Path, tmp_path: Path) -> None:
    found = errors(jsonl([[5], [5.5]], tmp_path), qwen3_folder, "stop_token_ids")
    assert [error is None for error in found] == [True, False]
    assert errors(jsonl([[[5, 1.5]], [[6, 2]]], tmp_path), qwen3_folder, "logit_bias") == [None, None]


NOT_UTF8 = pa.array([b"\xff", b"\xfe"]).view(pa.string())
FOREIGN: list[tuple[str, pa.Array]] = [
    ("stop", pa.array([b"x", b"y"])), ("stop", pa.array([[b"x"], [b"y"]])), ("stop", pa.array([1, 2], pa.date32())),
    ("bad_words", pa.array([1, 2], pa.timestamp("us"))), ("stop", NOT_UTF8),
    ("temperature", pa.array([Decimal("0.5"), Decimal("1.0")])),
]  # fmt: skip


@pytest.mark.parametrize(("param", "array"), FOREIGN)
def test_a_type_that_json_lacks_fails_its_row(param: str, array: pa.Array, qwen3_folder: Path, tmp_path: Path) -> None:
    pq.write_table(pa.table({"prompt": ["a", "b"], "m": array}), tmp_path / "in.parquet")
    for error in errors(tmp_path / "in.parquet", qwen3_folder, param, columns=[]):
        assert error is not None
        assert error.startswith(param)


def test_names_of_folders_are_texts_as_cells_of_csv_are(qwen3_folder: Path, tmp_path: Path) -> None:
    for value in ("2", "03", "2.0"):
        (tmp_path / f"n={value}").mkdir()
        jsonl([None], tmp_path / f"n={value}")
    for param, faulty in (("stop", 0), ("max_tokens", 1)):
        config = RunConfig(
            input=str(tmp_path), output="unused", model=str(qwen3_folder), sampling=SamplingParams(max_tokens=1),
            sampling_columns={param: "n"},
        )  # fmt: skip
        failed = [row for row in preview(config, rows=3).to_pylist() if row["error"] is not None]
        assert [row["n"] for row in failed] == ["03"] * faulty


def test_an_empty_cell_of_csv_keeps_the_form_that_the_run_asks_for(qwen3_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text('prompt,m\na,"{""type"": ""integer""}"\na,\n')
    assert errors(tmp_path / "in.csv", qwen3_folder, "structured_outputs") == [None, None]
    found = errors(jsonl([{"type": "integer"}, "", 5], tmp_path), qwen3_folder, "structured_outputs")
    assert [error is None for error in found] == [True, False, False]
