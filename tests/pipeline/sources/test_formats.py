"""A format is one file: every module in the folder of formats is read."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.errors import SourceError
from pipeline.sources import formats, open_source
from pipeline.sources.formats import all_formats, all_suffixes
from pipeline.storage.open import open_storage

LINES = """
import pyarrow as pa

from pipeline.sources.text import TextSource
from pipeline.sources.text import lines_of


class LinesSource(TextSource):
    label = "lines"
    suffixes = (".lines",)

    @classmethod
    def over(cls, files, options):
        return cls(files, pa.schema([("prompt", pa.string())]), options)

    def _ends(self, stream, file):
        position = 0
        yield position
        for line in lines_of(stream):
            position += len(line)
            yield position

    def _parse(self, lines, file):
        return [{"prompt": line.decode().rstrip("\\n")} for line in lines]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A second folder of formats; nothing of it is left."""
    own = tmp_path / "formats"
    own.mkdir()
    monkeypatch.setattr(formats, "__path__", [*formats.__path__, str(own)])
    before = set(sys.modules)
    all_formats.cache_clear()
    yield own
    all_formats.cache_clear()
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_the_formats_are_those_that_users_know() -> None:
    assert [one.label for one in all_formats()] == ["Text", "Parquet", "OpenAI batch", "JSON Lines", "CSV", "Arrow"]
    assert {".parquet", ".jsonl.gz", ".tsv.zst", ".feather"} <= set(all_suffixes())


def test_a_format_is_one_file(folder: Path, tmp_path: Path) -> None:
    (folder / "lines.py").write_text(LINES)
    (tmp_path / "in.lines").write_text("first\nsecond\nthird\n")
    source = open_source(str(tmp_path / "in.lines"), open_storage(tmp_path / "out", "state"))
    rows = [row["prompt"] for table in source.read(list(source.slices(2))) for row in table.to_pylist()]
    assert rows == ["first", "second", "third"]
    with pytest.raises(SourceError, match=r"known suffixes: .*\.lines"):
        open_source(str(tmp_path / "missing.lines"), open_storage(tmp_path / "out", "state"))


@pytest.mark.parametrize(
    ("text", "words"),
    [("", "has 0 subclasses"), (LINES.replace('(".lines",)', '(".csv",)'), "claim a suffix twice")],
)
def test_a_file_that_is_no_format_of_its_own_is_an_error(text: str, words: str, folder: Path) -> None:
    (folder / "odd.py").write_text(text)
    with pytest.raises(SourceError, match=words):
        all_formats()
