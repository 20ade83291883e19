"""The user's rows in a training run: its examples, and the evaluation of the new model on those that were held out.

Rows are read once, into the run's folder, so that a continued run has the same examples.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TextIO

import numpy as np

from pipeline.commands.answered_rows import answered_rows
from wedlm_core.errors import ConfigError, explain
from wedlm_core.llm import LLM
from wedlm_core.training.examples import Example, ExampleFile, write_examples
from wedlm_core.training.recipe import Recipe
from wedlm_core.types import Generation, SamplingParams

DATA = "data"
"""Folder of the examples in that of a run."""
_RECORD, _LEFT_OUT = "recipe.json", "left-out.jsonl"
_OF_ROWS = ("files", "prompt_column", "answer_column", "messages_column", "prompts", "held_out", "held_out_files",
            "length")  # fmt: skip
"""Fields of ``data`` that decide about the examples."""
_SHOWN = 3
"""Rows that are left out, in a message."""


def read_examples(recipe: Recipe, folder: Path, log: Callable[[str], None]) -> None:
    """Encode the recipe's rows into the run's folder, unless they are there.

    Rows that cannot be used are counted, and named in ``data/left-out.jsonl`` with their reasons.

    Raises:
        ConfigError: the run began with other rows, or no row can be trained on.
        PipelineError, WeDLMError: the rows or the model cannot be read.
    """
    wanted = {"start": recipe.model.start, **{name: getattr(recipe.data, name) for name in _OF_ROWS}}
    wanted = json.loads(json.dumps(wanted))
    record = folder / DATA / _RECORD
    if record.is_file():
        kept = json.loads(record.read_text(encoding="utf-8"))
        if differ := sorted(name for name in wanted if kept.get(name) != wanted[name]):
            rule = f"{record} has other values: the run began with other rows"
            raise ConfigError(explain("data", differ, rule, "Restore them, or train into another folder."))
        return
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{DATA}.", dir=folder) as name:
        made = Path(name) / DATA
        made.mkdir()
        with (made / _LEFT_OUT).open("w+", encoding="utf-8") as file:
            write_examples(made, _split(recipe, file))
            file.seek(0)
            left = [f"{one['row']}: {one['reason']}" for one in map(json.loads, itertools.islice(file, _SHOWN))]
            count = len(left) + sum(1 for _ in file)
        train, held_out = (len(ExampleFile(made, held_out=own)) for own in (False, True))
        if not train:
            first = f"; the first: {left[0].rstrip('.')}" if left else ""
            rule = f"no row can be trained on{first}"
            raise ConfigError(explain("data.files", recipe.data.files, rule, "Correct the rows or the settings."))
        (made / _RECORD).write_text(json.dumps(wanted, indent=1), encoding="utf-8")
        os.replace(made, folder / DATA)
    named = f" ({DATA}/{_LEFT_OUT}), such as {'; '.join(left)}" if left else ""
    log(f"{train} examples to train on, {held_out} held out, {count} left out{named}")


def _split(recipe: Recipe, left: TextIO) -> Iterator[tuple[Sequence[int], Sequence[int], bool]]:
    """The token ids of each example, and whether it is held out. Rows that are left out are written to ``left``."""
    data, held = recipe.data, set[bytes]()
    columns = {"prompt_column": data.prompt_column, "messages_column": data.messages_column}
    for place, is_held in [*((p, True) for p in data.held_out_files or ()), *((p, False) for p in data.files or ())]:
        row, prompt = "", b""
        found = answered_rows(
            place, model=str(recipe.model.start), length=data.length - 1, answer_column=data.answer_column,
            settings={**columns, **data.prompts},
        )  # fmt: skip
        for one in found:
            if one.fault is not None:
                _note(left, one.row, one.fault)
                continue
            if one.row != row:  # the turns of a conversation stay together
                row, prompt = one.row, hashlib.blake2b(np.array(one.prompt, np.int32).tobytes(), digest_size=8).digest()
            if is_held:
                held.add(prompt)
            elif prompt in held:
                _note(left, one.row, "its prompt is held out")
                continue
            drawn = data.held_out_files is None and int.from_bytes(prompt) < data.held_out * 2**64
            yield one.prompt, one.answer, is_held or drawn


def _note(left: TextIO, row: str, reason: str) -> None:
    left.write(json.dumps({"row": row, "reason": reason}, ensure_ascii=False) + "\n")


STRATEGIES = ("verified", "autoregressive")


def evaluate_model(
    model: Path | str, examples: Sequence[Example], *, length: int, device: str
) -> dict[str, float]:  # fmt: skip
    """Generate for the prompts of examples (one at least) greedily, one sequence at a time.

    Args:
        model: folder or name.
        examples: not trained on.
        length: tokens of prompt and text, at most.
        device: of the engine.

    Returns:
        ``examples``; how many are ``identical`` with both strategies and how many are the ``expected`` answer; of
        ``verified`` the ``acceptance`` of all drafts and ``mask_acceptance`` (shares), and ``tokens_per_forward``;
        ``tokens_per_second`` of both strategies, prompts included, and their ratio, ``gain``.

    Raises:
        WeightsError, ConfigError: the model cannot be loaded.
    """
    llm = LLM(str(model), device=device)
    made: dict[str, list[Generation]] = {name: [] for name in STRATEGIES}
    seconds = dict.fromkeys(STRATEGIES, 0.0)
    for name in STRATEGIES:  # kernels are compiled, and the costs of a step measured
        _generate(llm, examples[0], name, length)
    for example in examples:
        for name in STRATEGIES:  # verified first: it may copy from earlier texts, but not from this one's
            begun = time.perf_counter()
            made[name].append(_generate(llm, example, name, length))
            seconds[name] += time.perf_counter() - begun
    verified, plain = (made[name] for name in STRATEGIES)
    stats = [one.stats for one in verified]
    masks, accepted = sum(s.mask_drafts for s in stats), sum(s.mask_drafts_accepted for s in stats)
    copied, kept = sum(s.history_drafts for s in stats), sum(s.history_drafts_accepted for s in stats)
    tokens = sum(len(one.token_ids) for one in verified)
    answers = [llm.tokenizer.decode(example.answer) for example in examples]
    return {
        "examples": len(examples),
        "identical": sum(one.token_ids == other.token_ids for one, other in zip(verified, plain, strict=True)),
        "expected": sum(one.text == answer for one, answer in zip(verified, answers, strict=True)),
        "acceptance": (accepted + kept) / max(1, masks + copied),
        "mask_acceptance": accepted / max(1, masks),
        "tokens_per_forward": tokens / max(1, sum(s.decode_forwards for s in stats)),
        **{f"tokens_per_second.{name}": tokens / seconds[name] for name in STRATEGIES},
        "gain": seconds["autoregressive"] / seconds["verified"],
    }


def describe(found: Mapping[str, float]) -> str:
    """The figures in a few lines."""
    speeds = ", ".join(f"{found[f'tokens_per_second.{name}']:.0f} tokens/s {name}" for name in STRATEGIES)
    return (
        f"held out: {found['examples']} examples, one at a time: {found['expected']} texts are the expected answer, "
        f"{found['identical']} have the tokens of autoregressive decoding\n"
        f"acceptance {found['acceptance']:.0%} of drafts, {found['mask_acceptance']:.0%} of those of masks; "
        f"{found['tokens_per_forward']:.2f} tokens per forward\n{speeds}: a gain of {found['gain']:.2f}"
    )


def _generate(llm: LLM, example: Example, strategy: str, length: int) -> Generation:
    most = min(length, llm.engine.max_model_len) - len(example.prompt)
    params = SamplingParams(max_tokens=most, strategy=strategy)
    (made,) = llm.generate({"prompt_token_ids": list(example.prompt)}, params, use_tqdm=False)
    return made
