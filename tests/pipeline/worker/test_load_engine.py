"""Results made once per machine are made by one process, also if several actors start at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline import ConfigError, EngineConfig, RunConfig, SamplingParams, layout, stages
from pipeline.commands.begin import source_of
from pipeline.plan.job import resolve_job
from pipeline.storage.open import open_storage
from pipeline.worker.load_engine import load_engine, load_for_any_row
from testing.repository import ROOT
from wedlm_core import Generation, Request
from wedlm_core.config.step_cost import StepCost
from wedlm_core.engine import Engine
from wedlm_core.model.sources import resolve
from wedlm_core.tokenizer import Tokenizer

LOAD = """
import json, logging, sys, time
said = []
handler = logging.Handler()
handler.emit = lambda record: said.append(record.getMessage())
for name in ("wedlm_core.engine.drafting.measure", "pipeline.stages"):
    logging.getLogger(name).setLevel(logging.INFO)
    logging.getLogger(name).addHandler(handler)
import pipeline
from pipeline import stages
from pipeline.commands.begin import source_of
from pipeline.plan.job import resolve_job
from pipeline.storage.open import open_storage
from pipeline import layout
from pipeline.worker.load_engine import load_engine
config = pipeline.RunConfig(input=[{"prompt": "a"}], output=sys.argv[1], model=sys.argv[2])
storage = open_storage(config.output, layout.SCRATCH)
load_engine(resolve_job(config, source_of(config, storage), storage), 1)
print(json.dumps({"said": said, "taken": stages.taken()}))
"""


def start_together(count: int, cache: Path, folder: Path, model: Path) -> list[tuple[list[str], dict[str, float]]]:
    """The stages and their seconds of so many processes that load the model at once."""
    environment = {**os.environ, "WEDLM_CACHE_HOME": str(cache)}
    processes = [
        subprocess.Popen([sys.executable, "-c", LOAD, str(folder / str(number)), str(model)], cwd=ROOT,
                         env=environment, stdout=subprocess.PIPE, text=True)
        for number in range(count)
    ]  # fmt: skip
    found = [json.loads(process.communicate(timeout=300)[0].strip().split("\n")[-1]) for process in processes]
    assert not any(process.returncode for process in processes)
    return [(each["said"], each["taken"]) for each in found]


def keeps_a_measurement(said: list[str]) -> bool:
    """Whether the process measured, and kept it: on a busy machine the next one measures again."""
    busy = any("the next start measures again" in line for line in said)
    return any(line.startswith("measured ") for line in said) and not busy


@pytest.mark.parametrize("length", [2, 6])
def test_an_engine_for_short_rows_warms_up(length: int, tmp_path: Path) -> None:
    config = RunConfig(
        input=[{"prompt": "a"}], output=str(tmp_path / "out"), model="tiny",
        engine=EngineConfig(max_model_len=length), sampling=SamplingParams(max_tokens=1),
    )  # fmt: skip
    storage = open_storage(config.output, layout.SCRATCH)
    engine = load_engine(resolve_job(config, source_of(config, storage), storage), None)
    assert isinstance(engine, Engine)
    assert engine.max_model_len == length
    loaded = {"torch imported", "model fetched", "model loaded", "kernels ready", "draft kernels ready"}
    assert set(stages.taken()) >= loaded, "progress shows them"
    assert not engine.has_work(), "the rows that warmed it up are done"


def test_the_first_row_of_a_job_has_drafts(tmp_path: Path) -> None:
    """A job may have one short row: what the engine generates to warm up teaches drafting nothing about it."""
    cost = StepCost.linear(fixed=1e-3, per_row=1e-6)
    config = RunConfig(
        input=[{"prompt": "a"}], output=str(tmp_path / "out"), model="tiny", engine=EngineConfig(step_cost=cost)
    )
    storage = open_storage(config.output, layout.SCRATCH)
    engine = load_engine(resolve_job(config, source_of(config, storage), storage), None)
    prompt = Tokenizer.load(resolve("tiny")).apply_chat_template(
        [{"role": "user", "content": "Count from 3 to 9."}], True, tokenize=True
    )
    engine.add(Request(request_id="row", prompt_token_ids=tuple(prompt), params=SamplingParams(max_tokens=32)))
    done: list[Generation] = []
    while engine.has_work():
        done += engine.step()
    assert done[0].text == "3, 4, 5, 6, 7, 8, 9"
    assert done[0].stats.tokens_per_forward > 2


def test_a_pool_whose_engine_could_not_hold_every_row_is_refused(tmp_path: Path, qwen3_folder: Path) -> None:
    config = RunConfig(
        input=[{"prompt": "a"}], output=str(tmp_path / "out"), model=str(qwen3_folder),
        engine=EngineConfig(num_pages=4), sampling=SamplingParams(max_tokens=1, window_size=4),
    )  # fmt: skip
    storage = open_storage(config.output, layout.SCRATCH)
    job = resolve_job(config, source_of(config, storage), storage)
    with pytest.raises(ConfigError, match=r"max_model_len=512: the KV pool of pools\.tight holds 256"):
        load_for_any_row(load_engine, "tight", job, None)


GENERATE = """
import sys
from wedlm_core import LLM, SamplingParams
LLM(sys.argv[1]).generate([[5, 6, 7] * 4, [8]], SamplingParams(max_tokens=24, ignore_eos=True))
"""


def kernels(cache: Path) -> set[str]:
    return {path.name for path in cache.rglob("*.nbc")}


@pytest.mark.slow  # compiles all kernels: about 60 s
def test_one_of_the_actors_that_start_together_compiles_the_kernels(tmp_path: Path, qwen3_folder: Path) -> None:
    found = start_together(3, tmp_path / "cache", tmp_path, qwen3_folder)
    assert sum(any("compiling the kernels" in line for line in said) for said, _ in found) == 1
    assert sum(keeps_a_measurement(said) for said, _ in found) <= 1
    assert any(line.startswith("measured ") for said, _ in found for line in said)
    again = start_together(2, tmp_path / "cache", tmp_path, qwen3_folder)
    assert not any("compiling" in line for said, _ in again for line in said)
    before = kernels(tmp_path / "cache")
    environment = {**os.environ, "WEDLM_CACHE_HOME": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", GENERATE, str(qwen3_folder)], cwd=ROOT, env=environment, check=True)
    assert not kernels(tmp_path / "cache") - before, "the first rows' time has none of it"
