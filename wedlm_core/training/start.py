"""The checkpoint that training starts from: its special ids, and its tokenizer's files for the new model."""

from __future__ import annotations

import json
import shutil
from fnmatch import fnmatch
from pathlib import Path

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from wedlm_core.errors import ConfigError, explain
from wedlm_core.model.checkpoint import load_config, read_json
from wedlm_core.model.sources import MODEL_FILES
from wedlm_core.tokenizer import Tokenizer
from wedlm_core.training.examples import SpecialIds

MASK = "<|mask|>"
"""The mask token of a model that has none."""
_OTHERS = ("config.json", "*.safetensors", "*.safetensors.index.json")
"""Files of a model that are not its tokenizer's: those of its weights."""


def special_ids(folder: Path) -> SpecialIds:
    """The ids of a checkpoint: its first end-of-sequence token, and its mask token or the id that will be.

    Raises:
        ConfigError: it has no end-of-sequence token, or no room for a mask token.
        WeightsError: its files cannot be read.
    """
    config, tokenizer = load_config(folder), Tokenizer.load(folder)
    ends = tokenizer.eos_token_ids or config.eos_token_ids
    if not ends:
        rule = "it has no end-of-sequence token"
        raise ConfigError(explain("model.start", str(folder), rule, "Name one in its generation_config.json."))
    mask = _own_mask(folder)
    return SpecialIds(eos=ends[0], mask=with_mask(folder)[1] if mask is None else mask)


def with_mask(folder: Path) -> tuple[Backend, int]:
    """The tokenizer of a folder with a mask token, and the id of that.

    Raises:
        ConfigError: no row of the model's embedding is left for it.
    """
    backend, size = Backend.from_file(str(folder / "tokenizer.json")), load_config(folder).vocab_size
    backend.add_special_tokens([AddedToken(MASK, special=True, normalized=False)])
    mask = backend.token_to_id(MASK)
    if mask is None or mask >= size:
        rule = f"its vocabulary of {size} ids has no spare row for the mask token"
        raise ConfigError(explain("model.start", str(folder), rule, "Enlarge its embedding first."))
    return backend, mask


def copy_tokenizer(start: Path, folder: Path) -> None:
    """Copy the files of a checkpoint's tokenizer, its chat template included, and name the mask token in them."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in start.iterdir():
        if any(fnmatch(file.name, own) for own in MODEL_FILES) and not any(fnmatch(file.name, own) for own in _OTHERS):
            shutil.copyfile(file, folder / file.name)
    if _own_mask(start) is None:
        with_mask(start)[0].save(str(folder / "tokenizer.json"))
        config = read_json(start / "tokenizer_config.json") | {"mask_token": MASK}
        (folder / "tokenizer_config.json").write_text(
            json.dumps(config, indent=2, ensure_ascii=False), encoding="utf-8"
        )


def _own_mask(folder: Path) -> int | None:
    own = load_config(folder).mask_token_id
    return Tokenizer.load(folder).mask_token_id if own is None else own
