"""``filter`` publishes all or nothing, once, from proven files, and every row is kept or noted as dropped."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pipeline
from pipeline import layout
from pipeline.commands.filter import filter_on
from pipeline.commands.published_output import open_published
from pipeline.config import RunConfig
from pipeline.selection.select import Selection
from pipeline.selection.settings import FilterConfig
from pipeline.storage.local import LocalStorage
from testing.pipeline.exactly_once import SmallJob
from testing.pipeline.fakes import InlineExecutor
from testing.pipeline.faults import (
    CrashAt,
    FaultyStorage,
    Killed,
    Recorder,
    boundary,
    crash_points,
    last_of_each_boundary,
)
from testing.pipeline.leases import expire_leases
from testing.sweeps import AT_EVERY

KEEP = "best 50%"
OK, FAILED = 40, 2


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory, qwen3_folder: Path) -> SmallJob:
    """An output of 20 good rows of two samples each, and 2 failed ones, in several parts."""
    made = SmallJob(tmp_path_factory.mktemp("source"), qwen3_folder)
    made.run()
    return made


@pytest.fixture
def source(job: SmallJob, tmp_path: Path) -> Path:
    """A copy of it that may be damaged."""
    return Path(shutil.copytree(job.config.output, tmp_path / "source"))


def data(output: Path) -> list[dict[str, Any]]:
    return pipeline.read(output, format="arrow").to_pylist()


def files(output: Path) -> dict[str, bytes]:
    return {str(path.relative_to(output)): path.read_bytes() for path in sorted(output.glob("data-*/*"))}


def test_every_row_is_kept_or_noted_and_the_counts_are_told(source: Path, tmp_path: Path) -> None:
    done = pipeline.filter(source, to=tmp_path / "to", keep=KEEP, score="worst_logprob")
    assert (done.rows, done.kept, done.dropped) == (OK + FAILED, OK // 2, {"not among the best": OK // 2, "failed": 2})
    assert done.added
    kept, dropped = done.to_arrow(), done.rows_dropped.to_arrow()
    assert (kept.num_rows, dropped.num_rows) == (20, 22)
    scores = [choice["score"] for choice in kept["selection"].to_pylist()]
    assert min(scores) >= max(score for score in dropped["score"].to_pylist() if score is not None)
    before = pipeline.read(source, format="arrow")
    assert kept.schema.names == [*before.schema.names, "selection"]
    own = {(row["row_id"], row["sample_index"]): row for row in before.to_pylist()}
    for row in kept.to_pylist():
        assert {name: value for name, value in row.items() if name != "selection"} == own.pop(
            (row["row_id"], row["sample_index"])
        )
    assert list(own) == list(zip(dropped["row_id"].to_pylist(), dropped["sample_index"].to_pylist(), strict=True))
    text = done.describe()
    assert "42 of" in text
    assert "20 kept (47.6%), 22 dropped" in text
    assert "dropped, not among the best: 20" in text
    assert sum(pq.read_metadata(path).num_rows for path in (tmp_path / "to").glob("data-*/*.parquet")) == 20


def test_run_twice_it_adds_nothing_and_tells_the_same(source: Path, tmp_path: Path) -> None:
    first = pipeline.filter(source, to=tmp_path / "to", keep=KEEP)
    before = files(tmp_path / "to")
    again = pipeline.filter(source, to=tmp_path / "to", keep=KEEP)
    assert replace(again, added=True) == first
    assert not again.added
    assert files(tmp_path / "to") == before
    assert "nothing was left to do" in again.describe()


def test_other_settings_or_another_source_are_refused_by_name(source: Path, job: SmallJob, tmp_path: Path) -> None:
    pipeline.filter(source, to=tmp_path / "to", keep=KEEP)
    with pytest.raises(pipeline.FingerprintError, match=r"filter\.keep: was 'best 50%', is 'best 40%'"):
        pipeline.filter(source, to=tmp_path / "to", keep="best 40%")
    retried = SmallJob(tmp_path / "again", Path(job.config.model))
    retried.run()
    retried.retry()
    with pytest.raises(pipeline.FingerprintError, match=r"source.publications: was .*, is .*-r001"):
        pipeline.filter(retried.config.output, to=tmp_path / "to", keep=KEEP)
    moved = source.rename(tmp_path / "moved")
    assert not pipeline.filter(moved, to=tmp_path / "to", keep=KEEP).added, "the same files elsewhere are the same"
    done = pipeline.filter(moved, to=tmp_path / "to", keep="best 40%", mode="new")
    assert done.kept == 16
    assert pipeline.verify(tmp_path / "to", input=moved).ok


def crash_case(job: SmallJob, folder: Path, storage: Any = None) -> None:
    run = RunConfig(input=job.config.output, output=str(folder), target_part_bytes=3000)
    config = FilterConfig(keep=KEEP, dedup=True)
    filter_on(open_published(job.storage), storage or LocalStorage(folder, layout.SCRATCH), config, run)


@AT_EVERY
def test_a_filter_that_dies_anywhere_leaves_nothing_half_and_the_next_completes_it(
    job: SmallJob, tmp_path: Path, every: bool
) -> None:
    recorder = Recorder()
    crash_case(job, tmp_path / "whole", FaultyStorage(LocalStorage(tmp_path / "whole", layout.SCRATCH), recorder))
    expected = data(tmp_path / "whole")
    assert len(files(tmp_path / "whole")) > 1
    seen = set()
    for at in crash_points(recorder.moments) if every else last_of_each_boundary(recorder.moments):
        moment = recorder.moments[at]
        folder = tmp_path / str(at)
        storage = LocalStorage(folder, layout.SCRATCH)
        with pytest.raises(Killed):
            crash_case(job, folder, FaultyStorage(storage, CrashAt(at)))
        seen.add(boundary(moment))
        found = sum(pq.read_metadata(path).num_rows for path in folder.glob("data-*/*"))
        assert found in (0, len(expected)), f"{moment}: all or nothing"
        expire_leases(storage)
        crash_case(job, folder)
        assert data(folder) == expected, moment
        assert pipeline.verify(folder, input=job.config.output).ok, moment
        assert [key for kind in (layout.PUBLISH, layout.SCRATCH) for key in storage.keys(kind)] == [], moment
    assert {"part", "dead letters", "publication record", "manifest", "promote", "state"} <= seen


def test_where_it_came_from_is_told(source: Path, tmp_path: Path) -> None:
    pipeline.filter(source, to=tmp_path / "to", keep=KEEP, by="topic")
    told = pipeline.status(tmp_path / "to")
    assert (told["made_by"], told["source"]) == ("filter", str(source))
    assert told["source_publications"] == ["data-000000"]
    assert told["settings"]["filter.keep"] == KEEP
    assert told["settings"]["filter.by"] == ["topic"]
    assert (told["rows_read"], told["rows_published"], told["rows_dropped"]) == (42, 20, 22)
    assert told["dropped_by_reason"] == {"not among the best": 20, "failed": 2}


@pytest.mark.parametrize("format", ["parquet", "ipc", "jsonl"])
def test_verify_proves_it_against_its_source_and_finds_what_is_changed(
    job: SmallJob, tmp_path: Path, format: str
) -> None:
    made = SmallJob(tmp_path / "in", Path(job.config.model))
    made.run(output_format=format)
    before, after = made.config.output, tmp_path / "to"
    pipeline.filter(before, to=after, keep=KEEP)
    found = pipeline.verify(after, input=before)
    assert found.ok, found.problems
    assert (found.rows, found.output_rows, found.against_source) == (42, 20, True)
    assert any("unchanged and in order" in text for text in found.proved)
    alone = pipeline.verify(after)
    assert alone.ok
    assert any("give it as --input" in text for text in alone.not_proved)
    part = next(iter(sorted(after.glob("data-*/part*"))))
    part.write_bytes(part.read_bytes()[:-1] + b"x")
    assert "changed since it was published" in pipeline.verify(after).problems[0]
    part.unlink()
    assert "missing" in pipeline.verify(after).problems[0]


@pytest.mark.parametrize("what", ["changed", "swapped", "lost", "doubled"])
def test_verify_finds_what_a_wrong_filter_would_do(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    def wrong(self: Selection, tables: Any) -> Any:
        for piece in divide(self, tables):
            kept, rows = piece.kept, list(range(piece.kept.num_rows))
            if what == "changed":
                names = ["changed", *kept["text"].to_pylist()[1:]]
                kept = kept.set_column(kept.column_names.index("text"), "text", pa.array(names))
            elif rows:
                first = {"swapped": rows[::-1], "lost": rows[1:], "doubled": [0, *rows[:-1]]}
                kept = kept.take(pa.array(first[what], pa.int64()))
            yield replace(piece, kept=kept)

    divide = Selection.divide
    with monkeypatch.context() as broken:
        broken.setattr(Selection, "divide", wrong)
        pipeline.filter(source, to=tmp_path / "to", keep=KEEP)
    found = pipeline.verify(tmp_path / "to", input=source)
    assert "of the rows that are kept are not the source's" in " ".join(found.problems)
    assert pipeline.verify(tmp_path / "to").ok is (what != "lost"), "files and counts alone tell no more"


def test_a_damaged_source_is_refused_before_anything_is_published(source: Path, tmp_path: Path) -> None:
    part = sorted(source.glob("data-*/*"))[1]
    part.write_bytes(part.read_bytes()[:-9] + b"123456789")
    with pytest.raises(pipeline.DamagedError, match="part-000001"):
        pipeline.filter(source, to=tmp_path / "to", keep=KEEP)
    assert files(tmp_path / "to") == {}


@pytest.mark.parametrize("what", ["part", "run record", "manifest"])
def test_of_a_damaged_output_the_next_filter_says_so_or_corrects_it(source: Path, tmp_path: Path, what: str) -> None:
    to = tmp_path / "to"
    pipeline.filter(source, to=to, keep=KEEP)
    expected = data(to)
    kind = {"part": "data-000000", "run record": layout.RUN, "manifest": layout.MANIFEST}[what]
    (file,) = (to / kind).iterdir()
    file.write_bytes(file.read_bytes()[:-5])
    if what != "manifest":
        with pytest.raises(pipeline.DamagedError, match="mode='new'"):
            pipeline.filter(source, to=to, keep=KEEP)
    done = pipeline.filter(source, to=to, keep=KEEP, mode="resume" if what == "manifest" else "new")
    assert done.added is (what != "manifest")
    assert data(to) == expected
    assert pipeline.verify(to, input=source).ok


def test_outputs_are_not_mixed(source: Path, job: SmallJob, tmp_path: Path) -> None:
    pipeline.filter(source, to=tmp_path / "to", keep=KEEP)
    with pytest.raises(pipeline.OutputError, match="were made by `filter` of"):
        job.run(storage=LocalStorage(tmp_path / "to", layout.SCRATCH), output=str(tmp_path / "to"))
    with pytest.raises(pipeline.OutputError, match="a run generated the rows there"):
        pipeline.filter(tmp_path / "to", to=source, keep=KEEP, selection_column="s2")
    for inside in (source / "best", source.parent):
        with pytest.raises(pipeline.ConfigError, match="lies inside"):
            pipeline.filter(source, to=inside, keep=KEEP)
    (tmp_path / "strange").mkdir()
    pq.write_table(pa.table({"a": [1]}), tmp_path / "strange" / "a.parquet")
    with pytest.raises(pipeline.OutputError, match="files of another program"):
        pipeline.filter(source, to=tmp_path / "strange", keep=KEEP)
    with pytest.raises(pipeline.OutputError, match="no run was begun there"):
        pipeline.filter(tmp_path / "nowhere", to=tmp_path / "x", keep=KEEP)


def test_the_tables_of_each_kind_of_output(source: Path, tmp_path: Path) -> None:
    pipeline.filter(source, to=tmp_path / "to", keep=KEEP)
    assert pipeline.read(tmp_path / "to", table="dropped", format="arrow").num_rows == 22
    with pytest.raises(pipeline.OutputError, match="table='dropped'"):
        pipeline.read(tmp_path / "to", table="dead_letters")
    with pytest.raises(pipeline.OutputError, match="table='dead_letters'"):
        pipeline.read(source, table="dropped")
    with pytest.raises(pipeline.ConfigError, match="must be one of"):
        pipeline.read(source, table="droped")  # type: ignore[call-overload]


def test_a_filter_of_a_filter_and_one_that_keeps_nothing(source: Path, tmp_path: Path) -> None:
    pipeline.filter(source, to=tmp_path / "a", keep="best 1 per row")
    second = pipeline.filter(tmp_path / "a", to=tmp_path / "b", keep=KEEP, selection_column="half")
    assert (second.rows, second.kept) == (20, 10)
    row = next(iter(second))
    assert len(row["selection"]["scores"]) == row["selection"]["candidates"] == 2
    assert row["half"]["candidates"] == 20
    none = pipeline.filter(source, to=tmp_path / "none", keep="false")
    assert (none.kept, none.to_arrow().num_rows, none.dropped) == (0, 0, {"condition": 40, "failed": 2})
    assert pipeline.verify(tmp_path / "none", input=source).ok


def test_prefixed_columns_are_found(job: SmallJob, tmp_path: Path) -> None:
    made = SmallJob(tmp_path / "in", Path(job.config.model))
    made.run(column_prefix="gen_")
    done = pipeline.filter(
        made.config.output, to=tmp_path / "to", keep="best 1 per row where gen_text <> ''", dedup=0.9
    )
    assert done.dropped["failed"] == 2
    assert {"gen_row_id", "gen_reason"} <= set(done.rows_dropped.schema.names)
    assert pipeline.verify(tmp_path / "to", input=made.config.output).ok


def test_the_rows_do_not_depend_on_the_order_in_which_units_were_done(
    make_job: Callable[[], SmallJob], tmp_path: Path
) -> None:
    one, other = make_job(), make_job()
    one.run()
    other.run(InlineExecutor(order=lambda units: units[::-1]))
    kept = [pipeline.filter(job.config.output, to=tmp_path / f"to{i}", keep=KEEP) for i, job in enumerate((one, other))]
    names = ["row_id", "sample_index", "text", "selection"]
    assert kept[0].to_arrow().select(names) == kept[1].to_arrow().select(names)
