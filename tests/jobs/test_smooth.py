"""``smooth``: a file beside the model, which is then part of the model that an output is begun with."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from jobs.smooth import main
from pipeline.codec import EngineConfig
from pipeline.commands.validate import validate
from pipeline.config import RunConfig
from pipeline.errors import FingerprintError
from pipeline.prompts.model_files import ResolvedModel
from testing.pipeline.exactly_once import SmallJob
from wedlm_core import LLM
from wedlm_core.model.sources import resolve

INT8 = {"weight_dtype": "int8"}


@pytest.fixture
def job(tmp_path: Path) -> SmallJob:
    """A job on a copy of the shipped model, which it may write to."""
    folder = tmp_path / "tiny"
    shutil.copytree(resolve("tiny"), folder)
    job = SmallJob(tmp_path, folder)
    job.config = replace(job.config, engine=EngineConfig(smoothing="model", **INT8))  # type: ignore[arg-type]
    return job


def model_digest(config: RunConfig) -> str:
    """The digest, as another process finds it."""
    return ResolvedModel(Path(config.model)).digest(config.engine.smoothing)


def smooth(job: SmallJob, *more: str) -> int:
    return main(["--input", job.config.input, "--model", job.config.model, *more])


def test_an_output_is_not_continued_with_another_scaling(job: SmallJob, capsys: pytest.CaptureFixture[str]) -> None:
    """Resuming with the file of other rows, or with none, would mix the rows of two models."""
    assert "no such file" in str(validate(job.config).problems)
    assert smooth(job) == 0
    assert "use: --set engine.smoothing=model" in capsys.readouterr().out
    assert validate(job.config).ok
    path, first = Path(job.config.model) / "smoothing.safetensors", model_digest(job.config)
    kept = path.read_bytes()
    assert smooth(job) == 0
    assert path.read_bytes() == kept, "the same rows give the same scales"
    job.stop_after(2)
    assert smooth(job, "--rows", "1") == 0
    assert model_digest(job.config) != first
    with pytest.raises(FingerprintError, match="model"):
        job.run()
    plain = EngineConfig(**INT8)  # type: ignore[arg-type]
    with pytest.raises(FingerprintError, match="model"):
        job.run(engine=plain)
    path.write_bytes(kept)
    job.run()
    assert job.problems() == ()


def test_a_file_that_was_cut_is_found_before_an_actor_reads_it(job: SmallJob) -> None:
    assert smooth(job) == 0
    path = Path(job.config.model) / "smoothing.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    (problem,) = validate(job.config).problems
    assert "engine.smoothing=" in problem
    assert "not a whole safetensors file" in problem
    assert "wedlm-batch smooth" in problem
    assert smooth(job) == 0
    assert validate(job.config).ok


def test_a_file_beside_the_weights_is_another_model_only_where_it_is_used(job: SmallJob) -> None:
    plain = replace(job.config, engine=EngineConfig())
    before = model_digest(plain)
    assert smooth(job) == 0
    assert model_digest(plain) == before != model_digest(job.config)
    Path(job.config.model, "model.safetensors.index.json").write_text('{"weight_map": {"a": "smoothing.safetensors"}}')
    named = model_digest(plain)
    with Path(job.config.model, "smoothing.safetensors").open("ab") as file:
        file.write(b" ")
    assert model_digest(plain) != named, "it is a part of the weights there"


def test_a_file_is_the_same_model_wherever_it_lies(job: SmallJob, tmp_path: Path) -> None:
    digests = set()
    for name in ("a", "b"):
        path = tmp_path / name
        assert smooth(job, "--to", str(path)) == 0
        config = EngineConfig(smoothing=str(path), **INT8)  # type: ignore[arg-type]
        digests.add(model_digest(replace(job.config, engine=config)))
    assert len(digests) == 1
    assert LLM(job.config.model, config=config, device="cpu").engine.device.type == "cpu"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--model", "tiny"], "Give --to FILE"),
        (["--rows", "0"], "rows=0"),
        (["--set", "engine.weight_dtype=fp8_e4m3"], "only int8 and int4"),
        (["--to", "/proc/none"], "cannot be written"),
    ],
)
def test_mistakes_are_named(job: SmallJob, options: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert smooth(job, *options) == 2
    assert said in capsys.readouterr().err
