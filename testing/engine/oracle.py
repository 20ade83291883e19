"""Two slow, readable decoders without KV cache or batching: the oracles of the engine's strategies.

Every step runs the whole sequence through the network again. The engine's ``reference`` and ``autoregressive``
strategies must give the same tokens as these (docs/design/decoding.md and docs/design/verified.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from testing.engine.noise_oracle import gumbel_noise
from wedlm_core.model.decoder import Decoder
from wedlm_core.types import FinishReason, SamplingParams

_UNITS = 2.0**44  # of the most likely token: 2 ** 18 tokens sum to less than 2 ** 63


@dataclass(frozen=True, kw_only=True)
class OracleResult:
    """Generated tokens, finish reason, and for ``reference`` a record per decode forward (as in a conformance case)."""

    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    steps: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, kw_only=True)
class History:
    """Token ids that adjustments need besides the parameters: stop tokens and bad words."""

    stop_ids: Sequence[int] = ()
    bad_words: Sequence[Sequence[int]] = ()


@torch.inference_mode()
def causal_logits(model: Decoder, ids: Sequence[int], positions: Sequence[int]) -> Tensor:
    """Float32 ``[T, V]`` on the CPU: row t attends to rows 0..t, in the given order, whatever their positions."""
    device = model.device
    hidden_for = torch.ones(len(ids), len(ids), dtype=torch.bool, device=device).triu(diagonal=1)

    def attend(layer: int, q_THD: Tensor, k_THD: Tensor, v_THD: Tensor) -> Tensor:
        group = q_THD.shape[1] // k_THD.shape[1]
        q, k, v = q_THD, k_THD.repeat_interleave(group, dim=1), v_THD.repeat_interleave(group, dim=1)
        scores_HTT = torch.einsum("qhd,khd->hqk", q, k).float() * q.shape[-1] ** -0.5
        weights_HTT = scores_HTT.masked_fill(hidden_for, -torch.inf).softmax(dim=-1)
        return torch.einsum("hqk,khd->qhd", weights_HTT.to(v.dtype), v)

    ids_T, positions_T = torch.tensor(ids, device=device), torch.tensor(positions, device=device)
    return model.logits(model(ids_T, positions_T, attend)).cpu()


def adjusted(
    logits_V: Tensor, params: SamplingParams, prompt: Sequence[int], output: Sequence[int], history: History
) -> Tensor:
    """Logits after bad words, suppressed tokens, min_tokens, biases and penalties, token by token.

    In the output -1 stands for a token that is not known yet.
    """
    logits = logits_V.clone()
    for *before, last in history.bad_words:
        if not before or list(output[-len(before) :]) == before:
            logits[last] = -torch.inf
    for token in params.suppress_tokens or ():
        logits[token] = -torch.inf
    if len(output) < params.min_tokens:
        for token in history.stop_ids:
            logits[token] = -torch.inf
    for token, bias in params.bias_pairs:
        logits[token] += bias
    if params.repetition_penalty != 1:
        for token in {*prompt, *output} - {-1}:
            value = logits[token]
            logits[token] = value / params.repetition_penalty if value > 0 else value * params.repetition_penalty
    for token in set(output) - {-1}:
        logits[token] -= torch.tensor(params.frequency_penalty) * output.count(token)
        logits[token] -= params.presence_penalty
    return logits


def kept(scaled_V: Tensor, min_p: float = 0.0, top_k: int = 0, top_p: float = 1.0) -> Tensor:
    """Logits over the temperature after min-p, top-k and top-p; -inf for tokens left out.

    Top-p adds whole units of probability, so that the sum is the same in any order and on any device.
    """
    if min_p:
        least = scaled_V.max() + torch.tensor(min_p).double().log().float()
        scaled_V = scaled_V.masked_fill(scaled_V < least, -torch.inf)
    if top_k:
        smallest_kept = scaled_V.sort(descending=True).values[min(top_k, len(scaled_V)) - 1]
        scaled_V = scaled_V.masked_fill(scaled_V < smallest_kept, -torch.inf)
    if top_p < 1:
        sorted_V, token_V = scaled_V.sort(descending=True, stable=True)
        unit_V = ((sorted_V - sorted_V[0]).exp().double() * _UNITS).nan_to_num(0.0).long()
        before_V = unit_V.cumsum(-1) - unit_V
        enough = math.ceil(int(unit_V.sum()) * float(torch.tensor(top_p)))
        scaled_V = scaled_V.index_fill(0, token_V[1:][before_V[1:] >= enough], -torch.inf)
    return scaled_V


def choose_token(logits_V: Tensor, params: SamplingParams, seed: int, position: int) -> int:
    """The argmax at temperature 0; else the argmax after temperature, min-p, top-k, top-p and the position's noise."""
    if params.temperature == 0:
        return int(logits_V.argmax())
    scaled_V = kept(logits_V / params.temperature, params.min_p, params.top_k, params.top_p)
    noise_V = gumbel_noise(torch.tensor([seed]), torch.tensor([position]), len(scaled_V))[0]
    return int((scaled_V + noise_V).argmax())


