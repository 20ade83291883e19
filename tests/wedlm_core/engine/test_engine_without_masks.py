"""A plain Qwen folder has no mask token: it is decoded as transformers decodes it, with drafts from other sources."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers  # whose models are imported when they are first used

import pipeline
from testing.engine.models import random_decoder, write_tokenizer
from wedlm_core import LLM, SamplingParams
from wedlm_core.errors import RequestError
from wedlm_core.model.weights import save_model

CLASSES = {"qwen2": transformers.Qwen2ForCausalLM, "qwen3": transformers.Qwen3ForCausalLM}
SCHEMA = {"type": "object", "properties": {"first": {"enum": ["alpha", "omega"]}, "last": {"type": "boolean"}},
          "required": ["first", "last"], "additionalProperties": False}  # fmt: skip


def plain_folder(folder: Path, kind: str) -> Path:
    """A folder of transformers' own model type, whose tokenizer names no mask token."""
    save_model(random_decoder(qwen3=kind == "qwen3", seed=4), folder)
    write_tokenizer(folder)
    for name, changes in (("config.json", {"model_type": kind}), ("tokenizer_config.json", {})):
        raw = {**json.loads((folder / name).read_text()), **changes}
        for field in ("mask_token", "mask_token_id", "architectures", "qk_norm"):
            raw.pop(field, None)
        (folder / name).write_text(json.dumps(raw))
    return folder


@pytest.fixture(scope="module", params=["qwen2", "qwen3"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return plain_folder(tmp_path_factory.mktemp("plain") / request.param, request.param)


@pytest.fixture(scope="module")
def llm(folder: Path) -> LLM:
    return LLM(str(folder))


def test_the_default_decoding_is_that_of_transformers_with_drafts_from_earlier_text(llm: LLM, folder: Path) -> None:
    theirs = CLASSES[folder.name].from_pretrained(folder, dtype="float32").eval()
    prompts = [llm.tokenizer.encode(f"Count from {i} to {i + 7}. " * 2) for i in range(4)]
    found = llm.generate(prompts, SamplingParams(max_tokens=90, ignore_eos=True))
    for prompt, one in zip(prompts, found, strict=True):
        with torch.no_grad():
            every = theirs.generate(
                torch.tensor([prompt]), max_new_tokens=90, do_sample=False, eos_token_id=None, pad_token_id=0
            )  # fmt: skip
        assert list(one.token_ids) == every[0][len(prompt) :].tolist()
        stats = one.stats
        assert stats.mask_drafts == 0
        assert stats.rows_forwarded == stats.decode_forwards + stats.history_drafts, "no row is a mask"
    assert sum(one.stats.history_drafts_accepted for one in found) > 0


def test_a_grammar_drafts_what_it_forces(llm: LLM) -> None:
    (one,) = llm.generate(["a"], SamplingParams(max_tokens=80, structured_outputs={"json": SCHEMA}))
    assert json.loads(one.text).keys() == {"first", "last"}
    assert one.stats.grammar_drafts_accepted > 5
    assert one.stats.mask_drafts == 0


@pytest.mark.parametrize("fields", [{"window_size": 4}, {"strategy": "reference"}, {"strategy": "streaming"}], ids=str)
def test_a_call_that_asks_for_masks_is_refused(llm: LLM, fields: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match=r"this model has no mask token, and window_size=.* asks for masks"):
        llm.generate(["a"], SamplingParams(max_tokens=4, **fields))


def test_a_line_says_so_for_engines_and_before_runs(
    folder: Path, qwen3_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        LLM(str(folder))
        LLM(str(qwen3_folder))
    (line,) = [record.message for record in caplog.records if "no mask token" in record.message]
    assert "decoded autoregressively" in line
    for model, says in ((folder, True), (qwen3_folder, False)):
        config = pipeline.RunConfig(input=[{"prompt": "a"}], output=str(tmp_path / "out"), model=str(model))
        found = pipeline.validate(config)
        assert found.ok
        assert any("no mask token" in warning for warning in found.warnings) is says
