"""An evaluation is an ordinary run of the shipped model, with one score for each row."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pipeline import ConfigError, OutputError
from pipeline.commands import run
from pipeline.commands.evaluate import RESULT, SCORES, Evaluation, evaluate
from pipeline.commands.read import read
from pipeline.commands.verify import verify
from testing.pipeline.fakes import RealExecutor

ROWS = [
    {"prompt": "What is 47 + 25?", "answer": "72"},
    {"prompt": "What is 31 + 54?", "answer": "The sum is #### 85"},
    {"prompt": "What is 20 + 22?", "answer": "41"},  # wrong on purpose: the model knows better
    {"prompt": "What is 12 + 13?", "answer": "none"},  # no number to compare with
    {"prompt": "What is 12 + 14?", "answer": None},
    {"prompt": "", "answer": "3"},  # nothing can be generated for it
]
OUTCOMES = ["correct", "correct", "wrong", "unjudged", "unjudged", "failed"]


def config_of(folder: Path, rows: list[dict[str, Any]] = ROWS, **more: Any) -> dict[str, Any]:
    path = folder / "sums.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    raw = {"input": str(path), "output": str(folder / "out"), "model": "tiny", "num_threads": 1}
    return raw | {"sampling": {"max_tokens": 40}} | more


def scored(config: dict[str, Any], **more: Any) -> Evaluation:
    return evaluate(config, answer_column="answer", scorer="numeric", **more)


Done = tuple[dict[str, Any], Evaluation]


@pytest.fixture(scope="module", autouse=True)
def _inline() -> Iterator[None]:
    """Units run in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "RayExecutor", lambda config, stop: RealExecutor())
        yield


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory, _inline: None) -> Done:
    config = config_of(tmp_path_factory.mktemp("evaluation"))
    return config, scored(config)


def test_every_row_has_one_score_and_the_counts_add_up(done: Done) -> None:
    config, found = done
    scores = pq.read_table(Path(config["output"]) / SCORES).to_pylist()
    assert [score["outcome"] for score in scores] == OUTCOMES
    assert [score["answer"] for score in scores][:3] == ["72", "85", "42"]
    assert {name: OUTCOMES.count(name) for name in found.counts.outcomes} == found.counts.outcomes
    assert found.describe().splitlines() == [
        "accuracy (numeric): 50.00% (95% confidence: 15.00% to 85.00%) of 4 questions",
        "2 correct, 1 wrong, 0 no answer, 1 failed, 2 unjudged",
    ]
    written = json.loads((Path(config["output"]) / RESULT).read_text())
    assert written["accuracy"] == pytest.approx({"value": 0.5, "low": 0.15, "high": 0.85}, abs=1e-3)


def test_its_output_is_an_ordinary_one_that_verifies(done: Done) -> None:
    output = done[0]["output"]
    assert verify(output).ok
    assert len(read(output).to_arrow()) == len(ROWS)


def test_called_again_it_generates_nothing_and_scores_anew(done: Done) -> None:
    config, found = done
    before = {path: path.stat().st_mtime_ns for path in Path(config["output"]).rglob("part-*")}
    again = evaluate(config, answer_column="answer", scorer="exact")
    assert {path: path.stat().st_mtime_ns for path in Path(config["output"]).rglob("part-*")} == before
    assert again.counts.outcomes["unjudged"] == 1, "every text is a text to compare with"
    assert scored(config).counts == found.counts


def test_a_baseline_is_compared_question_by_question_and_its_rows_must_be_the_same(done: Done, tmp_path: Path) -> None:
    config, _ = done
    difference = scored(config, baseline=config["output"]).difference
    assert difference is not None
    assert (difference.both, difference.only_baseline, difference.only_this, difference.neither) == (2, 0, 0, 2)
    other = config_of(tmp_path, ROWS[::-1])
    with pytest.raises(OutputError, match="it has no scores"):
        scored(config, baseline=other["output"])
    with pytest.raises(OutputError, match="of other rows"):
        scored(other, baseline=config["output"])
    with pytest.raises(OutputError, match="another scorer"):
        evaluate(config, answer_column="answer", scorer="exact", baseline=other["output"])


@pytest.mark.parametrize(
    ("change", "asked", "words"),
    [
        ({"sampling": {"n": 4}}, {}, "sampling.n=4"),
        ({}, {"scorer": "close"}, "scorer='close': not one of exact, numeric, choice"),
        ({}, {"confidence": 1.5}, "confidence=1.5"),
        ({}, {"answer_column": "answr"}, "It has prompt, answer"),
        ({"model": ""}, {}, "model not given"),
        ({"modle": "tiny"}, {}, "modle"),
    ],
)
def test_mistakes_are_named_before_anything_runs(
    tmp_path: Path, change: dict[str, Any], asked: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        evaluate(config_of(tmp_path, **change), **{"answer_column": "answer", "scorer": "exact"} | asked)
    assert not list(tmp_path.rglob("part-*"))
