"""``wedlm-batch evaluate``: problems of the shipped model, and data sets by the shipped tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from jobs import evaluate_tasks
from jobs.evaluate import main
from pipeline.commands.evaluate_config import as_evaluation

CHOICES = ["a stone", "a river", "a song", "a number"]
DATA: dict[str, list[dict[str, Any]]] = {
    "arc_challenge": [
        {
            "id": "own-1",
            "question": "Which of these flows?",
            "choices": {"text": CHOICES, "label": list("ABCD")},
            "answerKey": "B",
        },
        {
            "id": "own-2",
            "question": "Which can be heard?",
            "choices": {"text": CHOICES, "label": list("1234")},
            "answerKey": "3",
        },
    ],
    "gsm8k": [
        {"question": "What is 47 + 25?", "answer": "47 + 25 = 72\n#### 72"},
        {"question": "A shelf holds 8 jars. How many do 3 shelves hold?", "answer": "3 * 8 = 24\n#### 24"},
    ],
    "math": [
        {"problem": "What is $2 + 2$?", "solution": "It is $\\boxed{4}$.", "level": "Level 1", "type": "Prealgebra"},
        {
            "problem": "What is half of $7$?",
            "solution": "It is $\\boxed{\\frac{7}{2}}$.",
            "level": "Level 2",
            "type": "Algebra",
        },
    ],
    "gpqa": [
        {
            "Question": f"Which number is the largest{'?' * n}",
            "Correct Answer": "9",
            "Incorrect Answer 1": "7",
            "Incorrect Answer 2": "5",
            "Incorrect Answer 3": "3",
            "Explanation": "9 is.",
        }
        for n in (1, 2)
    ],
    "humaneval": [
        {
            "task_id": "Own/0",
            "prompt": "def one() -> int:\n",
            "canonical_solution": "    return 1\n",
            "test": "def check(candidate):\n    assert candidate() == 1\n",
            "entry_point": "one",
        },
    ],
    "mmlu": [
        {"question": "Which is drawn by hand?", "subject": "geology", "choices": CHOICES, "answer": 0},
        {"question": "Which is sung?", "subject": "music", "choices": CHOICES, "answer": 2},
    ],
    "hellaswag": [
        {
            "ind": 1,
            "activity_label": "Rowing",
            "ctx_a": "",
            "ctx_b": "",
            "ctx": "They sit down in the boat. They",
            "endings": ["row away.", "bake it.", "read its mind.", "post it."],
            "source_id": "own",
            "split": "val",
            "split_type": "indomain",
            "label": "0",
        },
    ],
}
"""A few sentences of our own in the layouts of the public data sets."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Half of the data sets as Parquet, half as JSON Lines."""
    folder = tmp_path_factory.mktemp("data")
    for number, (name, rows) in enumerate(DATA.items()):
        (folder / name).mkdir()
        if number % 2:
            pq.write_table(pa.Table.from_pylist(rows), folder / name / "test-00000-of-00001.parquet")
        else:
            (folder / name / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def report_in(printed: str) -> str:
    """What is printed, without what Ray says before it."""
    return printed[printed.index("# Evaluation of") :]


SHORT = ["--set", "on_long_prompt=truncate_left", "--set", "num_threads=1", "--quiet"]


def test_a_task_with_code_runs_it_only_when_told_to(
    data: Path, tmp_path: Path, cluster: None, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["--table", "1", "--only", "humaneval", "--strategies", "verified", "--data", str(data),
               "--output", str(tmp_path / "out"), *SHORT]  # fmt: skip
    assert main(command) == 2
    assert "--execute-code" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()

    assert main([*command, "--execute-code"]) == 0
    assert "Programs ran in a sandbox" in capsys.readouterr().out
    (row,) = pq.read_table(tmp_path / "out" / "samples").to_pylist()
    assert row["outcome"] == "wrong", "the shipped model writes no Python"
    assert row["detail"].startswith(("failed: ", "died: "))


@pytest.mark.slow  # 21 runs, of which each starts an actor: two minutes
@pytest.mark.timeout(900)
@pytest.mark.parametrize("table", [1, 2])
def test_a_table_of_the_paper_is_one_command(
    table: int, data: Path, tmp_path: Path, cluster: None, capsys: pytest.CaptureFixture[str]
) -> None:
    # The shipped model takes 1,024 tokens, so long answers are cut, and prompts lose their beginning.
    tokens = [f"--set=tasks.{name}.sampling.max_tokens=64" for name in DATA]
    command = ["--table", str(table), "--data", str(data), "--output", str(tmp_path), "--execute-code", *SHORT, *tokens]
    assert main(command) == 0
    text = report_in(capsys.readouterr().out)
    raw = json.loads((tmp_path / "evaluation.json").read_text())
    assert [(one["task"], one["setting"]) for one in raw["results"]] == [
        (task, setting) for task in DATA for setting in ("autoregressive", "verified", "reference")
    ]
    for one in raw["results"]:
        assert one["questions"] == len(DATA[one["task"]])
        assert one["outcomes"]["failed"] == one["outcomes"]["unjudged"] == 0
        if one["setting"] == "verified":
            assert one["comparison"]["equal_tokens"] == one["comparison"]["questions"] == one["questions"]
    assert "mean of tasks" in text
    assert main(command) == 0, "again, from what is there"
    assert report_in(capsys.readouterr().out) == text


@pytest.mark.parametrize("name", ["table-1", "table-2", "figure-4", "figure-5"])
def test_what_is_shipped_is_valid_and_names_its_own_command(name: str) -> None:
    path = evaluate_tasks.SHIPPED / f"{name}.yaml"
    config = as_evaluation({**yaml.safe_load(path.read_text()), "output": "o", "data": "d", "execute_code": True})
    assert len(config.settings) >= 3
    assert config.baseline == "autoregressive"
    for task in config.tasks:
        assert config.run_config(task, "autoregressive").input == f"d/{task}/*"
    kind, _, number = name.partition("-")
    assert f"--{kind} {number} " in path.read_text()
    if kind == "table":
        assert list(config.tasks) == list(DATA)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["--tasks", "gsm8k"], "must be TASK=INPUT"),
        (["--tasks", "gsm8k=a.jsonl"], "output"),
        (["--tasks", "gsm8k=nowhere.jsonl", "--output", "o"], "no file is there"),
        (["--table", "1", "--only", "gsm9k", "--output", "o"], "--only gsm9k"),
        (["--config", "nowhere.yaml"], "cannot be read"),
        (["--tasks", "gsm8k=a.jsonl", "--output", "o", "--baseline", "x"], "baseline='x'"),
    ],
)
def test_mistakes_are_one_line_and_status_2(
    command: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*command, "--quiet"]) == 2
    assert words in capsys.readouterr().err
    assert not list(tmp_path.rglob("*.parquet"))


def test_the_shipped_models_problems_are_measured_as_before(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["--per-family", "1", "--families", "counting", "copying", "--strategies", "verified", "autoregressive",
               "--output", str(tmp_path)]  # fmt: skip
    assert main(command) == 0
    assert "Token for token equal to autoregressive: 100.0%" in capsys.readouterr().out
    raw = json.loads((tmp_path / "evaluation.json").read_text())
    assert [one["strategy"] for one in raw] == ["autoregressive", "verified"]
    assert set(raw[0]["families"]) == {"counting", "copying"}
    assert "2 problems of the test split, temperature 0, W=16" in (tmp_path / "evaluation.md").read_text()
