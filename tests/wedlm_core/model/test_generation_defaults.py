"""Parameters of a ``generation_config.json`` are applied, as transformers applies them, and named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers  # whose models are imported when they are first used

from pipeline import layout
from pipeline.commands.run import run_on
from pipeline.commands.summary import RunSummary
from pipeline.commands.validate import validate
from pipeline.config import RunConfig
from pipeline.errors import FingerprintError
from pipeline.prompts.row_faults import row_params
from pipeline.storage.open import open_storage
from testing.pipeline.fakes import InlineExecutor
from wedlm_core import LLM, SamplingParams
from wedlm_core.errors import ConfigError
from wedlm_core.model.generation_defaults import GenerationDefaults, load_generation_defaults

GIVEN: dict[str, Any] = {"repetition_penalty": 1.3, "suppress_tokens": [*range(20, 60), 5000], "temperature": 0.7}
APPLIED = {"repetition_penalty": 1.3, "suppress_tokens": tuple(range(20, 60))}
FILE = "generation_config.json"


def with_file(model: Path, folder: Path, **given: Any) -> Path:
    """A copy of a model folder with another file; transformers knows its model type."""
    shutil.copytree(model, folder)
    (folder / FILE).write_text(json.dumps({"eos_token_id": [1, 0], **given}))
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**raw, "model_type": "qwen3", "architectures": None}))
    return folder


@pytest.fixture(scope="module")
def folder(qwen3_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_file(qwen3_folder, tmp_path_factory.mktemp("brings") / "model", **GIVEN)


def test_greedy_tokens_equal_those_of_transformers(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    theirs = transformers.Qwen3ForCausalLM.from_pretrained(folder, dtype="float32").eval()
    llm = LLM(str(folder))
    assert "repetition_penalty=1.3, suppress_tokens (40 ids) applied" in caplog.text
    prompts = [llm.tokenizer.encode(f"Count from {i} to {i + 7}. " * 2) for i in range(3)]
    off = LLM(str(folder), generation_config="off").generate(prompts, SamplingParams(max_tokens=40))
    found = llm.generate(prompts, SamplingParams(max_tokens=40))
    for prompt, one in zip(prompts, found, strict=True):
        with torch.no_grad():
            every = theirs.generate(torch.tensor([prompt]), max_new_tokens=40, do_sample=False, pad_token_id=0)
        assert list(one.token_ids) == every[0][len(prompt) :].tolist()
        assert not set(one.token_ids) & set(APPLIED["suppress_tokens"])  # type: ignore[call-overload]
    assert [one.token_ids for one in found] != [one.token_ids for one in off]
    streamed = list(llm.stream(prompts[0], SamplingParams(max_tokens=40)))[-1].generation
    assert streamed is not None
    assert streamed.token_ids == found[0].token_ids


def test_values_of_a_request_or_a_row_take_their_place(folder: Path) -> None:
    defaults = load_generation_defaults(folder, "auto", 336)
    assert dict(defaults.values) == APPLIED
    assert defaults.applied_to(SamplingParams(repetition_penalty=1.1)).repetition_penalty == 1.1
    assert defaults.missing_in(SamplingParams(suppress_tokens=[3])) == {"repetition_penalty": 1.3}
    reference = SamplingParams(strategy="reference")
    assert defaults.missing_in(reference) == {"suppress_tokens": APPLIED["suppress_tokens"]}, "a strategy without"
    assert "repetition_penalty not applied" in defaults.describe(reference)
    config = RunConfig(input=[], output="o", model=str(folder), sampling=SamplingParams(temperature=0.5))
    for given, expected in (
        (None, 1.3), ('{"top_k": 5}', 1.3), ('{"repetition_penalty": null}', 1.3), ('{"repetition_penalty": 1.0}', 1.0),
        ('{"repetition_penalty": 2.0}', 2.0), ('{"strategy": "reference"}', 1.0),
    ):  # fmt: skip
        found = row_params(config, given)
        assert isinstance(found, SamplingParams)
        assert (found.repetition_penalty, found.temperature) == (expected, 0.5)


def test_without_the_file_those_of_the_configuration_count(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "m")
    (tmp_path / "m" / FILE).unlink()
    raw = json.loads((folder / "config.json").read_text())
    (tmp_path / "m/config.json").write_text(json.dumps({**raw, **GIVEN, "eos_token_id": [1, 0]}))
    defaults = load_generation_defaults(tmp_path / "m", "auto", 336)
    assert dict(defaults.values) == APPLIED
    assert defaults.describe(SamplingParams()).startswith("brings config.json: repetition_penalty=1.3")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(str(tmp_path / "m"), dtype=torch.float32)
    want = theirs.generate(torch.tensor([[40, 41, 42]]), max_new_tokens=12, do_sample=False)[0, 3:].tolist()
    (found,) = LLM(str(tmp_path / "m")).generate([[40, 41, 42]], SamplingParams(max_tokens=12))
    assert list(found.token_ids) == want


def test_entries_that_are_not_applied_are_named(qwen3_folder: Path, tmp_path: Path) -> None:
    given = {"no_repeat_ngram_size": 2, "begin_suppress_tokens": [3], "num_beams": 1, "min_length": 0,
             "guidance_scale": 1.5, "watermarking_config": {"bias": 5.0}}  # fmt: skip
    defaults = load_generation_defaults(with_file(qwen3_folder, tmp_path / "m", **given), "auto", 336)
    assert dict(defaults.values) == {}
    named = "begin_suppress_tokens, guidance_scale, no_repeat_ngram_size, watermarking_config not applied"
    assert named in defaults.describe(SamplingParams())


@pytest.mark.parametrize(
    "given", [{}, {"repetition_penalty": 1.0}, {"repetition_penalty": None, "suppress_tokens": []}]
)
def test_a_file_without_them_changes_nothing(qwen3_folder: Path, tmp_path: Path, given: dict[str, Any]) -> None:
    defaults = load_generation_defaults(with_file(qwen3_folder, tmp_path / "m", **given), "auto", 336)
    params = SamplingParams()
    assert defaults.applied_to(params) is params
    assert defaults.describe(params) == ""
    assert load_generation_defaults(tmp_path / "m", "off", 336) == GenerationDefaults(values={})


@pytest.mark.parametrize(
    "given",
    [{"repetition_penalty": 0}, {"repetition_penalty": "1.1"}, {"suppress_tokens": 5}, {"suppress_tokens": [[1]]}],
    ids=str,
)  # fmt: skip
def test_a_value_that_cannot_be_followed_is_refused(qwen3_folder: Path, tmp_path: Path, given: dict[str, Any]) -> None:
    model = with_file(qwen3_folder, tmp_path / "m", **given)
    with pytest.raises(ConfigError, match=rf"^{FILE}: {next(iter(given))}=.*generation_config=\"off\""):
        LLM(str(model))
    LLM(str(model), generation_config="off")
    for make in (
        lambda: LLM(str(model), generation_config="on"),
        lambda: RunConfig(input=1, output="o", generation_config="on"),
    ):  # type: ignore[arg-type]
        with pytest.raises(Exception, match=r"^generation_config='on': one of"):
            make()


def test_a_run_names_them_and_an_output_without_them_is_not_continued(
    qwen3_folder: Path, folder: Path, tmp_path: Path
) -> None:
    rows = [{"prompt": f"Count to {i}."} for i in range(3)]

    def run(model: Path, **more: Any) -> RunSummary:
        sampling = SamplingParams(max_tokens=8)
        config = RunConfig(input=rows, output=str(tmp_path / "out"), model=str(model), sampling=sampling, report=False,
                           **more)  # fmt: skip
        assert ("repetition_penalty" in "".join(validate(config).warnings)) is ("generation_config" not in more)
        return run_on(InlineExecutor(), config, open_storage(config.output, layout.SCRATCH))

    run(folder, generation_config="off")
    with pytest.raises(FingerprintError, match=r"generation_config\.repetition_penalty: .*1\.3"):
        run(folder)
    summary = run(folder, mode="new")
    assert "suppress_tokens (40 ids) applied" in summary.describe()
