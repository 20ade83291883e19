"""Rows and files that are too large, too deep, or bombs: a bad row or a clear error, in little memory."""

from __future__ import annotations

import gzip
import io
import json
import random
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

import pipeline
from pipeline import layout
from pipeline.codec import SamplingParams
from pipeline.commands.run import run_on
from pipeline.commands.run_checks import plan_index, prepared_sample
from pipeline.config import RunConfig
from pipeline.errors import ConfigError, SourceError
from pipeline.plan.job import resolve_job
from pipeline.prompts import rendering
from pipeline.prompts.tokenize import FAILURE_CLASS
from pipeline.sinks import FORMATS, check_format
from pipeline.sources import BAD, HIDDEN, RAW, inflating, source_of
from pipeline.sources.limits import MAX_DEPTH, MAX_ROW_BYTES
from pipeline.sources.tabulate import infer_columns, tabulate
from pipeline.storage.local import LocalStorage
from testing.pipeline.fakes import InlineExecutor
from testing.pipeline.source_rows import all_rows, opened

CODECS = {"": lambda data: data, ".gz": lambda data: gzip.compress(data, 1),
          ".zst": lambda data: pa.compress(data, "zstd", asbytes=True)}  # fmt: skip
LONG = MAX_ROW_BYTES + 1000


def bad_rows(table: pa.Table) -> dict[int, str]:
    """Number -> reason."""
    return {i: reason for i, reason in enumerate(table[BAD].to_pylist()) if reason is not None}


def nested(depth: int, value: Any = 1) -> Any:
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    return value


