"""Runs that score: transformers' log-probabilities, the same bits in any batch, bad rows apart, and exactly once."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch

import pipeline
from pipeline import layout
from pipeline.cluster.batch_stage import GenerateBatches
from pipeline.codec import EngineConfig, SamplingParams
from pipeline.commands.chain import chain_on
from pipeline.commands.chain_config import ChainConfig
from pipeline.commands.read import read
from pipeline.commands.report import report
from pipeline.commands.run import run_on
from pipeline.commands.summary import RunSummary
from pipeline.config import RunConfig
from pipeline.errors import ConfigError, FingerprintError
from pipeline.prompts.model_files import resolved_model
from pipeline.settings.scoring import Score
from pipeline.storage.local import LocalStorage
from pipeline.storage.open import open_storage
from testing.engine.reference_scores import expected
from testing.pipeline.chains import ChainExecutor
from testing.pipeline.exactly_once import SmallJob
from testing.pipeline.fakes import InlineExecutor, RealExecutor
from testing.pipeline.faults import CrashAt, FaultyStorage, Killed, Recorder, boundary, crash_points
from testing.pipeline.leases import expire_leases

CHOICES = ["72", "7", "banana", " no\nend", "\U0001f34c\u00e9"]
PROMPTS = ["What is 47 + 25?", "Count from 3 to 9.", "Write a short story about a fox. " * 12]
SCORES = ("row_id", "text", "label", "logprob", "mean_logprob", "label_probabilities", "token_ids", "logprobs", "error")


def run(output: Path, rows: Any, executor: InlineExecutor | None = None, **fields: Any) -> pa.Table:
    config = RunConfig.from_mapping({"input": rows, "output": str(output), "model": "tiny", "report": False, **fields})
    run_on(executor or RealExecutor(), config, LocalStorage(config.output, layout.SCRATCH), lambda progress: None)
    return read(config.output, format="arrow")


def scores(table: pa.Table) -> list[dict[str, Any]]:
    return table.select([name for name in SCORES if name in table.column_names]).to_pylist()


@pytest.mark.parametrize(("chat", "with_end"), [(False, False), (True, True)])
def test_scores_are_those_of_transformers_on_the_same_weights(tmp_path: Path, chat: bool, with_end: bool) -> None:
    rows = [{"prompt": prompt} for prompt in PROMPTS]
    task = {"choices": CHOICES, "with_end": with_end}
    table = run(tmp_path / "out", rows, task=task, chat=chat)
    tokenizer = resolved_model(RunConfig(input="i", output="o", model="tiny")).tokenizer
    for row, prompt in zip(table.to_pylist(), PROMPTS, strict=True):
        messages = [{"role": "user", "content": prompt}]
        text = tokenizer.apply_chat_template(messages, tokenize=False) if chat else prompt
        context = tokenizer.encode(text) if chat else tokenizer.encode_prompt(text)
        sums = []
        for choice, found in zip(CHOICES, row["label_probabilities"], strict=True):
            tokens = [*tokenizer.encode(choice), *tokenizer.eos_token_ids[:1] * with_end]
            sums.append(float(expected([*context, *tokens], len(tokens))[0].sum()))
            assert (found["label"], found["tokens"]) == (choice, len(tokens))
            assert found["logprob"] == pytest.approx(sums[-1], abs=2e-3)
        probabilities = torch.softmax(torch.tensor(sums, dtype=torch.float64), dim=0)
        assert [own["probability"] for own in row["label_probabilities"]] == pytest.approx(probabilities, rel=4e-3)
        best = int(probabilities.argmax())
        assert row["label"] == row["text"] == CHOICES[best]
        assert row["logprob"] == row["label_probabilities"][best]["logprob"]
        assert row["mean_logprob"] == row["logprob"] / row["completion_tokens"]
        assert row["prompt_tokens"] == len(context)
        assert row["evidence"]["mean_logprob"] == pytest.approx(row["mean_logprob"])


def test_a_row_has_the_same_bits_alone_and_in_any_batch(tmp_path: Path) -> None:
    """Other units, pages, slots and neighbours; and ``verify``, which scores the rows once more."""
    rows = [{"prompt": f"{PROMPTS[i % 3]} {i}", "own": CHOICES[: 1 + i % 5]} for i in range(9)]
    fields = {"task": {"choices_column": "own"}, "sampling": {"logprobs": True}}
    whole = run(tmp_path / "whole", rows, **fields)
    small = {"page_size": 4, "max_num_seqs": 3, "max_batch_rows": 40, "max_window": 8}
    cut = run(tmp_path / "cut", rows, **fields, unit_rows=2, engine=small)
    assert scores(cut) == scores(whole)
    alone = [scores(run(tmp_path / f"alone{i}", rows[i : i + 1], **fields))[0] for i in (0, 4, 8)]
    assert [own | {"row_id": ""} for own in alone] == [scores(whole)[i] | {"row_id": ""} for i in (0, 4, 8)]
    found = pipeline.verify(tmp_path / "whole", input=rows, regenerate=9)
    assert found.ok, found.problems
    assert any("9 rows drawn at random; in one batch, in another order: 9 of 9 equal" in line for line in found.notes)


def test_a_given_continuation_is_scored_and_nothing_else(tmp_path: Path) -> None:
    rows = [{"prompt": PROMPTS[0], "answer": answer} for answer in (" 72", " 71", None, "", 7)]
    table = run(tmp_path / "out", rows, task=Score(continuation_column="answer"))
    assert not {"label", "label_probabilities"} & set(table.column_names)
    good, bad = table.to_pylist()[:2], table.to_pylist()[2:]
    (score,) = run(tmp_path / "one", rows[:1], task={"choices": [" 72"]})["logprob"].to_pylist()
    assert [row["text"] for row in good] == [" 72", " 71"]
    assert good[0]["logprob"] == score != good[1]["logprob"]
    assert [row["finish_reason"] for row in bad[:2]] == ["error", "error"]
    assert all("a text to score is text, not null and not empty" in row["error"] for row in bad[:2])
    assert bad[2]["text"] == "7", "a number in a column of texts is text"


HOSTILE: list[Any] = [None, [], [""], ["a", "a"], ["a", None], ["x" * 9000], ["fine", "also\u2028fine"]]
WORDS = [
    "own=None",
    "own=[]",
    "own[0]=''",
    "each choice occurs once",
    "own[1]=None",
    "the model's length",
    "",
    "a prompt is",
]


def test_a_bad_row_fails_alone_and_says_why(tmp_path: Path) -> None:
    rows = [{"prompt": PROMPTS[0], "own": own} for own in HOSTILE] + [{"prompt": None, "own": ["a"]}]
    table = run(tmp_path / "out", rows, task={"choices_column": "own"}, sampling={"logprobs": True})
    errors = table["error"].to_pylist()
    for error, words in zip(errors, WORDS, strict=True):
        assert words in (error or ""), error
    assert errors.count(None) == 1
    assert pipeline.read(tmp_path / "out", table="dead_letters", format="arrow").num_rows == 7
    again = pipeline.read(tmp_path / "out", format="arrow").to_pylist()[6]
    assert again["label"] in HOSTILE[6]


def test_a_row_that_is_just_short_enough_is_scored(tmp_path: Path) -> None:
    """The last token of a text needs no place, so a prompt may be one token longer than for generation."""
    ids = [5 + i % 90 for i in range(30)]
    engine, task = EngineConfig(max_model_len=32), {"choices": ["banana"]}
    tokens = run(tmp_path / "one", [{"prompt_token_ids": ids}], task=task)["label_probabilities"][0].as_py()[0][
        "tokens"
    ]
    rows = [{"prompt_token_ids": (ids * 2)[: 33 - tokens + more]} for more in (0, 1)]
    assert run(tmp_path / "out", rows, task=task, engine=engine)["error"].is_null().to_pylist() == [True, False]
    cut = run(tmp_path / "cut", rows, task=task, engine=engine, on_long_prompt="truncate_left").to_pylist()
    assert [row["prompt_tokens"] for row in cut] == [33 - tokens] * 2
    assert cut[0]["logprob"] != cut[1]["logprob"]


def test_a_choice_that_begins_another_is_told_apart_by_the_end(tmp_path: Path) -> None:
    rows, choices = [{"prompt": PROMPTS[1]}], ["3, 4, 5, 6, 7, 8, 9", "3, 4, 5, 6"]
    plain, ended = (
        run(tmp_path / str(end), rows, chat=True, task={"choices": choices, "with_end": end}).to_pylist()[0]
        for end in (False, True)
    )
    assert plain["label"] == choices[1], "the beginning is at least as probable as the whole"
    assert ended["label"] == choices[0]
    assert ended["label_probabilities"][0]["tokens"] == plain["label_probabilities"][0]["tokens"] + 1


def test_generated_choices_have_their_probabilities(tmp_path: Path) -> None:
    rows = [{"prompt": prompt, "own": own} for prompt, own in zip(PROMPTS, (None, {"regex": "[0-9]"}, {}), strict=True)]
    sampling = {"max_tokens": 8, "n": 2, "structured_outputs": {"choice": ["72", "banana"]}}
    table = run(tmp_path / "out", rows, sampling=sampling, label_probabilities=True)
    scored = run(tmp_path / "scored", rows, task={"choices": ["72", "banana"]})
    wanted = scored["label_probabilities"].to_pylist()
    assert table["label_probabilities"].to_pylist() == [own for own in wanted for _ in range(2)]
    assert set(table["text"].to_pylist()) <= {"72", "banana"}
    own = run(
        tmp_path / "own", rows, sampling=sampling, label_probabilities=True,
        sampling_columns={"structured_outputs": "own"},
    )["label_probabilities"].to_pylist()  # fmt: skip
    assert own == [wanted[0]] * 2 + [None] * 4
    plain = run(tmp_path / "plain", rows, sampling=sampling)
    assert plain["text"] == table["text"], "scores change no output"


ODD = ["\u00e9", 'a"b', "\u2028", "tab\t", "\\", 1.5, 10, True, None, [], {"a": [1, "x"]}]


def test_the_label_of_an_enum_is_the_text_that_the_grammar_gives(tmp_path: Path) -> None:
    rows = [{"prompt": "Any.", "own": json.dumps({"enum": [value]})} for value in ODD]
    table = run(
        tmp_path / "out", rows, label_probabilities=True, sampling={"max_tokens": 40},
        sampling_columns={"structured_outputs": "own"},
    )  # fmt: skip
    assert table["finish_reason"].to_pylist() == ["stop"] * len(ODD)
    assert [json.loads(text) for text in table["text"].to_pylist()] == ODD
    labels = [own[0]["label"] for own in table["label_probabilities"].to_pylist()]
    assert labels == table["text"].to_pylist()


def test_a_step_of_a_ray_pipeline_scores_with_the_same_bits(tmp_path: Path) -> None:
    rows = [{"prompt": PROMPTS[0], "own": CHOICES[:n]} for n in (1, 2, 2)]
    config = RunConfig(input=None, output=".", model="tiny", task=Score(choices_column="own"))
    step = GenerateBatches(config, 1)(pa.Table.from_pylist(rows))
    ids = step["row_id"].to_pylist()
    assert ids[0] != ids[1] == ids[2], "an id follows from the prompt and the texts"
    table = run(tmp_path / "out", rows, task={"choices_column": "own"})
    assert step["label_probabilities"].to_pylist() == table["label_probabilities"].to_pylist()


def test_a_failed_row_is_scored_once_it_is_corrected(tmp_path: Path) -> None:
    rows = [{"prompt": f"Is {i} even?", "own": ["yes", "no" if i else ""]} for i in range(3)]
    task = {"choices_column": "own"}
    before = run(tmp_path / "out", rows, InlineExecutor(), task=task)
    assert before["error"].is_null().to_pylist() == [False, True, True]
    corrected = [{"row_id": "rows:0", "prompt": "Is 0 even?", "own": ["yes", "no"]}]
    after = run(tmp_path / "out", corrected, InlineExecutor(), task=task, retry_failed=True)
    assert scores(after)[1:] == scores(before)[1:]
    assert [own["label"] for own in after["label_probabilities"][0].as_py()] == ["yes", "no"]


def test_a_label_and_a_settings_change_are_refused(tmp_path: Path) -> None:
    rows = [{"prompt": "a", "label": "x"}]
    with pytest.raises(ConfigError, match="column_prefix"):
        run(tmp_path / "label", rows, InlineExecutor(), task={"choices": ["a", "b"]})
    run(tmp_path / "out", rows, InlineExecutor(), task={"choices": ["a", "b"]}, column_prefix="own_")
    sampling = {"structured_outputs": {"choice": ["a", "b"]}}
    others: list[dict[str, Any]] = [
        {"task": {"choices": ["b", "a"]}},
        {"label_probabilities": True, "sampling": sampling},
    ]
    for other in others:
        with pytest.raises(FingerprintError, match="task"):
            run(tmp_path / "out", rows, InlineExecutor(), column_prefix="own_", **other)
    with pytest.raises(pipeline.SourceError, match="task='absent'"):
        run(tmp_path / "absent", rows, InlineExecutor(), task={"choices_column": "absent"})


class ScoredJob(SmallJob):
    """A small job that scores."""

    def __init__(self, folder: Path, model: Path, like: ScoredJob | None = None) -> None:
        super().__init__(folder, model, like=like)
        self.config = replace(self.config, task=Score(choices=["no", "yes"]), sampling=SamplingParams())

    def scored(self) -> list[dict[str, Any]]:
        return scores(read(self.config.output, format="arrow"))


def test_a_run_that_dies_anywhere_is_completed_by_the_next(tmp_path: Path, qwen3_folder: Path) -> None:
    first = ScoredJob(tmp_path / "first", qwen3_folder)
    recorder = Recorder()
    fresh = ScoredJob(tmp_path / "fresh", qwen3_folder, like=first)
    first.run(storage=FaultyStorage(first.storage, recorder))
    wanted = first.scored()
    assert first.problems() == ()
    assert [row["error"] is None for row in wanted].count(False) == 2
    for at in crash_points(recorder.moments, every=False):
        if boundary(recorder.moments[at]) not in ("stage", "ledger", "promote"):
            continue  # tests/pipeline/commit has them all
        job = ScoredJob(tmp_path / f"at{at}", qwen3_folder, like=fresh)
        with pytest.raises(Killed):
            job.run(storage=FaultyStorage(job.storage, CrashAt(at)))
        expire_leases(job.storage)
        summary: RunSummary = job.run()
        assert summary.total.rows == len(wanted)
        assert job.scored() == wanted
        assert job.problems() == ()


def test_the_best_of_several_samples_by_a_score_of_the_next_stage(tmp_path: Path) -> None:
    rows = [{"prompt": prompt} for prompt in PROMPTS[:2]]
    base = RunConfig.from_mapping({
        "input": rows, "output": str(tmp_path / "out"), "model": "tiny", "report": False,
        "sampling": {"max_tokens": 6, "n": 3, "temperature": 1.0},
    })  # fmt: skip
    config = ChainConfig.of(base, [
        {"name": "write"},
        {"name": "judge", "prompt_template": "Is {{ text }} right?", "task": {"choices": ["yes", "no"]}},
        {"name": "best", "filter": {"keep": "best 1 per row", "score": "judge_label_probabilities[1].probability"}},
    ])  # fmt: skip
    storages = [open_storage(f"{base.output}/{name}", layout.SCRATCH) for name in ("write", "judge")]
    chain_on([ChainExecutor() for _ in config.groups], config, storages)
    judged = read(f"{base.output}/judge", format="arrow").to_pylist()
    kept = read(f"{base.output}/best", format="arrow").to_pylist()
    assert (len(judged), len(kept)) == (6, 2)
    best = {row["row_id"]: max(own["judge_label_probabilities"][0]["probability"] for own in judged
                               if own["row_id"] == row["row_id"]) for row in kept}  # fmt: skip
    assert [row["judge_label_probabilities"][0]["probability"] for row in kept] == list(best.values())


def test_figures_of_scored_texts_are_named_scored_and_none_is_of_decoding(tmp_path: Path) -> None:
    rows = [{"prompt": prompt} for prompt in PROMPTS]
    run(tmp_path / "out", rows, task={"choices": CHOICES})
    page = Path(report(str(tmp_path / "out"), to=str(tmp_path / "report.html"))).read_text(encoding="utf-8")
    assert "Scored tokens" in page
    assert "Generated tokens" not in page
    assert "Tokens per forward" not in page
    config = RunConfig.from_mapping({"input": rows, "output": str(tmp_path / "o"), "model": "tiny",
                                     "task": {"choices": CHOICES}})  # fmt: skip
    shown = pipeline.estimate(config, 2).describe().casefold()
    assert "scored tokens" in shown
    assert "generate" not in shown
