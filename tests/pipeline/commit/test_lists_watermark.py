"""The watermark: it is read as it was written, in few lists, and each file is written a few times."""

from __future__ import annotations

import math
from dataclasses import replace

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.commit.index import Inputs, ProcessedFile
from pipeline.commit.lists import load_watermark, write_watermark
from pipeline.commit.manifest import Manifest, Publication
from pipeline.commit.part_files import PartRecord
from testing.pipeline.fakes import MemoryStorage


def publication(number: int, inputs: tuple[PartRecord, ...]) -> Publication:
    nothing = PartRecord(name="", rows=0, bytes=0, sha256="")
    return Publication(
        number=number, position=number, revision=0, epoch=1, format="parquet", schema=pa.schema([]),
        dead_schema=pa.schema([]), parts=(), dead_letters=None, units=nothing, inputs=inputs,
    )  # fmt: skip


class Table:
    """Decisions that each add files."""

    def __init__(self) -> None:
        self.storage, self.manifest, self.written = MemoryStorage(), Manifest(), 0

    def add(self, files: list[ProcessedFile]) -> None:
        number = self.manifest.next_number
        with Inputs() as inputs:
            load_watermark(self.storage, self.manifest, inputs)
            lists = write_watermark(self.storage, self.manifest, inputs, lambda: files, number=number, epoch=1)
        self.written += lists[-1].rows
        self.manifest = replace(self.manifest, decided=(*self.manifest.decided, publication(number, lists)))

    def load(self) -> list[ProcessedFile]:
        with Inputs() as inputs:
            load_watermark(self.storage, self.manifest, inputs)
            files = (file for own in self.manifest.publications for file in inputs.at(own.position))
            return sorted(files, key=lambda file: file.key)


def processed(key: int, position: int, *, removed: bool = False, version: int = 0) -> ProcessedFile:
    return ProcessedFile(
        key=f"k{key:05d}", digest=f"d{key}", stamp="s", position=position, unit=key % 3 or None, rows=key,
        version=version, removed=removed,
    )  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.tuples(st.integers(0, 30), st.booleans()), max_size=12), max_size=12))
def test_of_each_file_the_last_entry_counts(decisions: list[list[tuple[int, bool]]]) -> None:
    table, expected = Table(), dict[str, ProcessedFile]()
    for number, entries in enumerate(decisions):
        files = [processed(key, number, removed=removed, version=number) for key, removed in dict(entries).items()]
        table.add(files)
        expected |= {file.key: file for file in files}
    assert table.load() == [expected[key] for key in sorted(expected) if not expected[key].removed]


def test_lists_are_few_and_each_file_is_written_a_few_times() -> None:
    table, runs, each = Table(), 120, 7
    for run in range(runs):
        table.add([processed(run * each + i, run) for i in range(each)])
        assert len(table.manifest.inputs) <= 1 + math.log2(run + 1)
    assert len(table.load()) == runs * each
    assert table.written <= runs * each * (1 + math.log2(runs))


def test_files_of_a_publication_that_was_withdrawn_are_new_again() -> None:
    table = Table()
    for number in range(3):
        table.add([processed(number, number)])
    decided = tuple(p for p in table.manifest.decided if p.position != 1)
    table.manifest = replace(table.manifest, decided=decided)
    assert [file.position for file in table.load()] == [0, 2]


def test_an_attempt_that_is_made_again_changes_nothing() -> None:
    table = Table()
    table.add([processed(1, 0), processed(2, 0)])
    with Inputs() as inputs:
        load_watermark(table.storage, table.manifest, inputs)
        again = [
            write_watermark(table.storage, table.manifest, inputs, lambda: [processed(3, 1)], number=1, epoch=1)
            for _ in range(2)
        ]
    assert again[0] == again[1]
