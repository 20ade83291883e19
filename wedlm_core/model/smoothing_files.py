"""Where a smoothing comes from: the file that a setting names, or the shipped sample, whose result is cached.

``EngineConfig.smoothing`` says which. A file holds one int8 tensor for each site of
:func:`wedlm_core.model.smoothing.expected_sites`.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from safetensors.torch import save

from wedlm_core.cache import one_at_a_time, writable_cache
from wedlm_core.errors import ConfigError, WeightsError, explain
from wedlm_core.file_digest import file_digest
from wedlm_core.model.checkpoint import Checkpoint, opened
from wedlm_core.model.smoothing import MOST, Smoothing, expected_sites
from wedlm_core.model.smoothing_names import SAMPLE, check_file, smoothing_path
from wedlm_core.model.smoothing_search import search

MOST_ROWS, MOST_TOKENS = 256, 64
"""Rows of a sample that are used at most, and tokens of each."""

Encode = Callable[[Sequence[str]], list[list[int]]]


def smoothing_of(
    setting: str, found: Checkpoint, encode: Encode, *, weight_dtype: str, head: bool, device: torch.device
) -> Smoothing | None:
    """The smoothing that ``EngineConfig.smoothing`` asks for.

    Args:
        setting: the option.
        found: the checkpoint.
        encode: texts to token ids.
        weight_dtype: as in ``EngineConfig``; "int8" or "int4" where there is smoothing.
        head: whether the output head is rounded too.
        device: for the shipped sample, if its result is not in the cache.

    Raises:
        ConfigError: there is no such file.
        WeightsError: the file is not a smoothing of this model.
    """
    if setting == "off":
        return None
    path = smoothing_path(setting, found.folder)
    if path is not None:
        return load_smoothing(path, found)
    cached = writable_cache("smoothing") / f"{_key(found, weight_dtype, head)}.safetensors"
    with one_at_a_time(f"smoothing-{cached.stem}"):
        if not _is_whole(cached):
            lines = SAMPLE.read_text(encoding="utf-8").splitlines()
            made = smooth_checkpoint(found, encode([json.loads(line) for line in lines]), weight_dtype,
                                     head=head, device=device)  # fmt: skip
            save_smoothing(made, cached)
    return load_smoothing(cached, found)


def _is_whole(path: Path) -> bool:
    try:
        check_file(path)
    except (ConfigError, WeightsError):
        return False
    return True


def smooth_checkpoint(
    found: Checkpoint,
    sequences: Sequence[Sequence[int]],
    weight_dtype: str,
    *,
    head: bool = True,
    device: torch.device | str = "cpu",
) -> Smoothing:
    """The smoothing of a checkpoint from token ids of a sample; see :func:`wedlm_core.model.smoothing_search.search`.

    Raises:
        ConfigError: the sample has no tokens, or some that the model does not know.
    """
    kept = [list(sequence[:MOST_TOKENS]) for sequence in sequences if len(sequence)][:MOST_ROWS]
    top = max((max(sequence) for sequence in kept), default=-1)
    if not 0 <= top < found.config.vocab_size:
        rule = f"needs token ids below {found.config.vocab_size}, the model's vocabulary"
        raise ConfigError(explain("sample", top if kept else "no tokens", rule, "Give rows of text."))
    return search(found, kept, weight_dtype, head=head, device=device)


def save_smoothing(smoothing: Smoothing, path: str | os.PathLike[str]) -> None:
    """Write a file that :func:`load_smoothing` reads; a reader sees all of it or none."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    partial.write_bytes(save(smoothing.exponents))
    os.replace(partial, path)


def load_smoothing(path: str | os.PathLike[str], found: Checkpoint) -> Smoothing:
    """Read a file of :func:`save_smoothing`.

    Raises:
        ConfigError: there is no such file.
        WeightsError: it is not a smoothing of this model.
    """
    path, sites = Path(path), expected_sites(found.config)
    check_file(path)
    with opened(path) as handle:
        exponents = {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118  # no mapping
    for name, each in exponents.items():
        size = sites.get(name)
        fits = each.dtype == torch.int8 and tuple(each.shape) == (size,) and bool((each.abs() <= MOST).all())
        if not fits:
            rule = f"{name} {list(each.shape)} does not fit smoothing of this model, {size} small integers"
            raise WeightsError(explain("smoothing", str(path), rule, "Make it again from this model."))
    missing = [name for name in sites if name not in exponents and name != "head"]
    if missing:
        raise WeightsError(explain("smoothing", str(path), f"{missing[0]} is missing", "Make it again."))
    return Smoothing(found.config, exponents)


def _key(found: Checkpoint, weight_dtype: str, head: bool) -> str:
    """A name for the result of the shipped sample: of the weights, the sample, and the method."""
    digest = hashlib.blake2b(f"{weight_dtype} {head} {file_digest(SAMPLE)}".encode(), digest_size=12)
    digest.update(json.dumps(found.config.to_hf(), sort_keys=True).encode())
    for module in ("smoothing_search.py", "int8.py", "int4.py"):
        digest.update((Path(__file__).parent / module).read_bytes())
    adapter = () if found.adapter is None else found.adapter.files
    for path in (*sorted({*found.files.values(), found.folder / "tokenizer.json"}), *adapter):
        digest.update(file_digest(path).encode())
    return digest.hexdigest()
