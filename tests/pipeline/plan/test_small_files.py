"""Small files share units: rows, their ids and commits stay as they are, whatever files come or go."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import fsspec
import pytest

from pipeline import layout
from pipeline.codec import SamplingParams
from pipeline.commands import begin
from pipeline.commands.read import read
from pipeline.commands.run import run_on
from pipeline.commands.verify import verify
from pipeline.commit.index import Index
from pipeline.commit.ledger import read_ledger
from pipeline.commit.run_record import FileIdentity
from pipeline.config import RunConfig
from pipeline.errors import FingerprintError, SourceError
from pipeline.plan import small_files
from pipeline.plan.small_files import SmallFiles
from pipeline.plan.units import plan_units, read_tasks
from pipeline.schema import DATA_COLUMNS
from pipeline.sources import open_source
from pipeline.storage.open import open_storage
from pipeline.types import CommitRecord
from testing.pipeline.exactly_once import Stopped, StopsAfter
from testing.pipeline.fakes import FakeEngine, InlineExecutor

BIG = 23
"""Rows of the file in the middle, which is not small."""


class ManyFiles:
    """Small files of 0 to 4 rows around one that is not small, and an output."""

    def __init__(self, place: str, options: Mapping[str, Any], model: Path) -> None:
        self.place, self.options = place, dict(options)
        self.fs, self.root = fsspec.core.url_to_fs(place, use_listings_cache=False, **options)
        self.config = RunConfig(
            input=f"{place}/in", output=f"{place}/out", model=str(model), unit_rows=8, target_part_bytes=9000,
            sampling=SamplingParams(max_tokens=4, n=2), storage_options=self.options,
        )  # fmt: skip
        self.rows: dict[str, list[dict[str, Any]]] = {}
        for i in range(30):
            self.put(f"f{i:02d}.jsonl", BIG if i == 15 else 1 + i % 4)
        self.put("f07.jsonl", 1, prompt="")

    def put(self, name: str, count: int, prompt: str | None = None) -> None:
        self.rows[name] = [{"prompt": f"Say {name} {i}." if prompt is None else prompt, "n": i} for i in range(count)]
        self.fs.makedirs(f"{self.root}/in", exist_ok=True)
        self.fs.pipe_file(f"{self.root}/in/{name}", "".join(json.dumps(r) + "\n" for r in self.rows[name]).encode())

    def remove(self, *names: str) -> None:
        for name in names:
            self.fs.rm_file(f"{self.root}/in/{name}")

    @property
    def storage(self) -> Any:
        return open_storage(self.config.output, layout.SCRATCH, self.options)

    def run(self, executor: InlineExecutor | None = None, **fields: Any) -> Any:
        config = RunConfig(**{**_fields(self.config), **fields})
        return run_on(executor or InlineExecutor(), config, self.storage, lambda progress: None)

    def stop_after(self, units: int, **given: Any) -> None:
        with pytest.raises(Stopped):
            self.run(StopsAfter(units, **given))

    def ids(self, names: Sequence[str] | None = None) -> list[str]:
        return [f"{name}:{i}" for name in names or sorted(self.rows) for i in range(len(self.rows[name]))]

    def out(self, *, committed: bool = False) -> list[dict[str, Any]]:
        table = read(self.config.output, format="arrow", committed=committed, storage_options=self.options)
        return table.select(["prompt", "n", *DATA_COLUMNS]).to_pylist()

    def out_ids(self) -> list[str]:
        return list(dict.fromkeys(row["row_id"] for row in self.out()))

    def records(self) -> list[CommitRecord]:
        with Index() as index:
            read_ledger(self.storage, index.records)
            return list(index.records)

    def problems(self) -> tuple[str, ...]:
        return verify(self.config.output, input=self.config.input, storage_options=self.options).problems


def _fields(config: RunConfig) -> dict[str, Any]:
    return {name: getattr(config, name) for name in config.__dataclass_fields__}


@pytest.fixture
def job(tmp_path: Path, qwen3_folder: Path) -> ManyFiles:
    return ManyFiles(str(tmp_path), {}, qwen3_folder)


def test_adjacent_small_files_share_units_and_rows_are_as_with_units_of_their_own(
    tmp_path: Path, qwen3_folder: Path
) -> None:
    joined, alone = (ManyFiles(str(tmp_path / name), {}, qwen3_folder) for name in ("joined", "own"))
    joined.run()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SmallFiles, "join", lambda self, units, *_: units)
        alone.run()
    assert joined.out() == alone.out()
    assert joined.out_ids() == joined.ids(), "in input order, each once"
    assert (len(joined.records()), len(alone.records())) == (13, 32)
    assert max(record.num_rows for record in joined.records()) == 8
    assert joined.problems() == alone.problems() == ()
    assert joined.run().session.units == 0, "nothing is left to do"


@pytest.mark.parametrize("units", [1, 9])
def test_files_that_come_while_a_run_is_interrupted_change_no_unit(job: ManyFiles, units: int) -> None:
    job.stop_after(units)
    before = {record.unit_id: record for record in job.records()}
    job.put("f051.jsonl", 2)
    job.put("f052.jsonl", 2)
    job.put("z.jsonl", 1)
    job.run()
    after = {record.unit_id: record for record in job.records()}
    assert {unit_id: after[unit_id] for unit_id in before} == before
    assert sorted(job.out_ids()) == sorted(job.ids())
    assert job.problems() == ()
    job.put("z2.jsonl", 2)
    job.put("z3.jsonl", 2)
    job.run()
    assert job.out_ids()[-4:] == ["z2.jsonl:0", "z2.jsonl:1", "z3.jsonl:0", "z3.jsonl:1"]
    assert job.problems() == ()


def test_published_rows_stay_when_their_files_go_and_others_are_not_left_out(job: ManyFiles) -> None:
    job.stop_after(4)
    job.remove("f01.jsonl")
    with pytest.raises(SourceError, match=r"\['f01.jsonl'\] are gone, and share a unit .* with \['f00.jsonl'"):
        job.run()
    job.put("f01.jsonl", 2)
    job.run()
    assert job.out_ids() == job.ids()
    whole = job.out()
    job.remove("f01.jsonl", "f20.jsonl")
    job.put("z.jsonl", 1)
    job.run()
    assert job.out()[: len(whole)] == whole
    assert job.out_ids() == job.ids()


def test_a_changed_small_file_is_named(job: ManyFiles) -> None:
    job.stop_after(3)
    job.put("f02.jsonl", 3, prompt="Other.")
    with pytest.raises(FingerprintError, match=r"f02\.jsonl'"):
        job.run()


def test_a_lost_run_record_is_made_anew_from_the_ledger(job: ManyFiles) -> None:
    job.stop_after(5)
    job.put("f001.jsonl", 2)
    job.stop_after(3)
    before = {record.unit_id for record in job.records()}
    job.storage.delete(layout.RUN)
    job.run()
    assert before <= {record.unit_id for record in job.records()}
    assert sorted(job.out_ids()) == sorted(job.ids())
    assert job.problems() == ()


def test_a_lost_ledger_costs_the_work_and_no_row(job: ManyFiles) -> None:
    job.run()
    job.storage.delete(layout.LEDGER)
    job.put("f001.jsonl", 2)
    job.run()
    assert sorted(job.out_ids()) == sorted(job.ids())
    assert job.problems() == ()


def test_failed_rows_of_shared_units_are_retried_and_damaged_parts_repaired(job: ManyFiles) -> None:
    job.run(InlineExecutor(engine=lambda: FakeEngine()))
    failed = [row["row_id"] for row in job.out() if row["error"] is not None]
    assert "f07.jsonl:0" in failed
    job.run(InlineExecutor(engine=lambda: FakeEngine(bans=False)), retry_failed=True)
    assert [row["row_id"] for row in job.out() if row["error"] is not None] == ["f07.jsonl:0"]
    assert job.out_ids() == job.ids()
    assert job.problems() == ()
    whole = job.out()
    part = next(iter(sorted(Path(job.config.output).glob("data-*/*.parquet"))))
    part.write_bytes(part.read_bytes()[:-40])
    job.run(repair=True)
    assert job.out() == whole
    assert job.problems() == ()


def test_committed_rows_of_shared_units_are_read(job: ManyFiles) -> None:
    job.stop_after(3)
    ids = list(dict.fromkeys(row["row_id"] for row in job.out(committed=True)))
    assert ids == job.ids()[: len(ids)]
    assert len(ids) > 15


def test_an_id_that_occurs_twice_is_named_by_its_row(job: ManyFiles) -> None:
    with pytest.raises(SourceError, match=r"input rows \d+ and \d+ .* have the same id"):
        job.run(id_column="n")
    job.fs.pipe_file(f"{job.root}/in/f03.jsonl", b'{"prompt": "a", "n": 1}\n{"prompt": "b"}\n')
    with pytest.raises(SourceError, match=r"None in row 1 of .*f03\.jsonl is not an id"):
        job.run(id_column="n", mode="new")


def test_with_a_limit_every_file_has_units_of_its_own(job: ManyFiles) -> None:
    job.run(limit=9)
    assert job.out_ids() == job.ids()[:9]
    assert not any(record.more for record in job.records())


def test_the_plan_of_two_thousand_files_of_ten_rows_has_few_units_tasks_and_slow_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").mkdir()
    lines = "".join(json.dumps({"prompt": f"p{i}"}) + "\n" for i in range(10))
    for i in range(2000):
        (tmp_path / "in" / f"{i:04d}.jsonl").write_text(lines)
    source = open_source(str(tmp_path / "in"), open_storage(tmp_path / "out", layout.SCRATCH))
    known: dict[str, FileIdentity] = {}
    small = SmallFiles(known=known)
    units = list(small.join(plan_units(source, 64, "f"), source.files, 64, "f"))
    assert len(units) == 2000 // 6 + 1
    assert sum(unit.num_rows for unit in units) == 20_000
    assert [unit.index for unit in units] == list(range(len(units)))
    assert len(list(read_tasks(units))) == 11
    again = SmallFiles(known=small.shares)
    assert list(again.join(plan_units(source, 64, "f"), source.files, 64, "f")) == units
    monkeypatch.setattr(small_files, "_MOST_FILES", 3)
    fewer = SmallFiles(known={}).join(plan_units(source, 64, "f"), source.files, 64, "f")
    assert max(len(unit.slices) for unit in fewer) == 3
    assert begin.planned_units is small_files.planned_units
