"""What a checkpoint folder holds, and whether that is what its ``config.json`` describes. Imports no torch.

Only headers of the weights are read: each tensor's name, shape, dtype and place, against the length of its file. So
this is quick for a model of any size, and tells what :func:`wedlm_core.model.weights.load_model` would refuse.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import NoReturn

from wedlm_core.checks import is_whole
from wedlm_core.config import ModelConfig
from wedlm_core.config.model import id_tuple
from wedlm_core.errors import WeightsError, explain, first_line
from wedlm_core.model.checkpoint_files import INDEX_FILE, files_by_tensor, opened, read_json
from wedlm_core.model.expected_tensors import expected_tensors

__all__ = ["Checkpoint", "load_config", "read_checkpoint", "refuse_tensors"]

_DERIVED = "rotary_emb.inv_freq"  # some old checkpoints store this; it follows from the configuration
_LISTED = 5  # most problems listed per kind; the rest is counted
_FLOATS = ("F64", "F32", "F16", "BF16")


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A checked folder: its configuration, and the file of each tensor."""

    folder: Path
    config: ModelConfig
    files: Mapping[str, Path]


def read_checkpoint(folder: str | os.PathLike[str]) -> Checkpoint:
    """Read configuration and headers of a folder in Hugging Face layout.

    Raises:
        WeightsError: files are absent or damaged; or tensors are missing, misshapen, of a wrong dtype or unexpected.
            One message lists all of them.
        ConfigError: the configuration describes a model this package does not implement.
    """
    folder = Path(folder)
    config, files = load_config(folder), files_by_tensor(folder)
    _check_tensors(folder, config, files)
    return Checkpoint(folder=folder, config=config, files=files)


def load_config(folder: str | os.PathLike[str]) -> ModelConfig:
    """Read ``config.json``, completed from the generation and tokenizer configurations.

    End-of-sequence ids are the union of ``config.json`` and ``generation_config.json``. If ``config.json`` has no mask
    id, it is that of ``generation_config.json``, else the tokenizer's mask token.

    Raises:
        WeightsError: a file is missing or is not JSON.
        ConfigError: the configuration describes a model this package does not implement.
    """
    folder = Path(folder)
    raw = read_json(folder / "config.json", required=True)
    generation = read_json(folder / "generation_config.json")
    mask = next((source["mask_token_id"] for source in (raw, generation) if source.get("mask_token_id") is not None),
                None)  # fmt: skip
    config = ModelConfig.from_hf(raw, mask_token_id=mask if mask is not None else _tokenizer_mask_id(folder))
    more = id_tuple("eos_token_id", generation.get("eos_token_id"))
    return replace(config, eos_token_ids=tuple(dict.fromkeys(config.eos_token_ids + more)))


def _tokenizer_mask_id(folder: Path) -> int | None:
    """Id of the mask token in the tokenizer's configuration; None if there is none, or no such token.

    Raises:
        WeightsError: the tokenizer's files do not have the format that tokenizers write.
    """
    settings = read_json(folder / "tokenizer_config.json")
    token = settings.get("mask_token")
    text = token.get("content") if isinstance(token, dict) else token
    if text is None:
        return None
    try:
        for key, entry in settings.get("added_tokens_decoder", {}).items():
            if entry.get("content") == text:
                return int(key)
        tokenizer = read_json(folder / "tokenizer.json")
        added = {entry["content"]: entry["id"] for entry in tokenizer.get("added_tokens", ())}
        vocab = tokenizer.get("model", {}).get("vocab", {})
        found = added.get(text, vocab.get(text) if isinstance(vocab, dict) else None)
    except (AttributeError, TypeError, KeyError, ValueError) as error:
        reason = f"its tokenizer's files are not as tokenizers write them ({type(error).__name__}: {first_line(error)})"
        raise WeightsError(explain("model", str(folder), reason, "Download them again.")) from error
    if found is not None and not is_whole(found):
        raise WeightsError(explain("mask_token", found, "its id is an integer of 0 or more", "Download it again."))
    return found


def _check_tensors(folder: Path, config: ModelConfig, files: Mapping[str, Path]) -> None:
    """Compare names, shapes and dtypes in the files' headers with those that ``config`` asks for."""
    expected = expected_tensors(config)
    tied_head = {"lm_head.weight"} if config.tie_word_embeddings else set()
    problems = [f"missing {name}" for name in expected if name not in files]
    problems += [f"unexpected {name}" for name in sorted(files)
                 if name not in expected and name not in tied_head and not name.endswith(_DERIVED)]  # fmt: skip
    for path in sorted(set(files.values())):
        with opened(path, framework="numpy") as handle:
            inside = set(handle.keys())
            for name in (n for n, home in files.items() if home == path and n in expected):
                if name not in inside:
                    problems.append(f"missing {name} ({INDEX_FILE} says it is in {path.name})")
                    continue
                found = handle.get_slice(name)
                shape, kind = found.get_shape(), found.get_dtype()
                if tuple(shape) != expected[name].shape:
                    problems.append(f"misshapen {name}: {shape}, needs {list(expected[name].shape)}")
                if kind not in _FLOATS:
                    problems.append(f"wrong kind {name}: {kind}, needs one of {_FLOATS} (quantised files are not read)")
    if problems:
        refuse_tensors(folder, problems)


def refuse_tensors(folder: Path, problems: list[str]) -> NoReturn:
    """Raise WeightsError with these problems (each begins with its kind), some of each kind."""
    lines = []
    for kind, found in groupby(problems, key=lambda problem: problem.split()[0]):
        own = list(found)
        lines += own[:_LISTED] + ([f"and {len(own) - _LISTED} more {kind}"] if len(own) > _LISTED else [])
    listing = "".join(f"\n  {line}" for line in lines)
    raise WeightsError(f"model={str(folder)!r}: the tensors are not those that config.json describes. "
                       f"Correct config.json or convert the checkpoint.{listing}")  # fmt: skip
