"""A damaged file is one line that names it and the true cause, at once; a store that fails is asked again."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFile

from pipeline.errors import SourceError
from pipeline.sources import inflating
from pipeline.sources.formats import parquet
from pipeline.sources.source import cut, damage_named
from pipeline.types import Slice
from testing.pipeline.source_rows import all_rows, opened

TEXT = [f"Count from {i} to 9." for i in range(4000)]


def damaged_page(path: Path) -> None:
    pq.write_table(pa.table({"prompt": TEXT}), path, compression="snappy", use_dictionary=False)
    data = bytearray(path.read_bytes())
    data[60:4060] = b"\xff" * 4000
    path.write_bytes(data)


def wrong_checksum(path: Path) -> None:
    pq.write_table(pa.table({"prompt": TEXT}), path, compression="none", use_dictionary=False, write_page_checksum=True)
    path.write_bytes(path.read_bytes().replace(b"Count from 7 to 9.", b"Count from 7 to 8."))


def name_of_bytes(path: Path) -> None:
    table = pa.table({"prompt": ["a"], "zzzzzz": [1]})
    pq.write_table(table, path, store_schema=False, write_statistics=False)
    path.write_bytes(path.read_bytes().replace(b"zzzzzz", b"z\xe8\xff\xfezz"))


def cut_off(path: Path) -> None:
    pq.write_table(pa.table({"prompt": TEXT}), path)
    path.write_bytes(path.read_bytes()[:-100])


DAMAGES = {
    damaged_page: "snappy|thrift", wrong_checksum: "CRC", name_of_bytes: r"not UTF-8: 'z\\xe8",
    cut_off: "magic bytes|footer",
}  # fmt: skip


@pytest.mark.parametrize("place", ["local", "memory"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_parquet_file_is_told_at_once(tmp_path: Path, damage: Any, place: str) -> None:
    path = tmp_path / "x.parquet"
    damage(path)
    name = str(path)
    if place == "memory":
        name = f"memory://{damage.__name__}/x.parquet"
        fsspec.filesystem("memory").pipe_file(f"/{damage.__name__}/x.parquet", path.read_bytes())
    with pytest.raises(
        SourceError, match=rf"x\.parquet: cannot be read \(.*({DAMAGES[damage]}).*\)\. Correct or"
    ) as raised:
        all_rows(opened(name, tmp_path), 64)
    assert "\n" not in str(raised.value)


def test_each_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in "abc":
        cut_off(tmp_path / f"in/{name}.parquet")
    with pytest.raises(SourceError) as raised:
        opened(tmp_path / "in", tmp_path)
    assert [line.split(": ")[0][-9:] for line in str(raised.value).splitlines()] == [
        "a.parquet",
        "b.parquet",
        "c.parquet",
    ]


CODECS = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}


@pytest.mark.parametrize("codec", CODECS)
def test_compressed_text_is_read_in_several_pieces_and_damage_is_told(tmp_path: Path, codec: str) -> None:
    pieces = [CODECS[codec]("".join(f'{{"prompt": "{text}"}}\n' for text in TEXT[i::3]).encode()) for i in range(3)]
    padding = b"\0" * 8 if codec == "xz" else b""
    for name in (f"a.jsonl.{codec}", f"B.JSONL.{codec.upper()}"):
        (tmp_path / name).write_bytes(padding.join(pieces))
        assert sorted(all_rows(opened(tmp_path / name, tmp_path), 512)["prompt"].to_pylist()) == sorted(TEXT)
    whole = CODECS[codec]("".join(f'{{"prompt": "{text}"}}\n' for text in TEXT).encode())
    for data in (whole[: len(whole) // 2], whole[:200] + bytes(300) + whole[500:]):
        (tmp_path / f"c.jsonl.{codec}").write_bytes(data)
        with pytest.raises(SourceError, match=r"c\.jsonl.*: cannot be read \(.*\)\. Correct or"):
            all_rows(opened(tmp_path / f"c.jsonl.{codec}", tmp_path), 64)


def test_an_xz_file_takes_bounded_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inflating, "_XZ_MEMORY_BYTES", 2**16)
    (tmp_path / "x.jsonl.xz").write_bytes(lzma.compress(b'{"prompt": "a"}\n', preset=9))
    with pytest.raises(SourceError, match=r"x\.jsonl\.xz: cannot be read \(.*[Mm]emory"):
        opened(tmp_path / "x.jsonl.xz", tmp_path)


class ClientError(Exception):
    """An exception of a store's client."""


@pytest.mark.parametrize("name", ["x.jsonl", "x.parquet"])
@pytest.mark.parametrize("fault", ["raises", "short"])
def test_a_read_that_a_store_breaks_off_is_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, fault: str
) -> None:
    memory = fsspec.filesystem("memory")
    if name == "x.jsonl":
        memory.pipe_file(f"/broken/{name}", b'{"prompt": "a"}\n' * 3)
    else:
        pq.write_table(pa.table({"prompt": ["a"] * 3}), tmp_path / name)
        memory.pipe_file(f"/broken/{name}", (tmp_path / name).read_bytes())
    source = opened(f"memory://broken/{name}", tmp_path)
    slices = list(source.slices(8))
    times = iter(range(100))

    def breaks(self: MemoryFile, size: int = -1) -> bytes:
        data = io.BytesIO.read(self, size)
        if next(times) >= 2:
            return data
        if fault == "raises":
            raise ClientError("IncompleteRead(3 bytes read, 7 more expected)")
        return data[:-1]

    monkeypatch.setattr(MemoryFile, "read", breaks, raising=False)
    assert pa.concat_tables(source.read(slices))["prompt"].to_pylist() == ["a"] * 3
    times = iter([0] * 1000)
    with pytest.raises(SourceError, match=r"reading memory://.* failed 5 times, last with StoreError: "):
        list(source.read(slices))


def test_a_parquet_file_of_rows_that_are_too_long_is_refused_before_it_is_decompressed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pq.write_table(pa.table({"prompt": ["x" * 100_000] * 2}), tmp_path / "x.parquet", use_dictionary=False)
    assert opened(tmp_path / "x.parquet", tmp_path).schema.names == ["prompt"]
    monkeypatch.setattr(parquet, "_MOST_ROW_BYTES", 50_000)
    with pytest.raises(SourceError, match=r"x\.parquet: .*10001[0-9] bytes.*50000"):
        opened(tmp_path / "x.parquet", tmp_path)


def test_a_name_of_bytes_with_a_line_end_is_shown_in_one_line() -> None:
    shown = r"^in/x\.parquet: .* not UTF-8: 'a\\n\\xff'\)\. Correct or remove it\.$"
    with pytest.raises(SourceError, match=shown), damage_named("in/x.parquet"):
        b"a\n\xff".decode()


def test_a_file_of_fewer_rows_than_it_says_is_named() -> None:
    piece = Slice(file=0, first_row=0, num_rows=2)
    with pytest.raises(SourceError, match=r"^in/x\.parquet: it ends at row 1, .* It is damaged, or was changed"):
        list(cut("in/x.parquet", [pa.table({"prompt": ["a"]})], 0, [piece]))
