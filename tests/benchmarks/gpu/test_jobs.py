"""Whole jobs run on a CPU at toy sizes; other engines are run where they are, and skipped with a sentence elsewhere."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.decode.random_model import SHAPES
from benchmarks.gpu import jobs, peers
from benchmarks.gpu.section import TOY
from testing.engine.models import random_decoder
from wedlm_core import EngineConfig, SamplingParams
from wedlm_core.config import ModelConfig
from wedlm_core.engine import Engine
from wedlm_core.model.sources import resolve
from wedlm_core.tokenizer import Tokenizer

TASK = peers.Task(way="bfloat16", random=True, device="cpu", vocab=100, rows=3, at_once=2, prompt=5, new=4)


@pytest.mark.slow  # a quarter of a minute
def test_jobs_run_on_a_cpu_and_say_why_other_engines_do_not(tmp_path: Path) -> None:
    given = [
        "--device",
        "cpu",
        "--shape",
        "tiny",
        "--lengths",
        "20/6",
        "--at-once",
        "1",
        "3",
        "--output",
        str(tmp_path),
    ]
    assert jobs.main([*given, "--vllm", sys.executable]) == 0
    (file,) = tmp_path.glob("jobs_*_tiny.jsonl")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    ours = [line for line in lines if line["engine"] == "ours"]
    assert {(line["numbers"], line["decoding"], line["at once"]) for line in ours} == {
        (numbers, decoding, at_once)
        for numbers in jobs.NUMBERS
        for decoding in ("autoregressive", "verified, low", "verified, medium", "verified, high")
        for at_once in (1, 3)
    }
    assert all(line["tokens/s"] > 0 and line["of bandwidth"] > 0 for line in ours)
    others = [line for line in lines if line["engine"] != "ours"]
    assert {line["engine"] for line in others} == set(peers.PROGRAMS)
    assert all(line["note"].startswith("not run: ") for line in others)


@pytest.mark.slow  # transformers is imported, and its continuous batching is slow without a GPU
@pytest.mark.parametrize("way", peers.PROGRAMS["transformers"][1])
def test_transformers_decodes_a_job(way: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    peers.write_folder(TOY.config, tmp_path, None)
    task = replace(TASK, way=way, rows=3, at_once=2, new=2)
    found = peers.measure(sys.executable, "transformers_peer.py", tmp_path, task, 200)
    assert found["tokens"] == 6
    assert found["seconds"] > 0


def test_a_job_counts_its_tokens_steps_and_rows() -> None:
    """Three rows of two tokens each, two at once: of the third the first forward comes when another row has ended."""
    model = random_decoder(qwen3=True, seed=1)
    engine = Engine(model, Tokenizer.load(resolve("tiny")), EngineConfig(max_num_seqs=2, max_model_len=64))
    params = SamplingParams(strategy="autoregressive", max_tokens=2, ignore_eos=True)
    done = jobs.run_job(engine, [(5, 6, 7), (8, 9, 10), (11, 12, 13)], params, 2)
    assert done.tokens == 6
    assert done.forwards == 6
    assert done.steps >= 4
    assert done.rows >= 9 + 3
    assert done.kv_tokens == 6 * (3 + 1)


def test_a_missing_engine_is_skipped_with_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="No module named 'vllm'"):
        peers.measure(sys.executable, "vllm_peer.py", tmp_path, TASK, 60)
    with pytest.raises(RuntimeError, match="does not start"):
        peers.measure(str(tmp_path / "python"), "vllm_peer.py", tmp_path, TASK, 60)


@pytest.mark.parametrize("shape", ["8b", "7b"])
def test_other_engines_are_given_a_model_of_qwen(shape: str, tmp_path: Path) -> None:
    """Its configuration is one that transformers reads, of the same sizes; weights are linked, not copied."""
    transformers = pytest.importorskip("transformers")
    config: ModelConfig = SHAPES[shape]
    weights, folder = tmp_path / "weights", tmp_path / "peer"
    weights.mkdir()
    folder.mkdir()
    (weights / "model.safetensors").write_bytes(b"")
    peers.write_folder(config, folder, weights)
    found = transformers.AutoConfig.from_pretrained(folder)
    assert found.model_type == ("qwen3" if config.qk_norm else "qwen2")
    for name in ("hidden_size", "num_hidden_layers", "num_key_value_heads", "vocab_size", "tie_word_embeddings"):
        assert getattr(found, name) == getattr(config, name), name
    assert (folder / "model.safetensors").is_symlink()
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(found)
    assert hasattr(model.model.layers[0].self_attn, "q_norm") == config.qk_norm
