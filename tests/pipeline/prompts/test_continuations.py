"""Texts to score as tokens: possible outputs of a form, and texts that a model cannot tell apart."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from pipeline.codec import SamplingParams, StructuredOutputs
from pipeline.config import RunConfig
from pipeline.errors import ConfigError
from pipeline.prompts.continuations import check_continuations, labels_of
from wedlm_core.model.sources import resolve

TINY = resolve("tiny")


@pytest.mark.parametrize(
    ("fields", "labels"),
    [
        ({"choice": ["yes", "no"]}, ("yes", "no")),
        ({"json": {"enum": ["a b", "\u00e9", 3, None, True, 0.5]}}, ('"a b"', '"\u00e9"', "3", "null", "true", "0.5")),
        ({"json": {"type": "string", "enum": ["a", "a"]}}, ('"a"',)),
        ({"json": {"enum": [[1, 2], {"a": 1}]}, "separators": (",", ":")}, ("[1,2]", '{"a":1}')),
        ({"json": {"type": "object", "properties": {"a": {"enum": ["x"]}}}}, None),
        ({"json": {"enum": ["a", "b"], "not": {"const": "a"}}}, None),
        ({"choice": ["yes", "no"], "after": "</think>"}, None),
        ({"regex": "yes|no"}, None),
        ({"json_object": True}, None),
    ],
)
def test_outputs_that_are_one_of_some_texts_have_labels(fields: dict[str, Any], labels: tuple[str, ...] | None) -> None:
    assert labels_of(StructuredOutputs(**fields)) == labels


def test_free_outputs_have_no_labels() -> None:
    assert labels_of(None) is None
    with pytest.raises(ConfigError, match=r"structured_outputs\.choice"):
        check_continuations(RunConfig(input="i", output="o", model="tiny", label_probabilities=True))
    sampling = SamplingParams(structured_outputs={"choice": ["a", "b"]})
    check_continuations(RunConfig(input="i", output="o", model="tiny", label_probabilities=True, sampling=sampling))


def test_texts_of_the_same_tokens_are_refused(tmp_path: Path) -> None:
    """Qwen's tokenizers normalise text to NFC, so a composed and a decomposed letter are one."""
    folder = Path(shutil.copytree(TINY, tmp_path / "model"))
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer | {"normalizer": {"type": "NFC"}}))
    choices = ["caf\u00e9", "cafe\u0301"]
    check_continuations(RunConfig(input="i", output="o", model=str(TINY), task={"choices": choices}))
    with pytest.raises(ConfigError, match="it is the same as"):
        check_continuations(RunConfig(input="i", output="o", model=str(folder), task={"choices": choices}))
