"""Greedy decoding for validation during training: whole causal forwards, no KV cache, no engine."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from wedlm_core.model.decoder import Decoder
from wedlm_core.training import corpus
from wedlm_core.training.examples import Vocabulary


def _causal(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    groups = q.shape[-2] // k.shape[-2]
    k, v = k.repeat_interleave(groups, dim=-2), v.repeat_interleave(groups, dim=-2)
    return F.scaled_dot_product_attention(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True
    ).transpose(1, 2)


@torch.no_grad()
def greedy(model: Decoder, prompts: Sequence[Sequence[int]], *, eos: int, max_tokens: int) -> list[list[int]]:
    """Continue each prompt until ``eos`` (not returned) or ``max_tokens``."""
    lines = [list(prompt) for prompt in prompts]
    open_lines = set(range(len(lines)))
    for _ in range(max_tokens):
        if not open_lines:
            break
        live = sorted(open_lines)
        longest = max(len(lines[i]) for i in live)
        # Right padding: under a causal mask no real row attends to it.
        ids_BT = torch.tensor([lines[i] + [eos] * (longest - len(lines[i])) for i in live])
        hidden_BTD = model(ids_BT, torch.arange(longest).expand(len(live), -1), _causal)
        last_B = torch.tensor([len(lines[i]) - 1 for i in live])
        chosen = model.logits(hidden_BTD[torch.arange(len(live)), last_B]).argmax(-1).tolist()
        for i, token in zip(live, chosen, strict=True):
            if token == eos:
                open_lines.discard(i)
            else:
                lines[i].append(token)
    return [line[len(prompt) :] for line, prompt in zip(lines, prompts, strict=True)]


def accuracy(
    model: Decoder, vocabulary: Vocabulary, families: Sequence[str], split: corpus.Split, count: int
) -> dict[str, float]:
    """Share of correct answers per family on ``count`` distinct problems, every second one in the chat template."""
    found = {}
    for family in families:
        problems = corpus.distinct(family, split, count)
        prompts = [vocabulary.prompt(p.prompt, chat=i % 2 == 0) for i, p in enumerate(problems)]
        answers = greedy(model, prompts, eos=vocabulary.special.eos, max_tokens=150)
        good = [corpus.check(p, vocabulary.tokenizer.decode(a)) for p, a in zip(problems, answers, strict=True)]
        found[family] = sum(good) / len(good)
    return found
