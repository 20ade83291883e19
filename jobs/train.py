"""Train a model from a recipe.

Example:
  wedlm-batch train --recipe tiny --output runs/tiny

After an interruption the same command continues from the last checkpoint. Under torchrun every process computes its
share of each step.

Exit status:
  0  trained
  1  it failed; the same command continues from the last checkpoint
  2  the recipe or a setting is at fault
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import os
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist
import yaml
from tokenizers import AddedToken, Tokenizer

from jobs.cli import ERRORS, Parser, refused
from jobs.quiet_end import end_quietly
from wedlm_core.config import ModelConfig
from wedlm_core.errors import ConfigError, explain
from wedlm_core.model.decoder import Decoder
from wedlm_core.model.weights import load_model, save_model
from wedlm_core.training import corpus
from wedlm_core.training.bpe import MASK, save_tokenizer, train_tokenizer
from wedlm_core.training.curves import plot_curves
from wedlm_core.training.examples import Vocabulary
from wedlm_core.training.recipe import Recipe, load_recipe, parse_recipe
from wedlm_core.training.trainer import CHECKPOINT, CURVE, Trainer

RECIPES = Path(__file__).parent / "recipes"


def build_tokenizer(recipe: Recipe) -> Tokenizer:
    """The recipe's tokenizer: of the checkpoint to start from, or trained on the corpus."""
    if recipe.model.start is not None:
        tokenizer = Tokenizer.from_file(str(Path(recipe.model.start) / "tokenizer.json"))
        if tokenizer.token_to_id(MASK) is None:  # an autoregressive checkpoint; its embedding has spare rows
            tokenizer.add_special_tokens([AddedToken(MASK, special=True, normalized=False)])
        return tokenizer
    problems = corpus.stream(recipe.run.seed, "train", recipe.data.families)
    drawn = list(itertools.islice(problems, recipe.data.tokenizer_texts))
    return train_tokenizer((f"{p.prompt}\n{p.answer}\nuser\nassistant\n" for p in drawn), recipe.model.vocab_size)


def build_model(recipe: Recipe, vocabulary: Vocabulary, device: torch.device) -> Decoder:
    """The decoder to train: from a checkpoint folder, or with random weights of the recipe's seed."""
    shape = dataclasses.asdict(recipe.model)
    start = shape.pop("start")
    if start is not None:
        model = load_model(Path(start), device=device, dtype=torch.float32)
        if vocabulary.mask >= model.config.vocab_size:
            rule = f"its vocabulary of {model.config.vocab_size} ids has no spare row for the mask token"
            raise ConfigError(explain("model.start", start, rule, "Enlarge its embedding first."))
        model.config = dataclasses.replace(model.config, mask_token_id=vocabulary.mask)
        return model.requires_grad_(True).train()
    config = ModelConfig(
        **shape, tie_word_embeddings=True, mask_token_id=vocabulary.mask, pad_token_id=vocabulary.pad,
        eos_token_ids=(vocabulary.eos,),
    )  # fmt: skip
    model = Decoder(config)
    model.init_weights(torch.Generator().manual_seed(recipe.run.seed))
    return model.to(device)


def _arguments(argv: Sequence[str] | None, prog: str) -> argparse.Namespace:
    parser = Parser(prog, __doc__)
    parser.add_argument("--recipe", default="tiny", help="Use this shipped recipe, or this YAML file (tiny).")
    parser.add_argument("--output", type=Path, default=None, help="Write the run to this folder (runs/RECIPE).")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="Set a field of the recipe, such as run.steps=100 (repeatable).",
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu",
                        help="Train on this device (cuda if there is one).")  # fmt: skip
    return parser.parse_args(argv)


def read_recipe(name: str, overrides: list[str]) -> Recipe:
    """A shipped recipe by name, or one by path, with ``field=value`` overrides (values are YAML)."""
    path = Path(name) if name.endswith((".yaml", ".yml")) else RECIPES / f"{name}.yaml"
    if not path.is_file():
        shipped = sorted(p.stem for p in RECIPES.glob("*.yaml"))
        raise ConfigError(explain("recipe", name, f"no file {path}", f"Shipped are {shipped}."))
    recipe = dataclasses.asdict(load_recipe(path))
    for override in overrides:
        field, _, value = override.partition("=")
        *sections, last = field.split(".")
        place = recipe
        for section in sections:
            place = place.setdefault(section, {})  # an unknown section is refused below, by name
        place[last] = yaml.safe_load(value)
    return parse_recipe(recipe)


def main(argv: Sequence[str] | None = None, prog: str = "python -m jobs.train") -> int:
    """Train, then write the model folder ``<output>/model``; the exit status (2: a setting is at fault)."""
    arguments = _arguments(argv, prog)
    try:
        _train(arguments)
    except ERRORS as error:
        return refused(error)
    return 0


def _train(arguments: argparse.Namespace) -> None:
    recipe = read_recipe(arguments.recipe, arguments.set)
    folder = arguments.output or Path("runs") / Path(arguments.recipe).stem
    device = torch.device(arguments.device)
    torch.set_num_threads(recipe.run.threads)
    if "RANK" in os.environ:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
        if device.type == "cuda":
            device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
            torch.cuda.set_device(device)  # NCCL and the random generator use the current device
    first = not dist.is_initialized() or dist.get_rank() == 0
    kept = folder / "model" / "tokenizer.json"
    # A run that goes on keeps the tokenizer it began with, whatever the corpus has become since.
    going_on = (folder / CHECKPOINT).is_file() and kept.is_file()
    tokenizer = Tokenizer.from_file(str(kept)) if going_on else build_tokenizer(recipe)
    vocabulary = Vocabulary(tokenizer)
    model = build_model(recipe, vocabulary, device)
    trainer = Trainer(model, vocabulary, recipe, folder, lambda line: print(line, flush=True))
    if first:
        save_tokenizer(tokenizer, folder / "model", max_length=recipe.model.max_position_embeddings)
        print(f"{sum(p.numel() for p in model.parameters())} parameters, vocabulary {tokenizer.get_vocab_size()}")
    if trainer.resume():
        print(f"going on from step {trainer.step}", flush=True)
    trainer.train()
    if first:
        save_model(model, folder / "model")
        _plot(folder, f"{arguments.recipe}: {trainer.step} steps")
        print(f"model written to {folder / 'model'}")
    if dist.is_initialized():
        dist.destroy_process_group()


def _plot(folder: Path, title: str) -> None:
    try:
        plot_curves(folder / CURVE, folder / "curve.png", title)
    except ImportError as error:
        print(f"no picture of {folder / CURVE} ({error}): pip install matplotlib")


if __name__ == "__main__":
    raise SystemExit(end_quietly(main, "train"))
