"""The choices of samplers, row by row in torch: the rule of :mod:`wedlm_core.decoding.sampling`, and its oracle."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor

from testing.engine.noise_oracle import gumbel_noise
from testing.engine.oracle import History, adjusted, kept, only
from wedlm_core.decoding.adjustments import AdjustmentTables
from wedlm_core.decoding.allowed_tokens import FREE, AllowedRows
from wedlm_core.decoding.filters import FILTERS
from wedlm_core.decoding.sampling import Choice, SamplingRows, Tops
from wedlm_core.types import SamplingParams


def choose(
    logits_RV: Tensor,
    rows: SamplingRows,
    *,
    mask_token_id: int,
    vocab_limit: int,
    tables: AdjustmentTables | None = None,
) -> Choice:
    """Choose one token per row: ``argmax(filter(adjusted / T) + gumbel(seed, position))``, argmax at T = 0.

    Rows with a grammar choose among the tokens that it allows. Where it and the adjustments leave none, the choice is a
    token that the grammar refuses, if there is any.

    Args:
        logits_RV: floating point ``[R, V]``; computed with in float32.
        rows: sampling inputs of each row.
        mask_token_id: id that rows with ``suppress_R`` never choose.
        vocab_limit: ids from here on are padding, never chosen by rows with ``suppress_R``.
        tables: of the record of adjustments.
    """
    found = [
        _chosen(row_V.float().clone(), rows, r, mask_token_id, vocab_limit, tables) for r, row_V in enumerate(logits_RV)
    ]
    tokens, entropies, logprobs = zip(*found, strict=True)
    return Choice(
        token_R=torch.tensor(tokens, device=logits_RV.device), entropy_R=torch.stack(entropies),
        logprob_R=torch.stack(logprobs), tops=_tops(logits_RV, rows, mask_token_id, vocab_limit) if rows.most else None,
    )  # fmt: skip


def _tops(logits_RV: Tensor, rows: SamplingRows, mask_token_id: int, vocab_limit: int) -> Tops:
    """The most likely tokens of rows that report them."""
    tops = Tops.new(torch.zeros, len(logits_RV), rows.most, logits_RV.device)
    assert rows.report_R is not None
    for r in rows.report_R.nonzero().flatten().tolist():
        own_V = logits_RV[r].float().clone()
        if rows.suppress_R[r]:
            own_V[mask_token_id], own_V[vocab_limit:] = -torch.inf, -torch.inf
        found = torch.log_softmax(own_V, dim=-1).sort(descending=True, stable=True)
        possible = found.values[: rows.most] > -torch.inf
        tops.logprob_RK[r, : len(possible)] = found.values[: rows.most]
        tops.token_RK[r, : len(possible)] = found.indices[: rows.most] * possible
    return tops


def _chosen(
    own_V: Tensor, rows: SamplingRows, r: int, mask_token_id: int, vocab_limit: int, tables: AdjustmentTables | None
) -> tuple[int, Tensor, Tensor]:
    position, heat, hides = int(rows.position_R[r]), rows.temperature_R[r], bool(rows.suppress_R[r])
    if hides:
        own_V[mask_token_id], own_V[vocab_limit:] = -torch.inf, -torch.inf
    may = _may(rows.allowed, r, len(own_V))
    changed_V, entropy, uses = own_V, _entropy(own_V), False
    if tables is not None and rows.slot_R is not None:
        slot = int(rows.slot_R[r])
        uses = bool(tables.uses_S[slot])
        changed_V = adjusted_row(own_V, tables, slot, position) if uses else own_V
    changed_V = changed_V if may is None else only(changed_V, may)
    token = int(changed_V.max(dim=-1).indices)
    if heat > 0:
        values: dict[str, Any] = {name: value_R[r].item() for name, value_R in rows.filters.items()}
        kept_V = kept(changed_V / heat, **values)
        token = int((kept_V + gumbel_noise(rows.seed_R[r : r + 1], rows.position_R[r : r + 1], len(own_V))[0]).argmax())
        entropy = _entropy(kept_V) if hides else entropy
    if uses and may is not None and changed_V.max() == -torch.inf:
        token = next((i for i in range(len(own_V)) if i not in set(may)), 0)
    return token, entropy, torch.log_softmax(own_V, dim=-1)[token]


def _entropy(logits_V: Tensor) -> Tensor:
    """Shannon entropy in nats; -inf logits count nothing."""
    return -(torch.softmax(logits_V, dim=-1) * torch.log_softmax(logits_V, dim=-1).clamp_min(-1e30)).sum(dim=-1)


def _may(allowed: AllowedRows | None, r: int, vocab: int) -> list[int] | None:
    """The tokens that a row may choose; None where it may choose all."""
    line = FREE if allowed is None else int(allowed.line_R[r])
    if allowed is None or line == FREE:
        return None
    if line < FREE:
        return [-2 - line]
    words = [word & 0xFFFFFFFF for word in allowed.bits_UW[line].tolist()]
    return [token for token in range(vocab) if words[token // 32] >> token % 32 & 1]


def adjusted_row(logits_V: Tensor, tables: AdjustmentTables, slot: int, position: int) -> Tensor:
    """Logits of a row that chooses the token at a position, after the adjustments of its slot."""

    def listed(name: str) -> list[Any]:
        return tables.lists[name][slot].tolist()

    def ids(name: str) -> list[int]:
        return [token for token in listed(name) if 0 <= token < len(logits_V)]

    pairs = zip(listed("bias_ids"), listed("bias_values"), strict=True)
    params = SimpleNamespace(
        suppress_tokens=ids("suppressed"),
        bias_pairs=[(token, bias) for token, bias in pairs if 0 <= token < len(logits_V)],
        **{name: tables.columns[name][slot].item() for name in
           ("min_tokens", "repetition_penalty", "frequency_penalty", "presence_penalty")},
    )  # fmt: skip
    words = [[token for token in word if token >= 0] for word in listed("bad_words")]
    prompt, known = int(tables.prompt_S[slot]), min(position, int(tables.known_S[slot]))
    tokens = tables.tokens_SL[slot].tolist()
    output = tokens[prompt:known] + [-1] * (position - max(prompt, known))  # masks: their tokens are not known
    history = History(stop_ids=ids("stop_ids"), bad_words=[word for word in words if word and word[-1] < len(logits_V)])
    return adjusted(logits_V, cast(SamplingParams, params), tokens[:prompt], output, history)


assert {one.field for one in FILTERS} == {"min_p", "top_k", "top_p"}, "the oracle's `kept` knows these"
