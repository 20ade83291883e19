"""Opens the tokenizers of ordinary model folders without transformers, whose import costs most of a second.

A folder is ordinary if its ``tokenizer.json`` holds everything: ``tokenizer_config.json`` then only names existing
tokens. :func:`open_plain` returns None for any other folder, which transformers opens. For ordinary ones both give the
same ids and texts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_LISTS = ("additional_special_tokens", "extra_special_tokens")
_WITHOUT_EFFECT = frozenset({
    "backend", "chat_template", "clean_up_tokenization_spaces", "errors", "is_local",
    "model_input_names", "model_max_length", "name_or_path", "padding_side", "processor_class", "tokenizer_class",
    "truncation_side",
})  # fmt: skip
"""Settings that change nothing here: texts are encoded one by one and never truncated."""
_MUST_BE_OFF = ("add_bos_token", "add_eos_token", "add_prefix_space", "split_special_tokens")
_OTHER_FILES = ("added_tokens.json", "additional_chat_templates")
_FLAGS = ("content", "single_word", "lstrip", "rstrip", "normalized", "special")


@dataclass(frozen=True, kw_only=True)
class PlainTokenizer:
    """The part of a tokenizer that :class:`wedlm_core.tokenizer.Tokenizer` needs; names as in transformers."""

    backend_tokenizer: Backend
    special_tokens_map: Mapping[str, str]
    chat_template: Any

    @property
    def eos_token_id(self) -> int | None:
        """Id of the end-of-sequence token, or None."""
        return self._id("eos_token")

    @property
    def mask_token_id(self) -> int | None:
        """Id of the mask token, or None."""
        return self._id("mask_token")

    def __len__(self) -> int:
        return int(self.backend_tokenizer.get_vocab_size(with_added_tokens=True))

    def _id(self, name: str) -> int | None:
        token = self.special_tokens_map.get(name)
        return None if token is None else self.backend_tokenizer.token_to_id(token)


def open_plain(folder: Path) -> PlainTokenizer | None:
    """The tokenizer of an ordinary folder; None if it takes transformers to open it.

    Raises:
        Exception: ``tokenizer.json`` is damaged (the tokenizers library raises it bare).
    """
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
    if not isinstance(config, dict) or not _is_ordinary(folder, config):
        return None
    backend = Backend.from_file(str(folder / "tokenizer.json"))
    if backend.truncation is not None or backend.padding is not None:
        return None
    there = {token.content: {flag: getattr(token, flag) for flag in _FLAGS} | {"id": number}
             for number, token in backend.get_added_tokens_decoder().items()}  # fmt: skip
    named = {name: _content(config[name]) for name in _NAMES if config.get(name) is not None}
    listed = [_content(token) for name in _LISTS for token in config.get(name) or ()]
    if not all(token is not None and there.get(token, {}).get("special") for token in [*named.values(), *listed]):
        return None
    for number, token in (config.get("added_tokens_decoder") or {}).items():
        if there.get(token.get("content")) != {**{flag: token.get(flag) for flag in _FLAGS}, "id": int(number)}:
            return None
    template = folder / "chat_template.jinja"
    return PlainTokenizer(
        backend_tokenizer=backend,
        special_tokens_map={name: token for name, token in named.items() if token is not None},
        chat_template=template.read_text(encoding="utf-8") if template.is_file() else config.get("chat_template"),
    )


def _is_ordinary(folder: Path, config: Mapping[str, Any]) -> bool:
    """Whether a folder's settings only name tokens, as far as they alone show it."""
    known = {*_NAMES, *_LISTS, *_WITHOUT_EFFECT, *_MUST_BE_OFF, "added_tokens_decoder"}
    if set(config) - known or any(config.get(name) for name in _MUST_BE_OFF):
        return False
    decoder = config.get("added_tokens_decoder")
    if decoder is None and (folder / "special_tokens_map.json").exists():
        return False  # else transformers ignores that file
    if not isinstance(decoder, dict | None) or not all(isinstance(token, dict) for token in (decoder or {}).values()):
        return False
    lists = all(isinstance(config.get(name), list | None) for name in _LISTS)
    return lists and not any((folder / name).exists() for name in _OTHER_FILES)


def _content(token: Any) -> str | None:
    """The text of a token, which is written alone or with its flags; None if it is written otherwise."""
    typed = isinstance(token, dict) and token.get("__type") == "AddedToken"
    found = token.get("content") if typed else token
    return found if isinstance(found, str) else None
