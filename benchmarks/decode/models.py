"""A random model of about 25M parameters with adjustable draft acceptance, to simulate regimes of entropy.

The decoder is Qwen3-style with tied embeddings. Its attention outputs are scaled up until they outweigh a row's own
embedding, so that neighbouring rows have nearly the same hidden state; the scale of the queries (``focus``) sets how
much they still differ. The weight of the final norm (``head_scale``) scales the logits: 0.2 leaves about 2.4 nats of
entropy. At temperature 0 a draft then hardly ever equals the verified token. Draft and verification share the noise of
their position, so a higher temperature makes them agree more often. So the temperature selects the regime, and one
batch can mix regimes.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch

from benchmarks.decode.random_model import parameters, randomise
from wedlm_core import ModelConfig
from wedlm_core.model.decoder import Decoder
from wedlm_core.model.sources import resolve
from wedlm_core.model.weights import save_model

__all__ = ["LONG_TEMPERATURES", "TEMPERATURES", "model_folder", "parameters", "random_model", "random_model_folder"]

TEMPERATURES: Mapping[str, float] = {"low": 60.0, "medium": 20.0, "high": 6.0, "hostile": 0.0}
"""Sampling temperature of each regime of acceptance.

With ``verified``, 16 masks and outputs of 32 to 96 tokens they give 11.3, 6.8, 2.7 and 1.06 tokens per forward. A
trained prototype had 6.8 in medium and 2.6 in high entropy. ``hostile``, with one accepted draft in sixteen, is
harder than any regime of a trained model: masks cannot gain anything there.
"""
LONG_TEMPERATURES: Mapping[str, float] = {"low": 64.0, "medium": 24.0, "high": 6.7}
"""Sampling temperatures after prompts of 1,500 tokens: 10.3, 6.8 and 2.7 tokens per forward."""

_CONFIG = ModelConfig(
    vocab_size=1024,
    hidden_size=384,
    intermediate_size=1792,
    num_hidden_layers=10,
    num_attention_heads=6,
    num_key_value_heads=3,
    head_dim=64,
    max_position_embeddings=2048,
    rope_theta=10_000.0,
    tie_word_embeddings=True,
    mask_token_id=3,
    eos_token_ids=(2,),
    pad_token_id=0,
)


def random_model(*, focus: float = 6.0, head_scale: float = 0.2, seed: int = 0) -> Decoder:
    """The model, on the CPU.

    Args:
        focus: weight of the query norm; a larger one makes neighbouring rows differ more.
        head_scale: weight of the final norm; a larger one lowers the entropy.
        seed: seed of the weights.
    """
    model = Decoder(_CONFIG)
    randomise(model, focus=focus, head_scale=head_scale, generator=torch.Generator().manual_seed(seed))
    return model.requires_grad_(False).eval()


@contextmanager
def random_model_folder() -> Iterator[Path]:
    """The model with the shipped tokenizer in a temporary folder."""
    with model_folder(random_model(), "random-25m") as folder:
        yield folder


@contextmanager
def model_folder(model: Decoder, name: str) -> Iterator[Path]:
    """Any model with the shipped tokenizer in a temporary folder of this name."""
    tiny = resolve("tiny")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / name
        save_model(model, folder)
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(tiny / file, folder / file)
        yield folder
