"""Conditions of a request before it is queued; each refusal names value, rule and remedy. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass

from wedlm_core.checks import is_whole
from wedlm_core.errors import CapacityError, RequestError, explain
from wedlm_core.types import Request

WITHOUT_MASKS = "has no mask token: it is decoded autoregressively, and drafts come from grammars and earlier text only"
"""The line that tells how ``verified`` decoding works with a plain Qwen model."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bounds of one engine: ids below ``vocab_size``, ``max_model_len`` tokens, KV entries of the whole pool."""

    vocab_size: int
    max_model_len: int
    max_window: int
    pool_tokens: int
    page_size: int
    has_mask_token: bool


def check_request(request: Request, limits: Limits) -> None:
    """Refuse requests that cannot be served.

    Raises:
        RequestError: empty prompt, ids out of range, a seed out of range, too long, window too large, no mask token.
        CapacityError: the KV pool could not hold the request even alone.
    """
    prompt, params = request.prompt_token_ids, request.params
    if not prompt:
        raise RequestError(explain("prompt", (), "a prompt has at least one token", "Give it some text."))
    if request.continuation:
        check_scored(prompt, request.continuation, limits)
        return
    for place in _suspects(prompt):
        _require_id(f"prompt_token_ids[{place}]", prompt[place], limits.vocab_size)
    for token in params.stop_token_ids:
        _require_id("stop_token_ids", token, limits.vocab_size)
    for token in params.suppress_tokens or ():
        _require_id("suppress_tokens", token, limits.vocab_size)
    for token, _ in params.bias_pairs:
        _require_id("logit_bias", token, limits.vocab_size)
    if not is_whole(request.seed, 0, 2**63 - 1):
        raise RequestError(explain("seed", request.seed, "an integer in [0, 2**63)", "Pick one in range."))
    total = len(prompt) + params.max_tokens
    if total > limits.max_model_len:
        raise RequestError(
            explain(
                "prompt + max_tokens",
                f"{len(prompt)} + {params.max_tokens}",
                f"at most max_model_len = {limits.max_model_len} tokens together",
                "Shorten the prompt or lower max_tokens.",
            )
        )
    if not params.adaptive and params.window > limits.max_window:
        raise RequestError(
            explain(
                "window_size",
                params.window,
                f"at most EngineConfig.max_window = {limits.max_window}",
                "Lower window_size, or raise max_window.",
            )
        )
    if params.needs_masks and not limits.has_mask_token:
        rule = f"this model has no mask token, and window_size={params.window_size!r} asks for masks"
        remedy = 'Use strategy="verified" with window_size="auto", or set mask_token_id.'
        raise RequestError(explain("strategy", str(params.strategy), rule, remedy))
    need = total + 1 + (0 if params.adaptive else 2 * params.window)
    if -(-need // limits.page_size) * limits.page_size > limits.pool_tokens:
        raise CapacityError(
            explain(
                "prompt + max_tokens + window rows",
                need,
                f"the KV pool holds {limits.pool_tokens} tokens in all",
                "Raise num_pages or kv_cache_bytes, or lower max_tokens.",
            )
        )


def check_scored(context: tuple[int, ...], continuation: tuple[int, ...], limits: Limits) -> None:
    """Refuse a continuation that cannot be scored after a context.

    Raises:
        RequestError: one of them is empty, both together are too long, or an id is out of range.
        CapacityError: the KV pool could not hold both even alone.
    """
    if not context or not continuation:
        rule = "each has at least one token: the first token of all has no probability"
        remedy = "Put the end-of-sequence token in front."
        raise RequestError(explain("context and continuation", (len(context), len(continuation)), rule, remedy))
    total = len(context) + len(continuation)
    if total - 1 > limits.max_model_len:
        rule = f"at most max_model_len + 1 = {limits.max_model_len + 1} tokens with the continuation"
        raise RequestError(explain("tokens", total, rule, "Shorten the context, or truncate it on the left."))
    for tokens in (context, continuation):
        for place in _suspects(tokens):
            _require_id("token", tokens[place], limits.vocab_size)
    if total - 1 > limits.pool_tokens:
        rule = f"the KV pool holds {limits.pool_tokens} tokens in all"
        raise CapacityError(explain("tokens", total, rule, "Raise num_pages or kv_cache_bytes."))


def _suspects(prompt: tuple[int, ...]) -> tuple[int, ...]:
    """Places of a prompt that tell whether all its ids are in range: the first of another type, or both extremes."""
    if set(map(type, prompt)) != {int}:  # several times faster than to look at them one by one
        for place, token in enumerate(prompt):
            if not is_whole(token):
                return (place,)
    return prompt.index(min(prompt)), prompt.index(max(prompt))


def _require_id(name: str, token: int, vocab_size: int) -> None:
    if not is_whole(token, 0, vocab_size - 1):
        rule = f"ids are in [0, {vocab_size})"
        raise RequestError(explain(name, token, rule, "Use the tokenizer of this model."))