def peak_megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@pytest.mark.sweep(3)
@pytest.mark.parametrize("codec", sorted(CODECS))
@pytest.mark.parametrize("unit", [1, 3, 100])
def test_a_json_row_that_is_too_long_is_a_bad_row_with_its_begin_and_the_others_are_read(
    tmp_path: Path, codec: str, unit: int
) -> None:
    rows = [b'{"prompt": "p%d", "k": %d}' % (i, i) for i in range(7)]
    rows[3] = b'{"prompt": "long ' + random.Random(0).randbytes(LONG // 2).hex().encode() + b'", "k": 3}'
    rows[6] = b" " * LONG
    path = tmp_path / f"x.jsonl{codec}"
    path.write_bytes(CODECS[codec](b"\n".join(rows)))
    table = all_rows(opened(str(path), tmp_path), unit)
    assert table["k"].to_pylist() == [0, 1, 2, None, 4, 5, None]
    found = bad_rows(table)
    assert list(found) == [3, 6]
    assert found[3] == f"the row has {len(rows[3]) + 1} bytes, and {MAX_ROW_BYTES} is the most. Shorten or split it"
    assert table[RAW][3].as_py().startswith('{"prompt": "long ')
    assert len(table[RAW][3].as_py()) < 10_000


def test_a_row_that_is_as_long_as_a_row_may_be_is_read(tmp_path: Path) -> None:
    frame = b'{"prompt": ""}'
    rows = [b'{"prompt": "' + b"x" * (MAX_ROW_BYTES - len(frame) + more) + b'"}' for more in (0, 1)]
    (tmp_path / "x.jsonl").write_bytes(b"\n".join([b'{"prompt": "a"}', *rows, b'{"prompt": "b"}']))
    table = all_rows(opened(str(tmp_path / "x.jsonl"), tmp_path), 9)
    assert [len(prompt or "") for prompt in table["prompt"].to_pylist()] == [1, len(rows[0]) - len(frame), 0, 1]
    assert list(bad_rows(table)) == [2]


@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_a_line_of_a_small_compressed_file_that_is_larger_than_memory_should_hold_is_a_bad_row(
    tmp_path: Path, kind: str
) -> None:
    head, row = {"jsonl": (b"", b'{"prompt": "a"}\n'), "csv": (b"prompt\n", b"a\n")}[kind]
    path = tmp_path / f"x.{kind}.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(head + row)
        for _ in range(100):
            file.write(b"a" * 2**20)
        file.write(b"\n" + row)
    assert path.stat().st_size < 2 * 2**20
    before = peak_megabytes()
    table = all_rows(opened(str(path), tmp_path), 2)
    assert table["prompt"].to_pylist() == ["a", None, "a"]
    assert bad_rows(table)[1].startswith(f"the row has {100 * 2**20 + 1} bytes")
    assert peak_megabytes() - before < 250


@pytest.mark.parametrize("line", [b"a" * 15, b'{"prompt": "a"}\n'], ids=["one line", "rows"])
def test_a_file_that_decompresses_to_far_more_than_data_does_is_an_error_that_says_so(
    tmp_path: Path, line: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inflating, "FREE_BYTES", 2**23)
    path = tmp_path / "bomb.jsonl.zst"
    with pa.CompressedOutputStream(str(path), "zstd") as file:
        file.write(b'{"prompt": "a"}\n')
        for _ in range(60):
            file.write(line * 70_000)
    assert path.stat().st_size < 2**16
    before, begin = peak_megabytes(), time.process_time()
    with pytest.raises(
        SourceError, match=r"bomb\.jsonl\.zst: .* 2000 times .* decompress the file beforehand"
    ) as caught:
        list(opened(str(path), tmp_path).slices(10))
    assert "\n" not in str(caught.value)
    assert time.process_time() - begin < 20
    assert peak_megabytes() - before < 300


def test_a_gzip_file_of_equal_rows_is_read(tmp_path: Path) -> None:
    row = b'{"prompt": "the same, over and over"}\n'
    (tmp_path / "x.jsonl.gz").write_bytes(gzip.compress(row * (2**20 // len(row) * 70)))
    source = opened(str(tmp_path / "x.jsonl.gz"), tmp_path)
    assert sum(piece.num_rows for piece in source.slices(10_000)) == 2**20 // len(row) * 70


def test_json_that_is_too_deep_is_a_bad_row_with_its_text_and_the_depth_that_is_allowed_is_read(
    tmp_path: Path,
) -> None:
    lines = [
        json.dumps({"prompt": "a", "x": nested(MAX_DEPTH)}).encode(),
        json.dumps({"prompt": "b", "x": nested(MAX_DEPTH + 1)}).encode(),
        b'{"prompt": "c", "x": ' + b"[" * 900 + b"]" * 900 + b"}",
        b'{"prompt": "d", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"a":' * 100_000,
        b"[" * 100_000 + b"]" * 100_000,
        b'{"prompt": "[[[[{{{{"}',
    ]
    for name, order in (("x", lines), ("y", lines[::-1])):
        path = tmp_path / f"{name}.jsonl"
        path.write_bytes(b"\n".join(order))
        table = all_rows(opened(str(path), tmp_path), 2)
        found = bad_rows(table)
        good = [p for number, p in enumerate(table["prompt"].to_pylist()) if number not in found]
        assert sorted(good) == ["[[[[{{{{", "a"]
        assert len(found) == 5
        assert sum("levels" in reason for reason in found.values()) >= 4
        assert [table[RAW][i].as_py() for i in found] == [order[i].decode() for i in found]


@pytest.mark.parametrize("name", sorted(FORMATS))
@pytest.mark.parametrize("kind", ["lists", "mappings", "mixed"])
def test_the_depth_that_is_allowed_goes_into_every_format_and_comes_back(name: str, kind: str) -> None:
    value: Any = 1
    for level in range(MAX_DEPTH):
        value = [value] if kind == "lists" or (kind == "mixed" and level % 2) else {"a": value}
    rows = [{"x": value}]
    table = tabulate(rows, infer_columns(rows)).drop_columns(list(HIDDEN))
    assert table["x"].to_pylist() == [value]
    check_format(name, table.schema)
    file = io.BytesIO()
    part = FORMATS[name].open(file, table.schema)
    part.write(table)
    part.close()
    back = pa.concat_tables(FORMATS[name].tables(io.BytesIO(file.getvalue()), table.schema))
    assert back["x"].to_pylist() == [value]


@pytest.mark.parametrize("depth", [55, 61])
@pytest.mark.parametrize("kind", [pa.list_, lambda inner: pa.struct([("a", inner)])], ids=["lists", "structs"])
def test_a_column_that_no_part_could_be_read_back_with_is_a_clear_error_before_anything_is_generated(
    depth: int, kind: Any
) -> None:
    inner: pa.DataType = pa.int64()
    for _ in range(depth):
        inner = kind(inner)
    schema = pa.schema([("prompt", pa.string()), ("x", inner)])
    if depth == 55 and kind is not pa.list_:
        check_format("parquet", schema)
    else:
        with pytest.raises(ConfigError, match="column"):
            check_format("parquet", schema)


def test_rows_in_memory_that_are_too_deep_or_hold_themselves_are_bad_rows_and_no_crash() -> None:
    own: list[Any] = [1]
    own.append(own)
    rows = [{"prompt": "a", "x": [1]}, {"prompt": "b", "x": nested(100_000)}, {"prompt": "c", "x": own}]
    table = tabulate(rows, infer_columns(rows))
    assert table["prompt"].to_pylist() == ["a", "b", "c"]
    assert len(bad_rows(table)) == 2
    assert all("levels" in reason for reason in bad_rows(table).values())
    assert sys.getrecursionlimit() < 100_000


def test_a_csv_row_that_is_too_long_is_a_bad_row_and_a_long_header_a_clear_error(tmp_path: Path) -> None:
    long = b'"' + b"x, y" * (LONG // 4) + b'"'
    (tmp_path / "x.csv").write_bytes(b"prompt,k\na,1\n" + long + b',2\n"b\n2",3\n"never ' + long[:9] + b"\n\nc,4\n")
    for unit in (1, 2, 9):
        table = all_rows(opened(str(tmp_path / "x.csv"), tmp_path), unit)
        assert [k for k in table["k"].to_pylist() if k is not None] == [1, 3, 4]
        assert (
            bad_rows(table)[1]
            == f"the row has {len(long) + 3} bytes, and {MAX_ROW_BYTES} is the most. Shorten or split it"
        )
    (tmp_path / "y.csv").write_bytes(b"a" * LONG + b"\n1\n")
    with pytest.raises(SourceError, match="its header has more than"):
        opened(str(tmp_path / "y.csv"), tmp_path)
    (tmp_path / "z.csv").write_bytes(b",".join(b"c%d" % i for i in range(20_000)) + b"\n")
    with pytest.raises(SourceError, match="20000 columns, and the limit is 10000"):
        opened(str(tmp_path / "z.csv"), tmp_path)
    (tmp_path / "w.csv").write_bytes(b"same," * 5000 + b"\n")
    with pytest.raises(SourceError, match="each once") as caught:
        opened(str(tmp_path / "w.csv"), tmp_path)
    assert len(str(caught.value)) < 2000


def test_a_slice_of_large_rows_is_closed_before_it_fills_the_memory(tmp_path: Path) -> None:
    row = b'{"prompt": "' + b"x" * 2**20 + b'"}\n'
    (tmp_path / "x.jsonl").write_bytes(row * 100)
    source = opened(str(tmp_path / "x.jsonl"), tmp_path)
    pieces = list(source.slices(512))
    assert sum(piece.num_rows for piece in pieces) == 100
    assert max(piece.stop - piece.start for piece in pieces) <= 64 * 2**20 + len(row)


HUGE = "{{ ('x' * n) | length }} {{ prompt }}"


@pytest.fixture
def little_for_a_template(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Templates have 64 MiB of memory, not 1 GiB."""
    monkeypatch.setattr(rendering, "_BYTES", 64 << 20)
    rendering._process.cache_clear()
    yield
    rendering._process.cache_clear()


@pytest.mark.usefixtures("little_for_a_template")
def test_a_job_goes_on_over_bombs_in_rows_templates_and_depth(qwen3_folder: Path, tmp_path: Path) -> None:
    rows = [{"prompt": f"Count from {i}.", "n": 1, "x": [i]} for i in range(12)]
    rows[2]["n"] = 10**9  # a template that takes a gigabyte for this row
    lines = [json.dumps(row).encode() for row in rows]
    lines[5] = b'{"prompt": "' + b"a" * LONG + b'"}'
    lines[7] = b'{"prompt": "b", "n": 1, "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    (tmp_path / "in.jsonl.gz").write_bytes(gzip.compress(b"\n".join(lines)))
    config = RunConfig(
        input=str(tmp_path / "in.jsonl.gz"), model=str(qwen3_folder), output=str(tmp_path / "out"), unit_rows=4,
        prompt_template=HUGE, sampling=SamplingParams(max_tokens=4),
    )  # fmt: skip
    summary = run_on(InlineExecutor(), config, LocalStorage(config.output, layout.SCRATCH))
    assert (summary.total.rows, summary.total.failed_rows) == (12, 3)
    dead = pipeline.read(tmp_path / "out", table="dead_letters", format="arrow").to_pylist()
    assert [letter["row_id"] for letter in dead] == [f"in.jsonl.gz:{i}" for i in (2, 5, 7)]
    assert [letter["error_class"] for letter in dead] == ["TemplateLimitError", "SourceError", "SourceError"]
    assert "takes more than 64 MiB of memory" in dead[0]["error"]


@pytest.mark.usefixtures("little_for_a_template")
def test_a_template_that_exceeds_a_limit_for_every_row_is_found_out_by_a_few_rows_of_the_sample(
    qwen3_folder: Path, tmp_path: Path
) -> None:
    rows = [{"prompt": f"Count from {i}.", "n": 10**9} for i in range(200)]
    config = RunConfig(input=rows, output=str(tmp_path / "out"), model=str(qwen3_folder), prompt_template=HUGE)
    storage = LocalStorage(tmp_path / "aside", layout.SCRATCH)
    job = resolve_job(config, source_of(config, storage), storage)
    with plan_index(job, config) as index:
        assert index.units.rows == 200
        table = prepared_sample(job, index.units, 64)
    assert table[FAILURE_CLASS].to_pylist() == ["TemplateLimitError"] * 3


@pytest.mark.parametrize("suffix", ["feather", "parquet"])
def test_an_arrow_or_parquet_file_of_deep_columns_is_a_clear_error(tmp_path: Path, suffix: str) -> None:
    value: Any = 1
    for _ in range(55):
        value = [value]
    table = pa.table({"prompt": ["a"], "x": [value]})
    path = tmp_path / f"x.{suffix}"
    feather.write_feather(table, path) if suffix == "feather" else pq.write_table(table, path)
    with pytest.raises((ConfigError, SourceError), match=r"x\.parquet|columns? "):
        check_format("parquet", opened(str(path), tmp_path).schema)


@pytest.mark.parametrize("form", ["a.csv", "rows", "several"])
def test_more_columns_than_the_most_are_refused_within_a_second(form: str, tmp_path: Path) -> None:
    names = [f"k{i}" for i in range(100_000)]
    row = dict.fromkeys(names, 1)
    if form == "a.csv":
        (tmp_path / form).write_text(",".join(names) + "\n" + ",".join("1" * len(names)))
    elif form == "several":
        (tmp_path / "a.jsonl").write_text(json.dumps(dict.fromkeys(names[:6_000], 1)))
        (tmp_path / "b.jsonl").write_text(json.dumps(dict.fromkeys(names[6_000:12_000], 1)))
    else:
        (tmp_path / "a.jsonl").write_text(json.dumps(row))
    data = [row] if form == "rows" else str(tmp_path)
    begin = time.process_time()
    with pytest.raises(SourceError, match="columns, and the limit is 10000"):
        pipeline.preview(RunConfig(input=data, output="none", model="tiny"), rows=1)
    assert form == "several" or time.process_time() - begin < 1
