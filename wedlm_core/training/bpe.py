"""Train and save the byte-level BPE tokenizer of the shipped model."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

PAD, START, EOS, MASK = "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>"

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

# Words without their leading space, so that a word has the same token everywhere (this helps copying); single digits
# (for column arithmetic); punctuation with the spaces around it; line ends; runs of spaces.
_PIECES = r"[A-Za-z]+|[0-9]| ?[^A-Za-z0-9\s]+ ?|\n| +|\s"


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Byte-level BPE over ``texts`` with all 256 bytes, so that any text round-trips.

    Args:
        texts: training texts.
        vocab_size: number of ids, special tokens included; fewer if the texts allow no more merges.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(_PIECES), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])  # fmt: skip
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in (PAD, START, EOS, MASK)],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path, *, max_length: int) -> None:
    """Write ``tokenizer.json``, ``tokenizer_config.json`` and ``generation_config.json`` into ``folder``.

    A line end is added to each prompt that is in no chat template, as in training.
    """
    line = tokenizer.encode("\n", add_special_tokens=False)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {line.tokens[0]}", special_tokens=[(line.tokens[0], line.ids[0])]
    )
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": EOS,
        "pad_token": PAD,
        "mask_token": MASK,
        "model_max_length": max_length,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    eos, pad = tokenizer.token_to_id(EOS), tokenizer.token_to_id(PAD)
    generation = {"eos_token_id": [eos], "pad_token_id": pad, "do_sample": False}
    for name, value in (("tokenizer_config.json", config), ("generation_config.json", generation)):
        (folder / name).write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
