"""Text files: a byte order mark is no part of the text, and a compressed file is read once, by one task."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipeline.errors import SourceError
from pipeline.plan import units as plan
from pipeline.plan.units import plan_units, read_tasks, read_units
from pipeline.sources import text
from testing.pipeline.source_rows import opened

MARK = b"\xef\xbb\xbf"
TEXTS = {
    "jsonl": b'{"prompt": "a", "n": 1}\n{"prompt": "b", "n": 2}\n',
    "json": b'{"prompt": "a", "n": 1}\n{"prompt": "b", "n": 2}\n',
    "csv": b"prompt,n\na,1\nb,2\n",
    "tsv": b"prompt\tn\na\t1\nb\t2\n",
}
CODECS = {"": lambda data: data, ".gz": gzip.compress, ".zst": lambda data: pa.compress(data, "zstd", asbytes=True)}


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("suffix", TEXTS)
def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path, suffix: str, codec: str) -> None:
    found = []
    for name, mark in (("plain", b""), ("marked", MARK)):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"f.{suffix}{codec}").write_bytes(CODECS[codec](mark + TEXTS[suffix]))
        source = opened(str(tmp_path / name), tmp_path)
        tables = [table for k in read_tasks(plan_units(source, 1, "f")) for table in read_units(source, k.units)]
        found.append((source.schema.names, pa.concat_tables(tables).to_pylist()))
    assert found[0] == found[1]
    assert [row["prompt"] for row in found[1][1]] == ["a", "b"]
    assert not any(row["__wedlm_bad"] for row in found[1][1])


@pytest.mark.parametrize("codec", [".gz", ".zst"])
def test_a_compressed_file_of_many_units_is_read_once_by_one_task(
    tmp_path: Path, codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"prompt": f"p{i}"} for i in range(3000)]
    data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    (tmp_path / f"a.jsonl{codec}").write_bytes(CODECS[codec](data))
    (tmp_path / f"b.jsonl{codec}").write_bytes(CODECS[codec](data))
    source = opened(f"{tmp_path}/*.jsonl{codec}", tmp_path)
    units = list(plan_units(source, 2, "f"))
    tasks = list(read_tasks(units))
    assert [len(task.units) for task in tasks] == [1500, 1500], "one for each file"
    opens: list[str] = []
    original = text.open_input

    def counted(path: str, options: Any) -> Any:
        opens.append(path)
        return original(path, options)

    monkeypatch.setattr(text, "open_input", counted)
    got = [p for task in tasks for table in read_units(source, task.units) for p in table["prompt"].to_pylist()]
    assert got == [row["prompt"] for row in rows] * 2
    assert len(opens) == 2
    # Also where most of the rows are done already, as in a run that goes on.
    opens.clear()
    few = list(read_tasks(unit for unit in units if unit.index % 100 == 7))
    assert [table.num_rows for task in few for table in read_units(source, task.units)] == [2] * 30
    assert (len(few), len(opens)) == (2, 2)
    monkeypatch.setattr(plan, "_MOST_UNITS_IN_ONE_PASS", 1000)
    assert [len(task.units) for task in read_tasks(units)] == [1000, 500] * 2, "a driver holds so many at most"


@pytest.mark.parametrize("name", ["f.jsonl", "f.csv", "f.jsonl.gz"])
@pytest.mark.parametrize(
    ("data", "words"),
    [(gzip.compress(b"x", mtime=0), "gzip: end its name in .gz"), (CODECS[".zst"](b"x"), "zstd"),
     (bz2.compress(b"x"), "bzip2"), (lzma.compress(b"x"), "xz"), (b"PK\x03\x04rest", "a ZIP archive, as .xlsx is")],
)  # fmt: skip
def test_a_file_that_is_no_text_is_named_with_its_content(tmp_path: Path, name: str, data: bytes, words: str) -> None:
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    with pytest.raises(SourceError, match=rf"{name}: its content is {words}"):
        opened(str(tmp_path), tmp_path)
