"""Everything that training the shipped model begins with: a tokenizer, random weights, and problems as rows.

Example:
  python -m testing.toy.start runs/toy
  wedlm-batch train --recipe testing/toy/tiny.yaml --output runs/tiny

Half of the prompts are in the chat template. The folder is the same every time.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import nn

from testing.toy import Split, stream
from wedlm_core.config import ModelConfig
from wedlm_core.model.decoder import Decoder
from wedlm_core.model.weights import save_model

WEIGHTS = {
    "counting": 3.0, "countdown": 1.6, "copying": 1.2, "repeating": 0.8, "pattern": 0.5, "bullets": 0.6,
    "alphabet": 0.5,
    "addition": 1.3, "subtraction": 1.6, "equations": 2.4, "word_problems": 1.8, "sorting": 1.2, "extraction": 0.6,
    "reversing": 0.9, "tally": 0.5,
    "stories": 0.9, "descriptions": 0.5, "letters": 0.5, "lists": 0.9,
}  # fmt: skip
"""Shares of the families: means over the run of the shipped model, whose shares changed at step 5000."""
_POSITIONS, _VOCABULARY = 1024, 1024
_TOKENIZER_TEXTS = 20_000

PAD, START, EOS, MASK = "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>"

_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

# Words without their leading space, so that a word has the same token everywhere (this helps copying); single digits
# (for column arithmetic); punctuation with the spaces around it; line ends; runs of spaces.
_PIECES = r"[A-Za-z]+|[0-9]| ?[^A-Za-z0-9\s]+ ?|\n| +|\s"


def chat_prompt(prompt: str) -> str:
    """A prompt in the chat template, without the line end that the tokenizer adds to any prompt."""
    return f"{START}user\n{prompt}{EOS}\n{START}assistant"


def _rows(seed: int, split: Split) -> Iterator[dict[str, str]]:
    """Prompts and answers without end, every second prompt in the chat template."""
    for number, problem in enumerate(stream(seed, split, WEIGHTS)):
        yield {"prompt": chat_prompt(problem.prompt) if number % 2 else problem.prompt, "answer": problem.answer}


def _train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
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


def _save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
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
        "model_max_length": _POSITIONS,
        "clean_up_tokenization_spaces": False,
        "chat_template": _TEMPLATE,
    }
    eos, pad = tokenizer.token_to_id(EOS), tokenizer.token_to_id(PAD)
    generation = {"eos_token_id": [eos], "pad_token_id": pad, "do_sample": False}
    for name, value in (("tokenizer_config.json", config), ("generation_config.json", generation)):
        (folder / name).write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def _new_model(tokenizer: Tokenizer, seed: int) -> Decoder:
    """The shipped model's decoder with random weights; projections into the residual are scaled by depth."""
    known = tokenizer.get_vocab()
    eos, mask, pad = (known[token] for token in (EOS, MASK, PAD))
    model = Decoder(ModelConfig(
        vocab_size=_VOCABULARY, hidden_size=128, intermediate_size=384, num_hidden_layers=5, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, max_position_embeddings=_POSITIONS, rope_theta=10_000.0,
        tie_word_embeddings=True, mask_token_id=mask, pad_token_id=pad, eos_token_ids=(eos,),
    ))  # fmt: skip
    generator, std = torch.Generator().manual_seed(seed), model.config.initializer_range
    for name, parameter in model.named_parameters():
        if not name.endswith("norm.weight"):
            shrink = (2 * len(model.layers)) ** 0.5 if name.endswith(("o_proj.weight", "down_proj.weight")) else 1.0
            nn.init.normal_(parameter, std=std / shrink, generator=generator)
    return model


def write_start(folder: Path, problems: int, seed: int = 0) -> None:
    """Write ``start``, the model to train, and ``problems.jsonl`` and ``held-out.jsonl``."""
    drawn = itertools.islice(stream(seed, "train", WEIGHTS), _TOKENIZER_TEXTS)
    tokenizer = _train_tokenizer((f"{one.prompt}\n{one.answer}\nuser\nassistant\n" for one in drawn), _VOCABULARY)
    save_model(_new_model(tokenizer, seed), folder / "start")
    _save_tokenizer(tokenizer, folder / "start")
    splits: tuple[tuple[str, Split, int], ...] = (("problems", "train", problems), ("held-out", "validation", 200))
    for name, split, count in splits:
        with (folder / f"{name}.jsonl").open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in itertools.islice(_rows(seed, split), count))


def main() -> None:
    """Write the folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("runs/toy"))
    parser.add_argument("--problems", type=int, default=200_000, help="rows; the recipe reads each at most once")
    arguments = parser.parse_args()
    write_start(arguments.folder, arguments.problems)


if __name__ == "__main__":
    main()
