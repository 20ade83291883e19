"""The model ``wedlm_batch`` under the real lm-eval, on local tasks, without a network."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from testing.repository import ROOT

pytest.importorskip("lm_eval", reason="lm-eval is not installed (extra eval)")

from lm_eval.api.instance import Instance

from wedlm_batch.lm_eval_model import WeDLMBatchLM
from wedlm_core import LLM, ConfigError, RequestError, SamplingParams

TASKS = {
    "sums": """
task: own_sums
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: generate_until
doc_to_text: "What is {{{{a}}}} + {{{{b}}}}?"
doc_to_target: "{{{{a + b}}}}"
generation_kwargs: {{until: ["\\n\\n"], max_gen_toks: 64, temperature: 0.0}}
filter_list:
  - name: last
    filter: [{{function: regex, regex_pattern: "(\\\\d+)(?!.*\\\\d)", group_select: -1}}, {{function: take_first}}]
metric_list: [{{metric: exact_match, aggregation: mean, higher_is_better: true}}]
""",
    "counting": """
task: own_counting
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "Count from {{{{start}}}} to {{{{start + 9}}}}.\\n{{{{start}}}}, {{{{start + 1}}}}, {{{{start + 2}}}},"
target_delimiter: ""
doc_to_choice: choices
doc_to_target: label
metric_list: [{{metric: acc, aggregation: mean, higher_is_better: true}}]
""",
    "texts": """
task: own_texts
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{{{text}}}}"
metric_list: [{{metric: bits_per_byte, aggregation: bits_per_byte, higher_is_better: false}}]
""",
}
ROWS: dict[str, list[dict[str, Any]]] = {
    "sums": [{"a": 17 + 3 * i, "b": 61 - 2 * i} for i in range(8)],
    "counting": [
        {"start": 7 * i + 1, "choices": [f" {7 * i + 6}", f" {7 * i + 4}", " fox"], "label": 1} for i in range(8)
    ],
    "texts": [{"text": "Count from 3 to 9.\n3, 4, 5"}, {"text": "A fox lived in the wood."}],
}


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tasks")
    for name, text in TASKS.items():
        data = folder / f"{name}.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in ROWS[name]))
        (folder / f"{name}.yaml").write_text(text.format(data=data))
    return folder


@cache
def model() -> WeDLMBatchLM:
    return WeDLMBatchLM("tiny", max_length=256)


@cache
def llm() -> LLM:
    return LLM("tiny", max_model_len=256)


def asked(kind: str, *arguments: tuple[Any, ...]) -> list[Instance]:
    return [Instance(request_type=kind, doc={}, arguments=one, idx=i) for i, one in enumerate(arguments)]


@pytest.mark.slow(reason="the whole of lm-eval: 15 s")
def test_lm_eval_evaluates_local_tasks(tasks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through its Python interface, offline: figures of the shipped model."""
    import lm_eval
    from lm_eval.tasks import TaskManager

    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    manager = TaskManager(include_path=str(tasks), include_defaults=False)
    names = ["own_sums", "own_counting", "own_texts"]
    results = lm_eval.simple_evaluate(model=model(), tasks=names, task_manager=manager, bootstrap_iters=0)["results"]
    assert results["own_sums"]["exact_match,last"] >= 0.75
    assert results["own_counting"]["acc,none"] >= 0.75
    assert 0 < results["own_texts"]["bits_per_byte,none"] < 20


