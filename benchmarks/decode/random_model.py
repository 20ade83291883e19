"""A decoder with random weights in the shape of a published model, created directly on a device.

Parameters are allocated on the device and drawn there by a seeded generator. Attention outputs are scaled up until they
outweigh a row's own embedding, so that neighbouring rows have nearly the same hidden state; the scale of the queries
(``focus``) sets how much they still differ. The logits have about 2.4 nats of entropy. At temperature 0 a draft then
hardly ever equals the verified token. Draft and verification share the noise of their position, so a higher temperature
makes them agree more often: the temperature selects the regime of acceptance, and one batch can mix regimes.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from testing.engine.published_models import WEDLM_7B, WEDLM_8B
from wedlm_core import ModelConfig
from wedlm_core.model.decoder import Decoder
from wedlm_core.model.placing import empty_decoder
from wedlm_core.model.sources import resolve
from wedlm_core.model.weights import save_model

SHAPES = {
    "25m": replace(WEDLM_8B, vocab_size=1024, hidden_size=384, intermediate_size=1792, num_hidden_layers=10,
                   num_attention_heads=6, num_key_value_heads=3, head_dim=64, tie_word_embeddings=True,
                   mask_token_id=3, eos_token_ids=(2,), pad_token_id=0, max_position_embeddings=2048,
                   rope_theta=10_000.0),
    "0.6b": replace(WEDLM_8B, hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16,
                    num_key_value_heads=8, tie_word_embeddings=True),
    "1.7b": replace(WEDLM_8B, hidden_size=2048, intermediate_size=6144, num_hidden_layers=28, num_attention_heads=16,
                    num_key_value_heads=8, tie_word_embeddings=True),
    "7b": WEDLM_7B,
    "8b": WEDLM_8B,
    "14b": replace(WEDLM_8B, hidden_size=5120, intermediate_size=17408, num_hidden_layers=40, num_attention_heads=40),
    "32b": replace(WEDLM_8B, hidden_size=5120, intermediate_size=25600, num_hidden_layers=64, num_attention_heads=64),
}  # fmt: skip
"""``0.6b``, ``1.7b``, ``14b`` and ``32b`` are the shapes of Qwen3's models of these sizes."""
TEMPERATURES: Mapping[str, float] = {"low": 60.0, "medium": 20.0, "high": 6.0, "hostile": 0.0}
"""Sampling temperature of each regime of acceptance of the shape ``25m``.

With ``verified``, 16 masks and outputs of 32 to 96 tokens they give 11.3, 6.8, 2.7 and 1.06 tokens per forward. A
trained prototype had 6.8 in medium and 2.6 in high entropy. ``hostile``, with one accepted draft in sixteen, is
harder than any regime of a trained model: masks cannot gain anything there.
"""
LONG_TEMPERATURES: Mapping[str, float] = {"low": 64.0, "medium": 24.0, "high": 6.7}
"""Sampling temperatures after prompts of 1,500 tokens: 10.3, 6.8 and 2.7 tokens per forward."""
_ATTENTION_SCALE = 30.0
_MLP_SCALE = 3.0
_LOGIT_SCALE = 3.9  # standard deviation of the logits for any width


@torch.no_grad()
def randomise(model: Decoder, *, focus: float, head_scale: float, generator: torch.Generator) -> None:
    """Draw all weights in place, in the order of the parameters.

    Args:
        model: a decoder on the generator's device.
        focus: weight of the query norm, if there is one; a larger one makes neighbouring rows differ more.
        head_scale: weight of the final norm. The standard deviation of the logits is its product with the root of
            the width.
        generator: a seeded generator.
    """
    scales = {"o_proj.weight": _ATTENTION_SCALE, "down_proj.weight": _MLP_SCALE}
    heads = (model.embed.weight, model.lm_head.weight)
    for name, parameter in model.named_parameters():
        if name.endswith("norm.weight"):
            parameter.fill_(focus if name.endswith("q_norm.weight") else 1.0)
        elif name.endswith("bias"):
            parameter.zero_()
        elif any(parameter is head for head in heads):
            parameter.normal_(generator=generator)
        else:
            scale = next((s for end, s in scales.items() if name.endswith(end)), 1.0)
            parameter.normal_(std=scale * parameter.shape[1] ** -0.5, generator=generator)
    mask = model.config.mask_token_id
    assert mask is not None
    model.embed.weight[mask] = model.embed.weight.mean(dim=0)
    model.norm.weight.fill_(head_scale)


def random_decoder(
    config: ModelConfig,
    *,
    device: str | torch.device,
    dtype: torch.dtype,
    seed: int = 0,
    focus: float = 6.0,
    max_positions: int | None = None,
) -> Decoder:
    """A decoder of ``config`` on ``device``, in evaluation mode; the same weights for the same seed and device.

    Args:
        config: a configuration with a mask token.
        device: where the parameters are created.
        dtype: dtype of the parameters.
        seed: seed of the weights.
        focus: see :func:`randomise`.
        max_positions: length of the rotary tables; None takes the configuration's.
    """
    model = empty_decoder(config, device=device, dtype=dtype)
    generator = torch.Generator(device=device).manual_seed(seed)
    randomise(model, focus=focus, head_scale=_LOGIT_SCALE * config.hidden_size**-0.5, generator=generator)
    model.set_max_positions(max_positions or config.max_position_embeddings)
    return model


def parameters(model: Decoder) -> int:
    """Number of parameters; tied ones count once."""
    return sum(p.numel() for p in model.parameters())


@contextmanager
def random_model_folder(shape: str, *, dtype: torch.dtype = torch.float32, max_positions: int = 2048) -> Iterator[Path]:
    """A random model with the shipped tokenizer in a temporary folder, named as its shape."""
    tiny = resolve("tiny")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / f"random-{shape}"
        save_model(random_decoder(SHAPES[shape], device="cpu", dtype=dtype, max_positions=max_positions), folder)
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(tiny / file, folder / file)
        yield folder
