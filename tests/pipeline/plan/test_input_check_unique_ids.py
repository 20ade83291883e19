"""A line that cannot be read is one failed row also where rows have ids of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.commit.index import Index
from pipeline.errors import SourceError
from pipeline.plan.input_check import check_unique_ids
from pipeline.plan.units import plan_units
from pipeline.types import column_row_ids
from testing.pipeline.source_rows import opened


def check(path: Path) -> None:
    """Check the ids of a file, as the begin of a run does."""
    source = opened(str(path), path.parent)
    with Index() as index:
        index.units.fill(plan_units(source, 2, "f"))
        check_unique_ids(source, index.units, "id")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.jsonl", '{"id": "a"}\n{"id": "b\n{"id": "c"}\n'),
        ("b.jsonl", '{"id": "a"}\n{"id": NaN}\n{"id": "c"}\n'),
        ("c.csv", "id,prompt\na,x\nb\nc,z\n"),
    ],
)
def test_a_line_that_cannot_be_read_needs_no_id(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    check(tmp_path / name)
    (tmp_path / name).write_text(text.replace('"c"', '"a"').replace("c,", "a,"))
    with pytest.raises(SourceError, match="rows 0 and 2"):
        check(tmp_path / name)


def test_a_row_without_an_id_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"id": "a"}\n{"prompt": "x"}\n{"id": "c"}\n')
    with pytest.raises(SourceError, match="None in row 1"):
        check(tmp_path / "x.jsonl")


@pytest.mark.parametrize(("name", "text"), [("x.jsonl", '{"id": "a"}\n{"id": ""}\n'), ("x.csv", "id,q\na,x\n,y\n")])
def test_an_empty_id_is_none(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(SourceError, match=r"'' in row 1.*never null or empty"):
        check(tmp_path / name)


def test_requests_without_an_id_are_no_repeated_ones(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"id": ""}\n{"id": "b"}\n{"id": ""}\n')
    source = opened(str(tmp_path / "x.jsonl"), tmp_path)
    with Index() as index:
        index.units.fill(plan_units(source, 2, "f"))
        check_unique_ids(source, index.units, "id", derives=True)
    assert column_row_ids(["", "b", None], ["x:0", "x:1", "x:2"]) == ["x:0", "b", "x:2"]
