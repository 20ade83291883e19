"""The checkpoint to start from: its tokenizer is kept, and gets a mask token if there is room for one."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from testing.engine.models import random_decoder, write_tokenizer
from wedlm_core.errors import ConfigError
from wedlm_core.model.sources import resolve
from wedlm_core.tokenizer import Tokenizer
from wedlm_core.training.start import copy_tokenizer, special_ids

TALK = [{"role": "user", "content": "Count."}]


def checkpoint(folder: Path, *, spare: bool = True) -> Path:
    """An autoregressive checkpoint: neither its configuration nor its tokenizer names a mask token."""
    write_tokenizer(folder)
    raw = json.loads((folder / "tokenizer.json").read_text())
    raw["added_tokens"] = [token for token in raw["added_tokens"] if token["content"] != "<|mask|>"]
    raw["model"]["vocab"]["<|unused|>"] = raw["model"]["vocab"].pop("<|mask|>")
    (folder / "tokenizer.json").write_text(json.dumps(raw))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    del settings["mask_token"]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    model = random_decoder(qwen3=True, seed=0)
    size = Tokenizer.load(folder).vocab_size
    model.config = dataclasses.replace(model.config, mask_token_id=None, vocab_size=size + spare)
    config = json.dumps(model.config.to_hf())
    (folder / "config.json").write_text(config)
    return folder


def test_a_checkpoint_without_a_mask_token_gets_the_next_id_and_keeps_everything_else(tmp_path: Path) -> None:
    start = checkpoint(tmp_path / "start")
    (start / "chat_template.jinja").write_text("{{ messages[0].content }}!")
    (start / "model.safetensors").write_bytes(b"weights")
    before = Tokenizer.load(start)
    special = special_ids(start)
    assert (special.eos, special.mask) == (1, before.vocab_size)
    copy_tokenizer(start, tmp_path / "new")
    after = Tokenizer.load(tmp_path / "new")
    assert after.mask_token_id == special.mask
    assert after.eos_token_ids == before.eos_token_ids
    assert after.encode("Count from 3 to 9.<|im_end|>") == before.encode("Count from 3 to 9.<|im_end|>")
    assert after.apply_chat_template(TALK, tokenize=False) == "Count.!"
    assert not list((tmp_path / "new").glob("*.safetensors"))


def test_the_shipped_model_keeps_its_files_byte_for_byte(tmp_path: Path) -> None:
    tiny = resolve("tiny")
    copy_tokenizer(tiny, tmp_path / "new")
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        assert (tmp_path / "new" / name).read_bytes() == (tiny / name).read_bytes()
    assert special_ids(tiny).mask == Tokenizer.load(tiny).mask_token_id


def test_a_vocabulary_without_a_spare_row_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^model.start=.*no spare row for the mask token. Enlarge"):
        special_ids(checkpoint(tmp_path / "start", spare=False))


def test_a_checkpoint_without_an_end_is_refused(tmp_path: Path) -> None:
    start = checkpoint(tmp_path / "start")
    (start / "generation_config.json").unlink()
    settings = json.loads((start / "tokenizer_config.json").read_text())
    (start / "tokenizer_config.json").write_text(json.dumps({**settings, "eos_token": None}))
    raw = json.loads((start / "config.json").read_text())
    (start / "config.json").write_text(json.dumps({**raw, "eos_token_id": None}))
    with pytest.raises(ConfigError, match=r"^model.start=.*no end-of-sequence token. Name one"):
        special_ids(start)
