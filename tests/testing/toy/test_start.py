"""The files that the shipped model's training begins with, and that its recipe trains on them."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from jobs import train
from jobs.demo import PROMPTS as DEMO_PROMPTS
from testing import toy
from testing.toy.start import WEIGHTS, chat_prompt, write_start
from wedlm_core.tokenizer import Tokenizer

RECIPE = Path(toy.__file__).with_name("tiny.yaml")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("toy")
    write_start(made, problems=60)
    return made


def test_every_family_is_trained_on() -> None:
    assert set(WEIGHTS) == set(toy.FAMILIES)


def test_the_prompts_of_the_demo_are_held_out_problems() -> None:
    shipped = pq.read_table(DEMO_PROMPTS).to_pylist()
    problems = {one.prompt: one.answer for name in toy.FAMILIES for one in toy.distinct(name, "test", 12, seed=1)}
    assert {row["prompt"] for row in shipped} == set(problems)
    assert all(row["expected"] in (None, problems[row["prompt"]]) for row in shipped)


def test_prompts_have_the_tokens_of_the_chat_template_or_of_plain_text(folder: Path) -> None:
    tokenizer = Tokenizer.load(folder / "start")
    messages = [{"role": "user", "content": "Count from 3 to 9."}]
    assert tokenizer.encode_prompt(chat_prompt("Count from 3 to 9.")) == tokenizer.apply_chat_template(messages)
    assert tokenizer.encode_prompt("river") == [*tokenizer.encode("river"), *tokenizer.encode("\n")]
    for text in ("a river", "naïve 東京 😀\t", "12345", ""):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer.encode("12345")) == 5
    assert tokenizer.encode("a river")[-1:] == tokenizer.encode("river")


def test_rows_are_of_their_split_and_half_of_them_in_the_chat_template(folder: Path) -> None:
    for name, split in (("problems", "train"), ("held-out", "validation")):
        prompts = [json.loads(line)["prompt"] for line in (folder / f"{name}.jsonl").read_text().splitlines()]
        plain = [one.removeprefix("<|im_start|>user\n").partition("<|im_end|>")[0] for one in prompts]
        assert {toy.split_of(one) for one in plain} == {split}
        assert sum(one.startswith("<|im_start|>") for one in prompts) == len(prompts) // 2


def test_the_recipe_trains_on_them(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = (f"model.start={folder / 'start'}", f"data.files=[{folder / 'problems.jsonl'}]",
                f"data.held_out_files=[{folder / 'held-out.jsonl'}]", "run.steps=2",
                "run.evaluation_rows=0")  # fmt: skip
    named = [word for one in settings for word in ("--set", one)]
    assert train.main(["--recipe", str(RECIPE), "--output", str(folder / "out"), "--device", "cpu", *named]) == 0
    said = capsys.readouterr().out
    assert "60 examples to train on, 200 held out, 0 left out" in said
    assert "1115840 parameters" in said
