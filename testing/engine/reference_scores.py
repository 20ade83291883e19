"""Log-probabilities of given tokens by transformers, with the weights of the shipped model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch
import transformers  # whose models are imported when they are first used
from safetensors.torch import load_file

import wedlm_core

TINY = Path(wedlm_core.__file__).parent / "tiny"


@cache
def _theirs() -> torch.nn.Module:
    raw = json.loads((TINY / "config.json").read_text())
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "head_dim",
             "num_key_value_heads", "max_position_embeddings", "rms_norm_eps", "attention_bias", "rope_parameters",
             "tie_word_embeddings")  # fmt: skip
    config = transformers.Qwen3Config(**{name: raw[name] for name in names})
    model = transformers.Qwen3ForCausalLM(config).eval()
    missing, unexpected = model.load_state_dict(load_file(TINY / "model.safetensors"), strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], [])
    return model


def expected(tokens: Sequence[int], scored: int) -> tuple[torch.Tensor, list[bool]]:
    """Log-probabilities in nats of the last ``scored`` tokens, ``[scored]`` float32, and which of them are greedy."""
    with torch.no_grad():
        logits = _theirs()(torch.tensor([list(tokens)])).logits[0, :-1].float()
    targets = torch.tensor(list(tokens[1:]))
    logprobs = torch.log_softmax(logits, dim=-1).gather(1, targets[:, None])[:, 0]
    return logprobs[-scored:], (logits.argmax(dim=-1) == targets)[-scored:].tolist()
