"""Runs over conversations: equal to their turns one by one, whole or failed, each once."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pipeline
from pipeline import layout
from pipeline.commands.preview import preview
from pipeline.commands.run import run_on
from pipeline.commands.verify import verify
from pipeline.config import RunConfig
from pipeline.storage.open import open_storage
from testing.pipeline.exactly_once import SmallJob
from testing.pipeline.fakes import RealExecutor
from testing.pipeline.faults import CrashAt, FaultyStorage, Killed, Recorder, crash_points
from testing.pipeline.leases import expire_leases
from wedlm_core import LLM, SamplingParams
from wedlm_core.seeds import row_seed, turn_seed

LONG = 170
"""Of the model's length: answers decide whether a third turn fits."""
TURNS: list[Any] = [
    ["Count from 3 to 7.", "Sort 38 93 32 40.", "Count from 5 to 9."],
    ["Count from 1 to 4."],
    None,
    ["Count from 2 to 5.", "Count from 3 to 6.", "Sort" + " 38 93 32 40" * 7],
    ["Count from 2 to 5.", "Count from 3 to 6.", "Sort" + " 38 93 32 40" * 12],
    ["Sort" + " 38 93 32 40" * 40, "Count from 3 to 6."],
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    folder = tmp_path_factory.mktemp("made")
    rows = [{"id": f"r{i}", "turns": turns} for i, turns in enumerate(TURNS)]
    pq.write_table(pa.Table.from_pylist(rows), folder / "in.parquet")
    config = RunConfig.from_mapping({
        "input": str(folder / "in.parquet"), "output": str(folder / "out"), "model": "tiny", "unit_rows": 2,
        "report": False, "id_column": "id", "turns_column": "turns", "system_prompt": "Be exact.",
        "engine": {"max_model_len": LONG, "page_size": 16},
        "sampling": {"max_tokens": 16, "temperature": 1.5, "n": 2},
    })  # fmt: skip
    run(config)
    return config


def run(config: RunConfig) -> None:
    run_on(RealExecutor(), config, open_storage(config.output, layout.SCRATCH, {}), lambda progress: None)


def by_hand(llm: LLM, row_id: str, sample: int, turns: list[str]) -> tuple[list[str], list[list[int]]]:
    """The answers of a conversation, and their tokens, one turn after the other."""
    params = SamplingParams(max_tokens=16, temperature=1.5, strategy="autoregressive")  # equal to `verified`
    first = [{"role": "system", "content": "Be exact."}, {"role": "user", "content": turns[0]}]
    ids = llm.tokenizer.apply_chat_template(first)
    seed = row_seed(0, row_id, sample)
    texts, tokens = [], []
    for turn in range(len(turns)):
        if turn:
            written = tokens[-1][:-1] if tokens[-1][-1] in llm.tokenizer.eos_token_ids else tokens[-1]
            between = f"<|im_end|>\n<|im_start|>user\n{turns[turn]}<|im_end|>\n<|im_start|>assistant\n"
            ids = [*ids, *written, *llm.tokenizer.encode(between)]
        (done,) = llm.generate([ids], replace(params, seed=turn_seed(seed, turn)), use_tqdm=False)
        texts.append(done.text)
        tokens.append(list(done.token_ids))
    return texts, tokens


def test_a_conversation_is_its_turns_one_by_one(made: RunConfig) -> None:
    llm = LLM("tiny")
    found = pipeline.read(made.output).to_arrow().to_pylist()
    assert [(row["row_id"], row["sample_index"]) for row in found] == [
        ("r0", 0), ("r0", 1), ("r1", 0), ("r1", 1), ("r2", 0), ("r3", 0), ("r4", 0), ("r5", 0)
    ]  # fmt: skip
    for row in found[:4]:
        texts, tokens = by_hand(llm, row["row_id"], row["sample_index"], row["turns"])
        said = [own["content"] for own in row["messages"] if own["role"] == "assistant"]
        assert (said, row["text"], row["token_ids"]) == (texts, texts[-1], tokens[-1])
        assert [own["role"] for own in row["messages"]] == ["system", *("user", "assistant") * len(texts)]
        assert row["completion_tokens"] == sum(map(len, tokens))
        assert sum(k * count for k, count in enumerate(row["stats"]["commit_histogram"])) == row["completion_tokens"]
    assert found[0]["messages"] != found[1]["messages"], "each sample is a conversation of its own"


def test_later_turns_find_their_prefix_in_the_cache(made: RunConfig) -> None:
    for row in pipeline.read(made.output).to_arrow().to_pylist()[:2]:
        assert row["stats"]["cached_prompt_tokens"] >= row["prompt_tokens"] // 3


def test_a_turn_that_fails_is_the_failure_of_the_row_with_its_number(made: RunConfig) -> None:
    dead = pipeline.read(made.output, table="dead_letters").to_arrow().to_pylist()
    assert [row["row_id"] for row in dead] == ["r2", "r3", "r4", "r5"]
    missing, late, early, first = (row["error"] for row in dead)
    assert "never null" in missing
    assert late.startswith("turn 3 of 3: ")  # refused by the engine, with the answers that were there
    assert "at least" not in late
    assert early.startswith("turn 3 of 3: prompt + max_tokens='at least ")  # before anything was generated
    assert first.endswith("Shorten the first turn, or lower max_tokens.")
    rows = pipeline.read(made.output).to_arrow().to_pylist()
    assert all(row["messages"] is None and row["text"] is None for row in rows if row["error"] is not None)


def test_rows_are_generated_again_alone_and_in_another_batch(made: RunConfig) -> None:
    found = verify(made.output, input=made.input, regenerate=9)
    assert found.ok, found.problems
    assert "5 rows drawn" in str(found.notes) or "2 rows drawn" in str(found.notes)


def test_the_message_columns_of_another_prefix_and_format(tmp_path: Path, made: RunConfig) -> None:
    config = replace(made, output=str(tmp_path / "out"), column_prefix="gen_", output_format="jsonl", limit=2)
    rows = pipeline.read(made.output).to_arrow()
    run(config)
    again = pipeline.read(config.output).to_arrow()
    assert again["gen_messages"].to_pylist() == rows["messages"].to_pylist()[:4]
    assert verify(config.output).ok
    table = preview(config, rows=1)
    assert table["gen_messages"].to_pylist() == rows["messages"].to_pylist()[:2]


class Conversations(SmallJob):
    """A small job whose rows are conversations."""

    def __init__(self, folder: Path, model: Path, like: Conversations | None = None) -> None:
        bad = {2: None, 5: ["a", ""]}
        rows = [{"topic": f"t{i}", "turns": bad.get(i, [f"Count to {i}.", "And on.", "Stop."])} for i in range(9)]
        super().__init__(folder, model, like=like, rows=rows)
        self.config = replace(self.config, turns_column="turns")

    def data(self) -> list[dict[str, Any]]:
        table = pipeline.read(self.config.output).to_arrow()
        return table.drop_columns(["timings", "retry"]).to_pylist()


def test_a_crash_at_any_point_loses_and_doubles_no_conversation(tmp_path: Path, qwen3_folder: Path) -> None:
    whole, recorder = Conversations(tmp_path / "whole", qwen3_folder), Recorder()
    whole.run(storage=FaultyStorage(whole.storage, recorder))
    expected = whole.data()
    assert [row["error"] is None for row in expected].count(True) == 2 * 7
    for number in crash_points(recorder.moments, every=False)[::3]:
        case = Conversations(tmp_path / str(number), qwen3_folder)
        with pytest.raises(Killed):
            case.run(storage=FaultyStorage(case.storage, CrashAt(number)))
        expire_leases(case.storage)
        case.run()
        assert case.data() == expected
        assert case.problems() == ()


def test_histories_have_no_reasoning(tmp_path: Path) -> None:
    form = json.dumps({"choice": ["<think>\nhm\n</think>\n\nyes"]})
    settings = {
        "model": "tiny", "report": False, "turns_column": "turns", "sampling": {"max_tokens": 64},
        "sampling_columns": {"structured_outputs": "form"},
    }  # fmt: skip
    rows = [{"turns": ["a", "b"], "form": form}]
    run(RunConfig.from_mapping({"input": rows, "output": str(tmp_path / "a"), "reasoning_parser": "think", **settings}))
    run(RunConfig.from_mapping({"input": rows, "output": str(tmp_path / "b"), **settings}))
    apart, whole = (pipeline.read(str(tmp_path / name)).to_arrow().to_pylist()[0] for name in "ab")
    assert [own["content"] for own in apart["messages"]] == ["a", "yes", "b", "yes"]
    assert (apart["text"], apart["reasoning"]) == ("yes", "hm")
    assert [own["content"] for own in whole["messages"]][1::2] == ["<think>\nhm\n</think>\n\nyes"] * 2
    assert apart["prompt_tokens"] < whole["prompt_tokens"]