@pytest.mark.slow  # half a minute: an interpreter that imports lm-eval and torch, and reads the names of all its tasks
def test_lm_evals_own_command_evaluates_local_tasks(tasks: Path, tmp_path: Path) -> None:
    """The whole of it, as people type it, offline: figures of the shipped model."""
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(tmp_path / "hub")}
    environment = {**os.environ, **offline, "PYTHONPATH": str(ROOT)}
    command = [
        "lm-eval",
        "--model",
        "wedlm_batch",
        "--model_args",
        "pretrained=tiny,strategy=verified",
        "--include_path",
        str(tasks),
        "--tasks",
        "own_sums,own_counting,own_texts",
        "--output_path",
        str(tmp_path / "o"),
    ]
    done = subprocess.run(
        [sys.executable, "-m", "wedlm_batch", *command],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "|own_sums" in done.stdout.replace(" ", "")
    (path,) = (tmp_path / "o").rglob("results_*.json")
    results = json.loads(path.read_text())["results"]
    assert results["own_sums"]["exact_match,last"] >= 0.75
    assert results["own_counting"]["acc,none"] >= 0.75
    assert 0 < results["own_texts"]["bits_per_byte,none"] < 20


def test_a_model_must_be_given() -> None:
    with pytest.raises(ConfigError, match="model not given"):
        WeDLMBatchLM()


def test_log_likelihoods_are_those_of_the_engine() -> None:
    context = "Count from 3 to 9.\n3, 4"
    pairs = [(context, ", 5"), (context, ", 6"), ("", "A fox"), ("Once", "")]
    found = model().loglikelihood(asked("loglikelihood", *pairs), disable_tqdm=True)
    (end,) = llm().tokenizer.eos_token_ids[:1]
    encode = llm().tokenizer.encode
    assert encode(f"{context}, 5") == encode(context) + encode(", 5"), "no token crosses the border"
    ends = [encode(text) for _, text in pairs[:3]]
    expected = llm().score([encode(context), encode(context), [end]], ends)
    assert found == [*((one.logprob, one.is_greedy) for one in expected), (0.0, True)]
    assert found[0][1]
    assert found[0][0] > found[1][0]


def test_a_rolling_log_likelihood_counts_each_token_once_whatever_the_window() -> None:
    text = "The fox ran home. " * 40
    short = WeDLMBatchLM("tiny", max_length=32)
    tokens = short.tok_encode(text)
    assert len(tokens) > 2 * 32
    counted: list[int] = []
    score = short.llm.score

    def counting(contexts: Any, ends: Any, **more: Any) -> Any:
        counted.extend(map(len, ends))
        return score(contexts, ends, **more)

    short.llm.score = counting  # type: ignore[method-assign]
    (found,) = short.loglikelihood_rolling(asked("loglikelihood_rolling", (text,)), disable_tqdm=True)
    assert sum(counted) == len(tokens)
    assert math.isfinite(found)
    assert found < 0
    brief = "A fox lived in the wood."
    (whole,) = model().loglikelihood_rolling(asked("loglikelihood_rolling", (brief,)), disable_tqdm=True)
    (once,) = llm().score([[model().eot_token_id]], [model().tok_encode(brief)])
    assert whole == once.logprob
    assert model().loglikelihood_rolling(asked("loglikelihood_rolling", ("",)), disable_tqdm=True) == [0.0]


def test_generations_honour_stops_lengths_and_temperatures() -> None:
    prompt = "Count from 3 to 9."
    requests = asked(
        "generate_until",
        (prompt, {"until": [", 6"], "max_gen_toks": 60}),
        (prompt, {"until": [], "max_gen_toks": 3}),
        (prompt, {"until": ["<|im_end|>", "\n\n"], "max_gen_toks": 60}),
        (prompt, {"until": [], "max_gen_toks": 60, "do_sample": True, "temperature": 0.9, "top_p": 0.9}),
        ("word " * 400 + prompt, {"until": ["\n\n"], "max_gen_toks": 40}),
    )
    found = model().generate_until(requests, disable_tqdm=True)
    ids = model().tok_encode(prompt)
    whole = llm().generate([ids], SamplingParams(max_tokens=60))[0]
    assert found[0] == whole.text.partition(", 6")[0]
    assert found[1] == llm().generate([ids], SamplingParams(max_tokens=3))[0].text
    assert found[2] == whole.text
    cut = model().tok_encode("word " * 400 + prompt)[-(256 - 40) :]
    assert found[4] == llm().generate([cut], SamplingParams(max_tokens=40, stop="\n\n"))[0].text
    with pytest.raises(RequestError, match="max_gen_toks=256"):
        model().generate_until(asked("generate_until", (prompt, {"max_gen_toks": 256})), disable_tqdm=True)
    with pytest.raises(RequestError, match="num_beams"):
        model().generate_until(
            asked("generate_until", (prompt, {"num_beams": 4, "max_gen_toks": 9})), disable_tqdm=True
        )


def test_chats_go_through_the_models_template() -> None:
    history = [{"role": "user", "content": "Count from 3 to 9."}]
    assert model().apply_chat_template(history) == llm().tokenizer.apply_chat_template(history, tokenize=False)
    assert model().chat_template(True) == "chat template of tiny"
    assert model().chat_template(False) is None
    assert model().tokenizer_name == "tiny"


def test_arguments_are_checked_before_the_model_is_loaded() -> None:
    with pytest.raises(RequestError, match="strategy='fast'"):
        WeDLMBatchLM("nowhere", strategy="fast")
    with pytest.raises(ValueError, match="windo_size"):
        WeDLMBatchLM("tiny", windo_size=4)
