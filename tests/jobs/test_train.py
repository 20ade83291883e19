"""The command ``train`` on rows of one's own: its files, a second call, several processes, mistakes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from jobs import train
from testing.engine.models import random_decoder, write_tokenizer
from testing.repository import ROOT
from wedlm_core.llm import LLM
from wedlm_core.model.weights import load_model, save_model
from wedlm_core.tokenizer import Tokenizer
from wedlm_core.training.examples import ExampleFile

SMALL = ("data.rows=2", "data.length=96", "run.steps=4", "run.epochs=null", "run.evaluation_rows=2", "run.threads=1",
         "optim.lr=0.002", "optim.warmup_steps=1", "data.held_out=0.2", "run.log_every=1")  # fmt: skip


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("start") / "model"
    write_tokenizer(folder)
    save_model(random_decoder(qwen3=True, seed=0), folder)
    return folder


def rows(folder: Path, count: int = 30) -> Path:
    """Rows with an answer, and two without."""
    listed = [{"prompt": f"Count {i % 12}.", "a": f"nine {i}"} for i in range(count)]
    listed[3]["a"] = listed[7]["a"] = None  # type: ignore[assignment]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in listed))
    return folder / "rows.jsonl"


def argv(place: Path, start: Path, output: Path, *settings: str) -> list[str]:
    named = ["--data", str(place), "--model", str(start), "--output", str(output), "--device", "cpu"]
    return [*named, *(word for own in ("data.answer_column=a", *SMALL, *settings) for word in ("--set", own))]


def test_a_model_is_trained_and_evaluated_and_a_second_call_goes_on(
    tmp_path: Path, start: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = rows(tmp_path)
    assert train.main(argv(place, start, tmp_path / "out")) == 0
    said = capsys.readouterr().out
    assert "2 left out (data/left-out.jsonl), such as rows.jsonl:3: " in said
    assert "step 4 of 4" in said
    assert "a gain of" in said
    found = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    assert found["examples"] == found["identical"] == 2
    assert found["tokens_per_forward"] >= 1
    place.unlink()  # the rows were read once
    assert train.main(argv(place, start, tmp_path / "out", "run.steps=6")) == 0
    assert "going on from step 4" in capsys.readouterr().out
    steps = (tmp_path / "out" / "curve.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in steps] == ["step", "1", "2", "3", "4", "5", "6"]
    assert Tokenizer.load(tmp_path / "out" / "model").to_json() == Tokenizer.load(start).to_json()
    assert len(LLM(str(tmp_path / "out" / "model"), device="cpu").generate(["nine"])[0].token_ids)


def test_rows_of_a_prompt_are_held_out_together_and_those_of_a_file_are_left_out_of_others(
    tmp_path: Path, start: Path
) -> None:
    own = tmp_path / "held.jsonl"
    own.write_text(json.dumps({"prompt": "Count 4.", "a": "nine"}) + "\n")

    def read(name: str, *settings: str) -> list[set[tuple[int, ...]]]:
        """The prompts to train on, and those that are held out."""
        settings = (f"model.start={start}", f"data.files=[{rows(tmp_path)}]", "data.answer_column=a", *SMALL, *settings)
        train.read_examples(train.read_recipe(train.RECIPE, list(settings)), tmp_path / name, print)
        found = [ExampleFile(tmp_path / name / "data", held_out=own) for own in (False, True)]
        return [{one[i].prompt for i in range(len(one))} for one in found]

    first, second = read("share")
    assert len(first | second) == len(first) + len(second) == 12
    assert second

    first, second = read("file", f"data.held_out_files=[{own}]")
    assert (len(first), len(second), first & second) == (11, 1, set())
    left = [json.loads(line) for line in (tmp_path / "file/data/left-out.jsonl").read_text().splitlines()]
    named = [one["row"] for one in left if one["reason"] == "its prompt is held out"]
    assert named == [f"rows.jsonl:{number}" for number in (4, 16, 28)]


def test_the_turns_of_a_conversation_are_on_one_side(tmp_path: Path, start: Path) -> None:
    def talk(number: int) -> list[dict[str, str]]:
        texts = [f"Count {number}.", "nine", f"plus {number}", "ten"]
        return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]

    place = tmp_path / "talks.jsonl"
    place.write_text("".join(json.dumps({"messages": talk(i)}) + "\n" for i in range(24)))
    settings = [f"model.start={start}", f"data.files=[{place}]", "data.length=256", "data.held_out=0.5"]
    train.read_examples(train.read_recipe(train.RECIPE, settings), tmp_path / "out", print)
    sides = [ExampleFile(tmp_path / "out/data", held_out=own) for own in (False, True)]
    assert len(sides[0]) + len(sides[1]) == 48
    for side in sides:
        prompts = [side[i].prompt for i in range(len(side))]
        assert len(prompts) > 4
        pairs = zip(prompts[::2], prompts[1::2], strict=True)
        assert all(second[: len(first) - 3] == first[:-3] for first, second in pairs)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--set", "data.answer_column=b"], "data.answer_column='b': .* has no such column. It has"),
        (["--set", "data.length=4"], "no row can be trained on; the first: rows.jsonl:0: .* at most 3 tokens"),
        (["--set", "data.length=4096"], "data.length=4096: at most 512"),
        (["--set", "data.prompts={prompt_colum: x}"], "prompt_colum"),
        (["--model", "nowhere/at/all"], "nowhere/at/all"),
        (["--data", "nowhere.jsonl"], "nowhere.jsonl"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_begun(
    tmp_path: Path, start: Path, capsys: pytest.CaptureFixture[str], options: Sequence[str], words: str
) -> None:
    assert train.main([*argv(rows(tmp_path), start, tmp_path / "out"), *options]) == 2
    error = capsys.readouterr().err
    assert re.search(f"^error: .*{words}", error), error
    assert error.count("\n") == 1
    assert not (tmp_path / "out" / "data").exists()


def test_rows_need_a_checkpoint_and_a_run_keeps_its_rows(
    tmp_path: Path, start: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = rows(tmp_path)
    assert train.main(["--output", str(tmp_path / "out")]) == 2
    assert "data.files=None: rows to train on" in capsys.readouterr().err
    assert train.main(["--data", str(place), "--output", str(tmp_path / "out")]) == 2
    assert "model.start=None: rows of your own need a checkpoint" in capsys.readouterr().err
    settings = [f"model.start={start}", f"data.files=[{place}]", "data.answer_column=a", "data.length=64"]
    train.read_examples(train.read_recipe(train.RECIPE, settings), tmp_path / "out", print)
    assert train.main(argv(place, start, tmp_path / "out")) == 2
    assert "the run began with other rows. Restore them" in capsys.readouterr().err


def _run(command: list[str]) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, check=False, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]


@pytest.mark.slow
def test_two_processes_that_share_a_model_equal_one_that_accumulates(tmp_path: Path, start: Path) -> None:
    place, settings = (
        rows(tmp_path),
        ("optim.matrices=muon", "run.steps=3", "run.validate_every=2", "optim.accumulate=1"),
    )
    # The rendezvous takes a free port itself: a port looked up before may no longer be free.
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--local-addr=127.0.0.1",
                "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "-m", "jobs.train"]  # fmt: skip
    _run([*torchrun, *argv(place, start, tmp_path / "two", *settings)])
    assert train.main(argv(place, start, tmp_path / "one", *settings, "optim.accumulate=2")) == 0
    two, one, before = (load_model(folder, device="cpu", dtype=torch.float32)
                        for folder in (tmp_path / "two" / "model", tmp_path / "one" / "model", start))  # fmt: skip
    for name, weight in one.named_parameters():
        # Three Muon and AdamW steps amplify the summation order of float32; a lost rank would show at 1e-2.
        torch.testing.assert_close(two.get_parameter(name), weight, rtol=1e-3, atol=2e-4)
    assert (one.embed.weight - before.embed.weight).abs().max() > 1e-3
    assert (tmp_path / "two" / "curve.png").read_bytes()[:4] == b"\x89PNG"
    assert json.loads((tmp_path / "two" / "evaluation.json").read_text())["identical"] == 2
    # One process reads the checkpoint of two.
    assert train.main(argv(place, start, tmp_path / "two", *settings, "run.steps=4")) == 0
