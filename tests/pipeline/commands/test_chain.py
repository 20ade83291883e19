"""Chains without Ray: the rows that a stage reads, when, and their end when rows of the stage before change."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline import layout
from pipeline.codec import Request, RequestError
from pipeline.commands.chain_config import ChainConfig
from pipeline.commands.filter import filter
from pipeline.commands.read import read
from pipeline.commands.report import gather, report
from pipeline.commands.status import status
from pipeline.commands.verify import verify
from pipeline.config import RunConfig
from pipeline.errors import ConfigError, FingerprintError, OutputError, SourceError
from pipeline.storage.open import open_storage
from testing.pipeline.chains import NAMES, ROWS, ChainExecutor, SmallChain
from testing.pipeline.fakes import FakeEngine

MakeChain = Callable[..., SmallChain]


@pytest.fixture
def make_chain(tmp_path: Path, qwen3_folder: Path) -> MakeChain:
    numbers = iter(range(100))
    return lambda **judge: SmallChain(tmp_path / str(next(numbers)), qwen3_folder, **judge)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, qwen3_folder: Path) -> dict[str, list[dict[str, Any]]]:
    chain = SmallChain(tmp_path_factory.mktemp("undisturbed"), qwen3_folder)
    chain.run()
    return chain.every()


def test_each_stage_is_an_ordinary_output_of_the_rows_that_succeeded_before(make_chain: MakeChain) -> None:
    chain = make_chain()
    summary = chain.run()
    written, judged = (read(f"{chain.output}/{name}", format="arrow").to_pylist() for name in NAMES)
    good = [row for row in written if row["finish_reason"] != "error"]
    assert [row["judge_row_id"] for row in judged] == [f"{row['row_id']}#{row['sample_index']}" for row in good]
    for row, before in zip(judged, good, strict=True):
        assert {name: row[name] for name in ("prompt", "topic", "row_id", "sample_index", "text")} == {
            name: before[name] for name in ("prompt", "topic", "row_id", "sample_index", "text")
        }
        assert row["judge_letter"] == next((c for c in row["judge_text"] if c.isupper()), None)
    totals = {name: own.total for name, own in summary.stages.items()}
    assert (totals["write"].rows, totals["write"].failed_rows, totals["write"].samples) == (len(ROWS), 2, 40)
    assert (totals["judge"].rows, totals["judge"].failed_rows, totals["judge"].samples) == (40, 0, 40)
    assert chain.problems() == []
    assert [status(f"{chain.output}/{name}")["rows_planned"] for name in NAMES] == [len(ROWS), 40]
    again = chain.run(ChainExecutor())
    assert all(own.session.units == 0 for own in again.stages.values())


def test_each_stage_has_a_report_unless_it_wants_none(make_chain: MakeChain) -> None:
    chain = make_chain()
    chain.run()
    for name, rows in zip(NAMES, (len(ROWS), 40), strict=True):
        facts = gather(open_storage(f"{chain.output}/{name}", layout.SCRATCH))
        assert (facts.totals.rows, facts.planned_rows, facts.complete) == (rows, rows, True)
        page = Path(chain.output, name, layout.REPORT_PAGE)
        assert facts.state in page.read_text(encoding="utf-8")
        page.write_text("as it was")
    chain.run()
    assert all(Path(chain.output, name, layout.REPORT_PAGE).read_text() == "as it was" for name in NAMES)
    silent = make_chain(report=False)
    silent.run()
    assert [Path(silent.output, name, layout.REPORT_PAGE).exists() for name in NAMES] == [True, False]


def test_the_folder_of_a_chain_is_no_output_and_the_error_names_those_in_it(make_chain: MakeChain) -> None:
    chain = make_chain()
    chain.run()
    for command in (status, verify, report):
        with pytest.raises(OutputError, match=r"folders: judge, write\. Name one"):
            command(chain.output)


def test_a_stage_begins_while_the_one_before_goes_on_and_gives_the_same_rows_as_after_it(
    make_chain: MakeChain, undisturbed: dict[str, list[dict[str, Any]]]
) -> None:
    eager, lazy = ChainExecutor(), ChainExecutor(lazy=True)
    for executor in (eager, lazy):
        chain = make_chain()
        chain.run(executor)
        assert chain.every() == undisturbed
    assert sorted(eager.done) == lazy.done == [0] * 6 + [1] * 6
    assert eager.done.index(1) < 5, "before the first stage had committed its last unit"


class Refuses(FakeEngine):
    """Refuses some requests of one stage, known by its ``max_tokens``."""

    def __init__(self, stage: int) -> None:
        super().__init__()
        self._max_tokens = (6, 4)[stage]

    def add(self, request: Request) -> None:
        if request.params.max_tokens == self._max_tokens and sum(request.prompt_token_ids) % 3 == 0:
            raise RequestError("not this one")
        super().add(request)


@pytest.mark.parametrize("stage", [0, 1])
def test_rows_that_succeed_at_a_retry_take_their_place_in_every_stage(
    make_chain: MakeChain, undisturbed: dict[str, list[dict[str, Any]]], stage: int
) -> None:
    chain = make_chain()
    summary = chain.run(ChainExecutor(engine=lambda: Refuses(stage)))
    first, second = (own.total for own in summary.stages.values())
    refused = (first, second)[stage].failures["RequestError"]
    assert refused > (2, 0)[stage]
    assert second.rows == 2 * (first.rows - first.failed_rows), "failed rows do not reach the next stage"
    letters = read(f"{chain.output}/{NAMES[stage]}", table="dead_letters", format="arrow")
    assert letters.num_rows == refused, "they stay in the dead letters of theirs"
    assert chain.problems() == []
    executor = ChainExecutor()
    chain.run(executor, retry_failed=True)
    assert chain.every() == undisturbed
    assert chain.problems() == []
    if stage == 1:
        assert executor.done.count(0) == 2, "of the stage before, those with empty prompts, which fail as before"


def test_rows_that_are_corrected_by_id_go_on_through_the_stages(make_chain: MakeChain) -> None:
    chain = make_chain()
    chain.run()
    letters = read(f"{chain.output}/write", table="dead_letters", format="arrow").to_pylist()
    fixed = [{**letter, "prompt": "Count on."} for letter in letters]
    summary = chain.run(retry_failed=True, input=fixed[:1])
    first, second = (own.total for own in summary.stages.values())
    assert (first.failed_rows, first.retried) == (len(letters) - 1, {"1": 1})
    assert second.rows == 2 * (first.rows - first.failed_rows)
    assert chain.problems() == []
    assert all(own.session.rows == 0 for own in chain.run().stages.values())


def test_results_that_were_made_of_rows_that_are_others_now_are_done_again(make_chain: MakeChain) -> None:
    class Draws(FakeEngine):
        """Gives other tokens each time, as a strategy may that depends on load."""

        def add(self, request: Request) -> None:
            super().add(replace(request, seed=next(numbers)))

    numbers = itertools.count(1)
    chain = make_chain()
    chain.run(ChainExecutor(engine=Draws))
    before = chain.every()
    part = sorted(Path(f"{chain.output}/write").glob("data-*/part-*"))[-1]
    part.write_bytes(part.read_bytes()[:-20])
    executor = ChainExecutor(engine=Draws)
    chain.run(executor, repair=True)
    assert executor.done.count(0) == executor.done.count(1) > 0
    after = chain.every()
    assert after["write"] != before["write"]
    written = {(row["row_id"], row["sample_index"]): row["text"] for row in after["write"]}
    assert all(row["text"] == written[row["row_id"], row["sample_index"]] for row in after["judge"])
    assert chain.problems() == []


def test_a_setting_of_a_later_stage_is_refused_by_name_and_redone_alone(make_chain: MakeChain) -> None:
    chain = make_chain()
    chain.run()
    chain.judge["prompt_template"] = "Is {{ text }} good?"
    with pytest.raises(FingerprintError, match=r"stage 'judge'(.|\n)*prompt_template(.|\n)*--redo judge"):
        chain.run()
    executor = ChainExecutor()
    chain.run(executor, redo="judge")
    assert executor.done == [1] * 6, "the stage before is kept"
    fresh = make_chain(prompt_template="Is {{ text }} good?")
    fresh.run()
    assert chain.every() == fresh.every()
    assert chain.problems() == []


def test_a_stage_that_was_done_with_other_rows_before_it_is_refused(make_chain: MakeChain) -> None:
    chain = make_chain()
    chain.run()
    with pytest.raises(FingerprintError, match=r"stage 'write'(.|\n)*--redo write"):
        chain.run(seed=3)
    chain.run(seed=3, redo="write")
    other = make_chain()
    other.run(seed=3)
    assert chain.every() == other.every()


@pytest.mark.parametrize("name", NAMES)
def test_staged_units_that_are_damaged_are_done_again_with_the_same_bytes(
    make_chain: MakeChain, undisturbed: dict[str, list[dict[str, Any]]], name: str
) -> None:
    chain = make_chain()
    storage = chain.storages[NAMES.index(name)]

    class Damages(ChainExecutor):
        """Damages the first staged unit of a stage once it is there, before the next stage reads it."""

        def run_units(self, job: Any, work: Any) -> Any:
            for records in super().run_units(job, work):
                if not done and (staged := [k for k in storage.keys(layout.STAGED) if ".rows." in k]):
                    storage.put(staged[0], b"\0" * 100)
                    done.append(staged[0])
                yield records

    done: list[str] = []
    chain.run(Damages())
    assert done
    assert chain.every() == undisturbed
    assert chain.problems() == []


@pytest.mark.parametrize("name", NAMES)
def test_published_files_that_are_damaged_are_repaired_and_the_other_stage_stands(
    make_chain: MakeChain, undisturbed: dict[str, list[dict[str, Any]]], name: str
) -> None:
    chain = make_chain()
    chain.run()
    part = sorted(Path(f"{chain.output}/{name}").glob("data-*/part-*"))[0]
    part.write_bytes(part.read_bytes()[:-20])
    executor = ChainExecutor()
    chain.run(executor, repair=True)
    assert set(executor.done) == {NAMES.index(name)}, "results of the same rows stand"
    assert chain.every() == undisturbed
    assert chain.problems() == []


def test_new_input_files_go_through_every_stage(make_chain: MakeChain, tmp_path: Path) -> None:
    chain = make_chain()
    chain.base["input"] = str(chain.source.parent / "*.parquet")
    chain.run()
    pq.write_table(pa.Table.from_pylist(ROWS[:5]), chain.source.parent / "b.parquet")
    executor = ChainExecutor()
    summary = chain.run(executor)
    assert sorted(executor.done) == [0, 0, 1, 1]
    assert summary.stages["judge"].total.rows == 40 + 8
    assert chain.problems() == []


def test_a_stage_reads_the_rows_for_which_its_condition_holds(
    make_chain: MakeChain, undisturbed: dict[str, list[dict[str, Any]]]
) -> None:
    chain = make_chain(where="topic <> 't1' and sample_index = 1")
    summary = chain.run()
    rows = [row for row in undisturbed["judge"] if row["topic"] != "t1" and row["sample_index"] == 1]
    assert chain.every() == {"write": undisturbed["write"], "judge": rows}
    assert summary.stages["judge"].total.rows == len(rows)
    assert chain.problems() == []
    chain.judge["where"] = "topic <> 't1'"
    with pytest.raises(FingerprintError, match=r"stage 'judge'(.|\n)*where: was"):
        chain.run()
    none = make_chain(where="topic = 'x'")
    assert none.run().stages["judge"].total.rows == 0
    assert none.data("judge") == []
    assert none.problems() == []
    for bad, words in (
        ("topick = 'x'", "topick.*topic"),
        ("sample_index + 1", "a condition"),
        ("count(*) > 1", "rows"),
    ):
        with pytest.raises(ConfigError, match=f"(?s)stage 'judge'.*{words}"):
            make_chain(where=bad).run()


def test_filters_at_the_end_keep_rows_of_the_whole_output_and_follow_it(make_chain: MakeChain) -> None:
    chain = make_chain()
    chain.base["input"] = str(chain.source.parent / "*.parquet")
    chain.filters = [
        {"name": "lettered", "filter": {"keep": "judge_letter < 'N'"}},
        {"name": "best", "filter": {"keep": "best 50%", "score": "judge_completion_tokens"}},
    ]
    summary = chain.run()
    judged = chain.data("judge")
    lettered = [row for row in judged if (row["judge_letter"] or "Z") < "N"]
    assert 0 < len(lettered) < len(judged)
    assert (summary.filters["lettered"].rows, summary.filters["lettered"].kept) == (len(judged), len(lettered))
    assert (summary.filters["best"].rows, summary.filters["best"].kept) == (len(lettered), -(-len(lettered) // 2))
    for name in ("lettered", "best"):
        assert verify(f"{chain.output}/{name}").ok
    again = chain.run()
    assert not any(own.added for own in again.filters.values())
    pq.write_table(pa.Table.from_pylist(ROWS[:5]), chain.source.parent / "b.parquet")
    more = chain.run()
    assert more.filters["lettered"].rows == len(chain.data("judge")) > len(judged), "made again from the present rows"
    chain.filters[0]["filter"] = {"keep": "judge_letter < 'C'"}
    with pytest.raises(FingerprintError, match=r"stage 'lettered'(.|\n)*keep(.|\n)*--redo lettered"):
        chain.run()
    executor = ChainExecutor()
    redone = chain.run(executor, redo="lettered")
    assert not executor.done, "generated rows stay"
    assert redone.filters["lettered"].kept < more.filters["lettered"].kept
    assert redone.filters["best"].rows == redone.filters["lettered"].kept


def test_a_mistake_in_any_stage_is_found_before_anything_is_generated_or_discarded(make_chain: MakeChain) -> None:
    chain = make_chain()
    chain.run()
    before = chain.every()
    filters: list[dict[str, Any]] = [
        {"name": "best", "filter": {"keep": "best 50%", "score": "judge_completion_tokens"}},
        {"name": "lettered", "filter": {"keep": "judge_leter < 'N' and best_selection.rank > 1"}},
    ]
    chain.filters = filters
    for redo in (None, "write", "judge"):
        executor = ChainExecutor()
        with pytest.raises(ConfigError, match=r"stage 'lettered'.*judge_leter.*judge_letter"):
            chain.run(executor, redo=redo)
        assert executor.done == []
        assert chain.every() == before
    chain.filters = []
    chain.judge["prompt_template"] = "Rate {{ txt }}"
    with pytest.raises(SourceError, match=r"stage 'judge'.*txt"):
        chain.run(redo="write")
    assert chain.every() == before
    fresh = make_chain()
    fresh.filters = filters
    fresh.base["input"] = ROWS
    with pytest.raises(ConfigError, match="stage 'lettered'"):
        fresh.run(executor, mode="new")
    assert executor.done == []


def test_the_best_per_row_are_those_of_the_chains_input_row(make_chain: MakeChain) -> None:
    chain = make_chain(sampling={"max_tokens": 4, "n": 2}, columns=["topic"])
    chain.filters = [
        {"name": "best", "filter": {"keep": "best 1 per row"}},
        {"name": "again", "filter": {"keep": "best 1 per row where topic <> 't1'"}},
    ]
    summary = chain.run()
    good = len(ROWS) - 2
    assert (summary.filters["best"].rows, summary.filters["best"].kept) == (4 * good, good)
    kept = read(f"{chain.output}/best", format="arrow").to_pylist()
    assert len({row["judge_row_id"].rpartition("#")[0] for row in kept}) == good
    assert {row["best_selection"]["candidates"] for row in kept} == {4}
    for row in kept:
        scores = row["best_selection"]["scores"]
        assert len(scores) == 4
        assert row["best_selection"]["score"] == scores[0] == max(scores)
    again = read(f"{chain.output}/again", format="arrow").to_pylist()
    assert [row["judge_row_id"] for row in again] == [r["judge_row_id"] for r in kept if r["topic"] != "t1"]
    alone = filter(f"{chain.output}/judge", to=f"{chain.output}-alone", keep="best 1 per row")
    assert alone.kept == good, "also where no chain filters it"
    assert filter(f"{chain.output}/write", to=f"{chain.output}-first", keep="best 1 per row").kept == good


def test_a_stage_with_a_model_of_its_own_runs_beside_the_others(
    make_chain: MakeChain, qwen25_folder: Path, undisturbed: dict[str, list[dict[str, Any]]]
) -> None:
    chain = make_chain(sampling={"max_tokens": 3, "n": 1})
    chain.judge["model"] = str(qwen25_folder)
    assert chain.config().groups == ((0,), (1,))
    assert make_chain().config().groups == ((0, 1),)
    summary = chain.run()
    assert [own.session.units for own in summary.stages.values()] == [6, 6]
    assert chain.every()["write"] == undisturbed["write"]
    judged = chain.every()["judge"]
    assert [row["judge_row_id"] for row in judged] == [row["judge_row_id"] for row in undisturbed["judge"]]
    assert chain.problems() == []
    assert all(own.session.units == 0 for own in chain.run().stages.values())


@pytest.mark.parametrize(
    ("stages", "named"),
    [
        ([{"name": "one"}], "stages"),
        ([{"name": "one"}, {"name": "one", "prompt_column": "text"}], "stages.name"),
        ([{"name": "one"}, {"name": "ONE", "prompt_column": "text"}], "stages.name='ONE'.*case"),
        ([{"name": "a b"}, {"name": "two", "prompt_column": "text"}], "name"),
        ([{"name": "one"}, {"name": "two"}], "prompt_template"),
        ([{"name": "one"}, {"name": "two", "prompt_column": "text", "retry_failed": True}], "retry_failed"),
        ([{"name": "one"}, {"name": "two", "prompt_column": "text", "id_column": "prompt"}], "id_column"),
        ([{"name": "one"}, {"name": "two", "prompt_column": "text", "sampling": {"max_token": 3}}], "max_tokens"),
        ([{"name": "one", "where": "true"}, {"name": "two", "prompt_column": "text"}], "where"),
        ([{"name": "one", "filter": {"keep": "true"}}, {"name": "two", "prompt_column": "text"}], "filter"),
        ([{"name": "one"}, {"name": "two", "filter": {"keeps": "true"}}], "two.*keep"),
        ([{"name": "one"}, {"name": "two", "filter": {"keep": "true"}, "seed": 1}], "filter stage"),
        ([{"name": "one"}, {"name": "b", "filter": {"keep": "true"}}, {"name": "c", "prompt_column": "text"}], "last"),
        ([{"name": "one"}, {"name": "two", "prompt_column": "text", "parse": {"x": {"pattern": "("}}}], "parse"),
    ],
)
def test_mistakes_in_stages_are_named(qwen3_folder: Path, stages: Any, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        ChainConfig.of(RunConfig(input="x", output="y", model=str(qwen3_folder)), stages)


@pytest.mark.parametrize(("units", "part_bytes"), [((0, 5), 1), ((2, 3), 9000), ((0, 1, 2, 3, 4), 9000)])
def test_units_of_which_no_row_goes_on_take_no_room_and_are_done(
    make_chain: MakeChain, units: tuple[int, ...], part_bytes: int
) -> None:
    chain = make_chain()
    rows = [{**row, "prompt": "" if i // 4 in units else f"Count {i}."} for i, row in enumerate(ROWS)]
    pq.write_table(pa.Table.from_pylist(rows), chain.source)
    summary = chain.run(target_part_bytes=part_bytes)
    good = sum(bool(row["prompt"]) for row in rows)
    assert summary.stages["judge"].total.rows == 2 * good == len(chain.data("judge"))
    assert summary.stages["judge"].total.units == 6
    assert chain.problems() == []
    again = chain.run(target_part_bytes=part_bytes)
    assert all(own.session.units == 0 for own in again.stages.values())
    before = chain.every()
    part = sorted(Path(f"{chain.output}/judge").glob("data-*/part-*"))[0]
    part.write_bytes(part.read_bytes()[:-20])
    chain.run(repair=True, target_part_bytes=part_bytes)
    assert chain.every() == before
    assert chain.problems() == []
