"""Recipes: everything that determines a trained model, as frozen dataclasses that are read from YAML."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from wedlm_core.errors import ConfigError, explain
from wedlm_core.training.masking import LossWeights, MaskingConfig


@dataclass(frozen=True, kw_only=True)
class ModelRecipe:
    """``start``: the folder, URL or hub id of the checkpoint to continue from."""

    start: str | None = None


@dataclass(frozen=True, kw_only=True)
class DataRecipe:
    """Batches: ``rows`` packed rows of ``length`` tokens, both streams together.

    Attributes:
        files: inputs of a run (files, folders, URLs, datasets of the hub), or outputs of runs as they are.
        prompt_column: column of prompts (prompt), of files.
        answer_column: column of answers, of files; None takes conversations, and every turn of the assistant in them.
        messages_column: column of conversations (messages); with ``answer_column``, of prompts.
        prompts: further settings of a run that make prompts or read files, such as ``prompt_template``.
        held_out: share of the prompts that is not trained on, by a hash of the prompt.
        held_out_files: as ``files``, but not trained on; rows of ``files`` with the same prompts are left out.
    """

    rows: int = 8
    length: int = 256
    files: tuple[str, ...] | None = None
    prompt_column: str | None = None
    answer_column: str | None = None
    messages_column: str | None = None
    prompts: Mapping[str, Any] = field(default_factory=dict)
    held_out: float = 0.05
    held_out_files: tuple[str, ...] | None = None
    masking: MaskingConfig = field(default_factory=MaskingConfig)
    loss: LossWeights = field(default_factory=LossWeights)


@dataclass(frozen=True, kw_only=True)
class OptimRecipe:
    """Optimiser and schedule: linear warm-up, then cosine (or linear) decay to ``final_share`` of the peak.

    ``matrices="muon"`` gives Muon to the matrices inside layers and AdamW to everything else.
    """

    matrices: Literal["muon", "adamw"] = "muon"
    muon_lr: float = 0.02
    muon_weight_decay: float = 0.0
    lr: float = 3e-3
    betas: tuple[float, float] = (0.9, 0.98)
    weight_decay: float = 0.0
    clip_norm: float = 1.0
    warmup_steps: int = 100
    decay: Literal["cosine", "linear"] = "cosine"
    final_share: float = 0.02
    accumulate: int = 1


@dataclass(frozen=True, kw_only=True)
class RunRecipe:
    """Length and settings of a run.

    Attributes:
        seed: of the order of examples, and of their blocks and masks.
        steps: optimiser steps; the schedule spans them.
        epochs: passes over the examples, in place of ``steps``; or None.
        max_minutes: wall-clock budget, or None. The schedule then follows steps or minutes, whichever is further
            advanced, so that the learning rate has decayed when the time is over. Such a run is not
            reproducible bit for bit.
        bf16: autocast to bfloat16; None does on GPUs. It is faster there and on CPUs with bfloat16 units.
        compile: compile the decoder with torch.compile (fixed shapes).
        threads: CPU threads.
        log_every, checkpoint_every, validate_every: in steps; ``validate_every=0`` never validates.
        evaluation_rows: held-out examples, at most, that the trained model generates at the end.
    """

    seed: int = 0
    steps: int = 1000
    epochs: int | None = None
    max_minutes: float | None = None
    bf16: bool | None = False
    compile: bool = False
    threads: int = 1
    log_every: int = 20
    checkpoint_every: int = 500
    validate_every: int = 0
    evaluation_rows: int = 200


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """All settings of a training run."""

    model: ModelRecipe = field(default_factory=ModelRecipe)
    data: DataRecipe = field(default_factory=DataRecipe)
    optim: OptimRecipe = field(default_factory=OptimRecipe)
    run: RunRecipe = field(default_factory=RunRecipe)


_RANGES: Mapping[str, tuple[float, float]] = {
    **dict.fromkeys(("rows", "length", "steps", "epochs", "threads", "log_every", "checkpoint_every", "accumulate",
                     "block_sizes", "max_tail"), (1, 2**31)),
    **dict.fromkeys(("seed", "validate_every", "evaluation_rows", "warmup_steps"), (0, 2**31)),
    **dict.fromkeys(("held_out", "full_share", "final_share"), (0, 1)),
    **dict.fromkeys(("lr", "muon_lr", "weight_decay", "muon_weight_decay", "answer", "prompt", "end", "masked"),
                    (0, 1e6)),
    "betas": (0, 0.999999), "clip_norm": (1e-6, 1e6), "max_minutes": (1e-6, 1e9),
}  # fmt: skip
"""The least and the highest value of fields with numbers, by name."""


def _check_range(name: str, value: Any, where: str) -> None:
    least, most = _RANGES.get(name, (-math.inf, math.inf))
    for number in value if isinstance(value, tuple) else (value,):
        if isinstance(number, (int, float)) and not least <= number <= most:
            raise ConfigError(explain(where, value, f"a number from {least} to {most}", "Correct the recipe."))


def _scalar(value: Any, hint: Any, where: str) -> Any:
    """Check a leaf against its annotation; an integer is accepted as a float, a list as a tuple."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        return _scalar(value, next(a for a in arguments if a is not type(None)), where)
    if origin is Literal:
        fits = value in arguments
    elif origin is tuple:
        fits = isinstance(value, (list, tuple)) and len(value) in (
            range(1, 1000) if arguments[-1] is ... else (len(arguments),)
        )
        value = tuple(_scalar(item, arguments[0], where) for item in value) if fits else value
    elif hint is float:
        fits = isinstance(value, (int, float)) and not isinstance(value, bool)
        value = float(value) if fits else value
    elif isinstance(hint, type):
        fits = isinstance(value, hint) and (hint is bool or not isinstance(value, bool))
    else:
        fits = isinstance(value, Mapping)
    if not fits:
        raise ConfigError(explain(where, value, f"expected {hint}", "Correct the recipe."))
    return value


def _build(kind: Any, raw: Any, where: str) -> Any:
    if not isinstance(raw, Mapping):
        raise ConfigError(explain(where, raw, "expected a mapping of fields", "Correct the recipe."))
    hints = typing.get_type_hints(kind)
    unknown = sorted(set(raw) - set(hints))
    if unknown:
        raise ConfigError(explain(where, unknown, f"unknown fields; known are {sorted(hints)}", "Correct the recipe."))
    values = {}
    for name, value in raw.items():
        inner, place = hints[name], f"{where}.{name}"
        values[name] = _build(inner, value, place) if dataclasses.is_dataclass(inner) else _scalar(value, inner, place)
        _check_range(name, values[name], place)
    return kind(**values)


def parse_recipe(raw: Mapping[str, Any]) -> Recipe:
    """A recipe from nested mappings.

    Raises:
        ConfigError: an unknown field, a value of the wrong type or a number out of its range; the message says where.
    """
    recipe: Recipe = _build(Recipe, raw, "recipe")
    return recipe


def load_recipe(path: Path) -> Recipe:
    """Read a YAML recipe; see :func:`parse_recipe`."""
    return parse_recipe(yaml.safe_load(path.read_text(encoding="utf-8")) or {})