def only(logits_V: Tensor, tokens: Sequence[int]) -> Tensor:
    """The logits of some tokens, -inf elsewhere."""
    kept_V = torch.full_like(logits_V, -torch.inf)
    for token in tokens:
        kept_V[token] = logits_V[token]
    return kept_V


def autoregressive(
    model: Decoder,
    prompt: Sequence[int],
    params: SamplingParams,
    seed: int = 0,
    eos: Sequence[int] = (),
    bad_words: Sequence[Sequence[int]] = (),
    allowed: Callable[[Sequence[int]], Sequence[int]] | None = None,
) -> OracleResult:
    """Decode one token per forward, from the last row's logits.

    Args:
        model: the decoder.
        prompt: token ids.
        params: of the request.
        seed: of its noise.
        eos: further stop tokens.
        bad_words: token ids of each.
        allowed: which tokens may follow an output; None where any may.
    """
    known, stops = list(prompt), {*params.stop_token_ids, *eos}
    history = History(stop_ids=sorted(stops), bad_words=bad_words)
    while len(known) < len(prompt) + params.max_tokens:
        logits_TV = causal_logits(model, known, range(len(known)))
        logits_V = adjusted(logits_TV[-1], params, prompt, known[len(prompt) :], history)
        if allowed is not None:
            logits_V = only(logits_V, allowed(known[len(prompt) :]))
        known.append(choose_token(logits_V, params, seed, len(known)))
        if known[-1] in stops:
            return OracleResult(token_ids=tuple(known[len(prompt) :]), finish_reason=FinishReason.STOP)
    return OracleResult(token_ids=tuple(known[len(prompt) :]), finish_reason=FinishReason.LENGTH)


def positions_to_fill(
    entropies: Sequence[float], masks: Sequence[int], threshold: float | None, penalty: float
) -> list[int]:
    """Indices into ``masks`` (ascending window positions) of the masks that the published rule fills.

    See arXiv 2512.22737, section 5.2, and docs/design/decoding.md.
    """
    adjusted = [h + penalty * (place - masks[0]) for h, place in zip(entropies, masks, strict=True)]
    certain = [i for i, value in enumerate(adjusted) if threshold is not None and value < threshold]
    return certain or [adjusted.index(min(adjusted))]


def reference(
    model: Decoder,
    prompt: Sequence[int],
    params: SamplingParams,
    mask_id: int,
    seed: int = 0,
    eos: Sequence[int] = (),
) -> OracleResult:
    """Decode by the published rule with a fixed window (arXiv 2512.22737, Algorithm 1).

    docs/design/decoding.md states the rule in full.
    """
    stops, output, steps = {*params.stop_token_ids, *eos}, list[int](), list[dict[str, Any]]()
    window: list[int | None] = [None] * params.window  # None is a mask: the model may also emit the mask id
    while len(output) < params.max_tokens:
        known = [*prompt, *output]
        lead = next((i for i, token in enumerate(window) if token is None), len(window))
        window += [None] * lead
        masks = [i for i, token in enumerate(window) if token is None]
        order = [i for i, token in enumerate(window) if token is not None] + masks
        tokens = [mask_id if token is None else token for token in window]
        ids, positions = [tokens[i] for i in order], [len(known) + i for i in order]

        leading = tokens[:lead]
        stop = next((i for i, token in enumerate(leading) if token in stops), lead)
        committed = leading[: stop + 1][: params.max_tokens - len(output)]
        output += committed
        ended = bool(committed) and committed[-1] in stops
        finished = ended or len(output) == params.max_tokens
        steps.append({"base_position": len(known), "window_size": len(window), "window_tokens": tokens,
                      "mask_flags": [int(t is None) for t in window], "physical_order": order, "input_ids": ids,
                      "positions": positions, "num_filled": len(order) - len(masks), "prefix_len": lead,
                      "decoder_committed": leading[: stop + 1], "committed": committed, "finished": finished,
                      "mask_positions": [], "entropies": [], "argmax": [], "fill_indices": [],
                      "fill_positions": [], "fill_tokens": []})  # fmt: skip
        if finished:
            return OracleResult(token_ids=tuple(output), steps=tuple(steps),
                                finish_reason=FinishReason.STOP if ended else FinishReason.LENGTH)  # fmt: skip

        logits_TV = causal_logits(model, known + ids, [*range(len(known)), *positions])
        rows_MV = logits_TV[len(known) + order.index(masks[0]) :]  # a mask's row predicts its own token, not the next
        log_MV = rows_MV.log_softmax(-1)
        entropies = (-(log_MV.exp() * log_MV).sum(-1)).tolist()
        at = [len(known) + i for i in masks]
        chosen = [choose_token(row_V, params, seed, p) for row_V, p in zip(rows_MV, at, strict=True)]
        fills = positions_to_fill(entropies, masks, params.entropy_threshold, params.position_penalty)
        steps[-1] |= {"mask_positions": at, "entropies": entropies, "argmax": chosen, "fill_indices": fills,
                      "fill_positions": [at[i] for i in fills], "fill_tokens": [chosen[i] for i in fills]}  # fmt: skip
        for i in fills:
            window[masks[i]] = chosen[i]
        window = window[lead:]
    return OracleResult(token_ids=(), finish_reason=FinishReason.LENGTH)
