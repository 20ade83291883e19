"""WeDLM in one file: one sequence, plain PyTorch, the shipped model. Token ids in, token ids out.

The engine gives the same tokens for greedy ``autoregressive``, ``reference`` and ``verified`` decoding. It adds
batches, pages, kernels, sampling and the other strategies.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor


class Nano:
    """A causal decoder with a cache of keys and values. Letters: T new rows, C cached rows, H heads, D width."""

    def __init__(self, folder: Path) -> None:
        self.config = json.loads((folder / "config.json").read_text())
        self.weights = load_file(folder / "model.safetensors")
        self.mask, self.eos = self.config["mask_token_id"], self.config["eos_token_id"]
        self.clear()

    def clear(self) -> None:
        """Forget every cached row."""
        empty = torch.empty(0, self.config["num_key_value_heads"], self.config["head_dim"])
        self.cache = [(empty, empty) for _ in range(self.config["num_hidden_layers"])]

    def cached(self) -> int:
        """Count the cached rows."""
        return len(self.cache[0][0])

    def keep(self, rows: int) -> None:
        """Drop the cached rows after the first ``rows``."""
        self.cache = [(k[:rows], v[:rows]) for k, v in self.cache]

    def norm(self, x: Tensor, name: str) -> Tensor:
        """Divide by the root mean square of the last dimension, then scale."""
        scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + self.config["rms_norm_eps"])
        return self.weights[name] * (x * scale)

    def rotate(self, x_THD: Tensor, positions: Tensor) -> Tensor:
        """Apply rotary embedding by logical position, not by the row's place in the forward."""
        dim = self.config["head_dim"]
        periods = self.config["rope_theta"] ** (torch.arange(0, dim, 2).float() / dim)
        angles = (positions[:, None].float() * (1 / periods))[:, None]
        a, b = x_THD.chunk(2, -1)
        return torch.cat((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()), -1)

    def attend(self, layer: int, x_TD: Tensor, positions: Tensor) -> Tensor:
        """Attend to the cached rows and to earlier rows of this forward; add the new rows to the cache."""
        name, dim = f"model.layers.{layer}.self_attn.", self.config["head_dim"]
        q, k, v = ((x_TD @ self.weights[f"{name}{p}_proj.weight"].T).unflatten(-1, (-1, dim)) for p in "qkv")
        q = self.rotate(self.norm(q, f"{name}q_norm.weight"), positions)
        k = self.rotate(self.norm(k, f"{name}k_norm.weight"), positions)
        old_k, old_v = self.cache[layer]
        k, v = torch.cat((old_k, k)), torch.cat((old_v, v))
        self.cache[layer] = (k, v)
        group = q.shape[1] // k.shape[1]
        scores = torch.einsum("qhd,khd->hqk", q, k.repeat_interleave(group, 1)) * dim**-0.5
        hidden = torch.ones(len(q), len(k), dtype=torch.bool).triu(1 + len(old_k))
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        mixed = torch.einsum("hqk,khd->qhd", weights, v.repeat_interleave(group, 1))
        return mixed.flatten(1) @ self.weights[f"{name}o_proj.weight"].T

    @torch.inference_mode()
    def forward(self, ids: Sequence[int], positions: Sequence[int]) -> Tensor:
        """Run new rows in physical order; return logits ``[T, V]`` in float32."""
        x, places = self.weights["model.embed_tokens.weight"][list(ids)], torch.tensor(list(positions))
        for layer in range(self.config["num_hidden_layers"]):
            name = f"model.layers.{layer}."
            x = x + self.attend(layer, self.norm(x, f"{name}input_layernorm.weight"), places)
            y = self.norm(x, f"{name}post_attention_layernorm.weight")
            gate, up, down = (self.weights[f"{name}mlp.{p}_proj.weight"] for p in ("gate", "up", "down"))
            x = x + (F.silu(y @ gate.T) * (y @ up.T)) @ down.T
        return self.norm(x, "model.norm.weight") @ self.weights["model.embed_tokens.weight"].T


