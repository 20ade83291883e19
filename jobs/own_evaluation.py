"""The evaluation at the end of training: held-out prompts, one after the other, with both exact strategies."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from wedlm_core.llm import LLM
from wedlm_core.training.examples import Example
from wedlm_core.types import Generation, SamplingParams

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
