"""Evaluations: a file of questions, through real runs of the shipped model, to verdicts, figures and tables."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pipeline import ConfigError
from pipeline.commands.evaluate import Evaluation, evaluate
from pipeline.commands.evaluate_config import EvaluationConfig, as_evaluation
from pipeline.commands.read import read
from pipeline.commands.verify import verify
from testing.pipeline.s3 import S3Server

NUMERIC = [
    {"prompt": "What is 47 + 25?", "answer": "72"},
    {"prompt": "What is 31 + 54?", "answer": "The sum is #### 85"},
    {"prompt": "What is 20 + 22?", "answer": "41"},  # wrong on purpose: the model knows better
    {"prompt": "What is 12 + 13?", "answer": "none"},  # no answer to compare with
    {"prompt": "", "answer": "3"},  # nothing can be generated for it
    {"prompt": None, "answer": "3"},  # it asks nothing
]
SETTINGS = {"autoregressive": {"strategy": "autoregressive"}, "verified": {"strategy": "verified", "window_size": 8}}


def config_of(folder: Path, **more: Any) -> EvaluationConfig:
    """Numbers as JSON Lines, in two settings."""
    folder.joinpath("data").mkdir(exist_ok=True)
    (folder / "data" / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in NUMERIC))
    raw = {
        "output": str(folder / "out"),
        "data": str(folder / "data"),
        "tasks": {"sums": {"task": "numeric", "input": "sums.jsonl", "sampling": {"max_tokens": 40}}},
        "settings": SETTINGS,
        "num_threads": 1,
    }
    return as_evaluation({**raw, **more})


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory, cluster: None) -> tuple[Path, EvaluationConfig, Evaluation]:
    folder = tmp_path_factory.mktemp("evaluation")
    config = config_of(folder)
    return folder, config, evaluate(config)


Done = tuple[Path, EvaluationConfig, Evaluation]


def test_every_question_has_one_verdict_and_they_add_up(done: Done) -> None:
    folder, _, found = done
    assert [(r.task, r.setting) for r in found.results] == [(t, s) for t in ("sums",) for s in SETTINGS]
    for result in found.results:
        counts = result.counts
        assert dict(counts.outcomes) == {"correct": 2, "wrong": 1, "unjudged": 2, "failed": 1}
        assert (counts.questions, counts.judged) == (6, 4)
        assert counts.accuracy(0.95).value == 0.5
    table = pq.read_table(folder / "out" / "samples").to_pandas()
    own = table[(table.task == "sums") & (table.setting == "verified")]
    assert list(own.outcome) == ["correct", "correct", "wrong", "unjudged", "failed", "unjudged"]
    assert list(own.answer)[:3] == ["72", "85", "42"]
    assert "prompt" in own.detail.iloc[4]
    assert "asks nothing" in own.detail.iloc[5]
    assert own.text.notna().sum() == 4


def test_settings_are_compared_question_by_question(done: Done) -> None:
    baseline, verified = done[2].results
    assert baseline.comparison is None
    comparison = verified.comparison
    assert comparison is not None
    difference = comparison.difference
    assert (difference.both, difference.first_only, difference.second_only, difference.neither) == (2, 0, 0, 2)
    assert comparison.equal_tokens == comparison.questions == 3, "verified decoding gives the very tokens"
    assert verified.counts.forwards < baseline.counts.forwards


def test_each_run_is_an_ordinary_output_that_verifies(done: Done) -> None:
    _, config, _ = done
    own = config.run_config("sums", "verified")
    assert verify(own.output).ok
    rows = read(own.output).to_arrow()
    assert rows.num_rows == len(NUMERIC)
    assert {"prompt", "answer", "text", "stats"} <= set(rows.column_names)


def test_the_report_has_every_figure(done: Done) -> None:
    folder, _, found = done
    text = (folder / "out" / "evaluation.md").read_text()
    assert text == found.markdown
    for words in ("| sums | 6 | 50.00 (15.0 to 85.0) | 50.00 (15.0 to 85.0) |", "3 of 3", "not count"):
        assert words in text
    raw = json.loads((folder / "out" / "evaluation.json").read_text())
    assert raw["results"][1]["accuracy"] == pytest.approx({"value": 0.5, "low": 0.15, "high": 0.85}, abs=1e-3)
    assert raw["facts"]["tasks"]["sums"]["shots"] == 0


def test_called_again_it_generates_nothing_and_gives_the_same(done: Done) -> None:
    folder, config, found = done
    before = {path: path.stat().st_mtime_ns for path in (folder / "out" / "sums").rglob("part-*")}
    again = evaluate(config)
    assert {path: path.stat().st_mtime_ns for path in (folder / "out" / "sums").rglob("part-*")} == before
    assert again.results == found.results
    assert again.markdown == found.markdown


def test_an_evaluation_with_other_settings_is_refused_where_its_runs_are(done: Done) -> None:
    _, config, _ = done
    tasks = {name: replace(one, sampling={"max_tokens": 41}) for name, one in config.tasks.items()}
    with pytest.raises(ValueError, match="max_tokens"):
        evaluate(replace(config, tasks=tasks))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tasks": {"humaneval": "a.jsonl"}}, "--execute-code"),
        ({"tasks": {}}, "tasks"),
        ({"tasks": {"gsm9k": "a.jsonl"}}, "Did you mean 'gsm8k'"),
        ({"tasks": {"gsm8k": {"file": "a.jsonl"}}}, "fields are"),
        ({"tasks": {"gsm8k": {"input": "a.jsonl", "shots": 9}}}, "has 3 examples"),
        ({"settings": {"a/b": {}}}, "as it names a folder"),
        ({"settings": {"fast": {"strategy": "fast"}}}, "strategy='fast'"),
        ({"settings": {"many": {"n": 4}}}, "sampling.n=4"),
        ({"baseline": "none"}, "baseline='none'"),
        ({"confidence": 1.5}, "confidence=1.5"),
        ({"input": "x"}, "an evaluation decides this itself"),
        ({"modle": "tiny"}, "modle"),
        ({"grid": {"window_size": 4}}, "grid.window_size=4"),
    ],
)
def test_mistakes_are_named_before_anything_runs(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    with pytest.raises((ConfigError, ValueError), match=words.replace("(", r"\(")):
        config_of(tmp_path, **change)
    assert not (tmp_path / "out").exists()


def test_a_grid_is_every_combination_under_a_name_that_tells_it(tmp_path: Path) -> None:
    grid = {"strategy": ["reference"], "window_size": [4, 8], "entropy_threshold": [0.2, None]}
    config = config_of(tmp_path, grid=grid)
    assert list(config.settings) == [*SETTINGS, "reference-w4-tau0.2", "reference-w4-tauNone", "reference-w8-tau0.2",
                                     "reference-w8-tauNone"]  # fmt: skip
    assert config.run_config("sums", "reference-w8-tauNone").sampling.entropy_threshold is None


class StoppedEarlyError(Exception):
    pass


@pytest.mark.slow  # four runs, of which each starts an actor: 20 s
def test_an_interrupted_evaluation_goes_on_and_gives_the_same(done: Done, tmp_path: Path) -> None:
    def stop(progress: Any) -> None:
        raise StoppedEarlyError

    config = config_of(tmp_path, unit_rows=2)
    with pytest.raises(StoppedEarlyError):
        evaluate(config, stop)
    assert not (tmp_path / "out" / "evaluation.md").exists()
    found = evaluate(config)
    for one, other in zip(found.results, done[2].results, strict=True):
        assert one.counts.outcomes == other.counts.outcomes
    columns = ["outcome", "answer", "text", "tokens_digest"]
    assert (
        pq.read_table(tmp_path / "out" / "samples").select(columns)
        == pq.read_table(done[0] / "out" / "samples").select(columns)
    )  # fmt: skip


@pytest.mark.slow  # two runs, of which each starts an actor: 15 s
def test_an_evaluation_on_an_object_store(done: Done, s3: S3Server, tmp_path: Path) -> None:
    config = config_of(tmp_path, output=s3.bucket("evaluation") + "/out", storage_options=s3.references(tmp_path))
    found = evaluate(config)
    assert [one.counts.outcomes for one in found.results] == [one.counts.outcomes for one in done[2].results]
    assert [one.comparison for one in found.results] == [one.comparison for one in done[2].results]
    assert evaluate(config).markdown == found.markdown