def cut(tokens: list[int], limit: int, eos: int) -> tuple[list[int], bool]:
    """Cut after the first end token or at ``limit`` tokens; report whether the sequence ended."""
    tokens = tokens[:limit]
    if eos in tokens:
        return tokens[: tokens.index(eos) + 1], True
    return tokens, len(tokens) == limit


def autoregressive(model: Nano, prompt: Sequence[int], limit: int) -> list[int]:
    """Decode greedily, one token per forward."""
    model.clear()
    known, ended = list(prompt), False
    while not ended:
        start = model.cached()
        logits = model.forward(known[start:], range(start, len(known)))
        known.append(int(logits[-1].argmax()))
        ended = cut(known[len(prompt) :], limit, model.eos)[1]
    return known[len(prompt) :]


def reorder(window: Sequence[int | None]) -> list[int]:
    """Order window places topologically: filled places first, then masks, each by position.

    Attention is causal in this order, so a mask sees every filled token, also those to its right.
    """
    return sorted(range(len(window)), key=lambda place: (window[place] is None, place))


def places_to_fill(logits_MV: Tensor, masks: Sequence[int], threshold: float, penalty: float) -> list[int]:
    """Choose the masks whose entropy plus distance penalty is below the threshold; at least one."""
    log = logits_MV.log_softmax(-1)
    entropy = -(log.exp() * log).sum(-1)
    price = entropy + penalty * (torch.tensor(masks) - masks[0])
    return (price < threshold).nonzero().flatten().tolist() or [int(price.argmin())]


def stream(
    model: Nano, prompt: Sequence[int], limit: int, size: int = 16, threshold: float = 0.4, penalty: float = 0.02
) -> Iterator[list[int]]:
    """Decode by the published rule (the engine's ``reference``) and yield each commit (arXiv 2512.22737)."""
    model.clear()
    if len(prompt) > 1:
        model.forward(prompt[:-1], range(len(prompt) - 1))
    known, window = list(prompt), list[int | None]([None] * size)
    while True:
        lead = next((place for place, token in enumerate(window) if token is None), len(window))
        commit, ended = cut([t for t in window[:lead] if t is not None], limit - len(known) + len(prompt), model.eos)
        if commit:
            yield commit
        if ended:
            return
        window += [None] * lead
        order, start = reorder(window), model.cached()
        ids = known[start:] + [model.mask if (token := window[p]) is None else token for p in order]
        positions = [*range(start, len(known)), *(len(known) + place for place in order)]
        logits = model.forward(ids, positions)
        # Instant cache: committed rows are first in the order, so their keys and values are final.
        model.keep(len(known) + lead)
        known += commit
        masks = [place for place in order if window[place] is None]
        rows = logits[-len(masks) :]
        for i in places_to_fill(rows, masks, threshold, penalty):
            window[masks[i]] = int(rows[i].argmax())
        window = window[lead:]


def verified(model: Nano, prompt: Sequence[int], limit: int, size: int = 16) -> list[int]:
    """Decode greedily with drafts: masks propose tokens and the next-token head verifies them."""
    model.clear()
    known, drafts, ended = list(prompt), list[int](), False
    while not ended:
        start = model.cached()
        ids = known[start:] + drafts + [model.mask] * size
        choice = model.forward(ids, range(start, start + len(ids))).argmax(-1).tolist()
        # The last known row and the drafts predict the next token; a mask predicts its own.
        heads, proposals = choice[len(known) - start - 1 : -size], choice[-size:]
        agreed = next((i for i, (a, b) in enumerate(zip(drafts, heads, strict=False)) if a != b), len(drafts))
        commit, ended = cut(heads[: agreed + 1], limit - len(known) + len(prompt), model.eos)
        model.keep(len(known) + agreed)
        known += commit
        drafts = (drafts + proposals)[agreed + 1 :][:size]
    return known[len(prompt) :]
