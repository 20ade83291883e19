"""The arguments of ``LLM.score`` as tokens: contexts, continuations and the parts cut off."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from wedlm_core.engine.scoring import Scored
from wedlm_core.errors import RequestError, explain
from wedlm_core.llm_inputs import list_of_prompts, tokenised
from wedlm_core.tokenizer import Tokenizer
from wedlm_core.types import ScoreOutput

TRUNCATE = ("fail", "left")
_NOT_NUMBERS = explain(
    "logits", "nan", "this row has logits that are no numbers, so its scores mean nothing",
    "Check the weights, or load them with a dtype of wider range (bfloat16, float32).",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Scorable:
    """Tokens of a context and of the continuation to score.

    Attributes:
        tokens: both, one after the other, truncated.
        scored: how many of the last ones are scored.
        truncated: tokens that were dropped at the beginning.
    """

    tokens: tuple[int, ...]
    scored: int
    truncated: int = 0


def scorables_of(
    prompts: Any, continuations: Any, tokenizer: Tokenizer, *, max_model_len: int, truncate: str
) -> list[Scorable]:
    """Sequences to score; see :meth:`wedlm_core.llm.LLM.score`.

    Raises:
        RequestError: no such truncation, not one continuation for each prompt, or one that leaves no room.
    """
    if truncate not in TRUNCATE:
        raise RequestError(explain("truncate", truncate, f"one of {list(TRUNCATE)}", 'Use "fail" or "left".'))
    complete = continuations is not None
    contexts = [tokenised(prompt, tokenizer, complete=complete).ids for prompt in list_of_prompts(prompts)]
    if continuations is None:
        pairs = [(ids[:1], ids[1:]) for ids in contexts]
    else:
        ends = [tokenised(one, tokenizer, complete=False).ids for one in list_of_prompts(continuations)]
        if len(ends) != len(contexts):
            rule = f"one for each of the {len(contexts)} prompts"
            remedy = "Repeat a prompt for each of its continuations."
            raise RequestError(explain("continuations", f"{len(ends)} of them", rule, remedy))
        pairs = list(zip(contexts, ends, strict=True))
    return [_fitted(context, end, max_model_len, truncate) for context, end in pairs]


def _fitted(context: tuple[int, ...], end: tuple[int, ...], max_model_len: int, truncate: str) -> Scorable:
    """Both, with as much of the context's end as fits: the last token of all needs no place."""
    over = len(context) + len(end) - 1 - max_model_len
    if over > 0 and truncate == "left":
        if over >= len(context):
            rule = f"at most max_model_len = {max_model_len} tokens, so that one token of context is left"
            raise RequestError(explain("continuation", f"{len(end)} tokens", rule, "Score it in pieces."))
        context = context[over:]
    return Scorable(tokens=context + end, scored=len(end), truncated=max(0, over) if truncate == "left" else 0)


def score_of(scorable: Scorable, scored: Scored) -> ScoreOutput:
    """The public result."""
    unsound = any(value != value for value in scored.logprobs)
    return ScoreOutput(
        token_ids=scorable.tokens[-scorable.scored :],
        logprobs=scored.logprobs,
        greedy=scored.greedy,
        context_tokens=len(scorable.tokens) - scorable.scored,
        truncated_tokens=scorable.truncated,
        cached_tokens=scored.cached_tokens,
        error=_NOT_NUMBERS if unsound else None,
    )
