"""Ordinary tokenizers opened without transformers are those that transformers opens; all others are left to it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from testing.repository import ROOT
from wedlm_core.model.sources import resolve
from wedlm_core.plain_tokenizer import open_plain
from wedlm_core.tokenizer import Tokenizer

MESSAGES = [{"role": "user", "content": "Hi <|im_end|> 😀"}]
END = {"content": "<|im_end|>", "lstrip": False, "normalized": False, "rstrip": False, "single_word": False,
       "special": True}  # fmt: skip


def folder_with(folder: Path, changes: dict[str, Any], files: dict[str, str] | None = None) -> Path:
    """The shipped model's tokenizer with changed settings (None removes one) and further files."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(resolve("tiny") / name, folder / name)
    path = folder / "tokenizer_config.json"
    config = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({name: value for name, value in config.items() if value is not None}))
    for name, text in (files or {}).items():
        (folder / name).write_text(text)
    return folder


def end_id() -> int:
    return Tokenizer.load(resolve("tiny")).encode("<|im_end|>")[0]


@pytest.mark.parametrize(
    ("changes", "files"),
    [
        ({}, {}),
        ({"eos_token": {"__type": "AddedToken", **END}, "mask_token": None, "bos_token": None}, {}),
        ({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"], "add_bos_token": False}, {}),
        ({"added_tokens_decoder": "those of the file"}, {"special_tokens_map.json": '{"eos_token": "<|mask|>"}'}),
        (
            {"chat_template": [{"name": "default", "template": "x"}]},
            {"chat_template.jinja": "{{ eos_token }} of a file"},
        ),
    ],
    ids=["as it is", "typed", "listed", "decoder", "template file"],
)
def test_an_ordinary_tokenizer_is_that_of_transformers(
    changes: dict[str, Any], files: dict[str, str], tmp_path: Path
) -> None:
    if "added_tokens_decoder" in changes:
        changes = {"added_tokens_decoder": {str(end_id()): END}}
    folder = folder_with(tmp_path, changes, files)
    plain = open_plain(folder)
    assert plain is not None
    ours, theirs = Tokenizer(plain), Tokenizer(PreTrainedTokenizerFast.from_pretrained(str(folder)))
    for name in ("eos_token_ids", "mask_token_id", "vocab_size", "has_chat_template"):
        assert getattr(ours, name) == getattr(theirs, name)
    assert ours._fast.special_tokens_map == theirs._fast.special_tokens_map
    for text in ("Count from 3 to 9.", "<|im_start|>user\n é\u0301 😀 <|endoftext|>", "", "  two  spaces\t"):
        assert ours.encode(text) == theirs.encode(text)
        assert ours.decode(ours.encode(text)) == theirs.decode(theirs.encode(text))
    assert ours.apply_chat_template(MESSAGES, tokenize=False) == theirs.apply_chat_template(MESSAGES, tokenize=False)


@pytest.mark.parametrize(
    ("changes", "files"),
    [
        ({"eos_token": "<|new|>"}, {}),
        ({"eos_token": END}, {}),
        ({"eos_token": "Count"}, {}),
        ({"additional_special_tokens": ["<|new|>"]}, {}),
        ({"added_tokens_decoder": {"3": END}}, {}),
        ({"added_tokens_decoder": {"0": {**END, "lstrip": True}}}, {}),
        ({"split_special_tokens": True}, {}),
        ({"add_prefix_space": True}, {}),
        ({"add_bos_token": True}, {}),
        ({"image_token": "<|im_end|>"}, {}),
        ({"something_new": 1}, {}),
        ({}, {"special_tokens_map.json": '{"eos_token": "<|mask|>"}'}),
        ({}, {"added_tokens.json": "{}"}),
    ],
)
def test_what_the_settings_would_change_is_left_to_transformers(
    changes: dict[str, Any], files: dict[str, str], tmp_path: Path
) -> None:
    assert open_plain(folder_with(tmp_path, changes, files)) is None


def test_a_model_is_loaded_without_transformers_and_without_the_compiler_of_torch() -> None:
    code = "import sys; from wedlm_core import LLM; LLM('tiny')\n"
    code += "print({'transformers', 'torch._dynamo'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
