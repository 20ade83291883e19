"""A decoder with random weights in the shape of a published model, created directly on a device.

    python -m benchmarks.decode.random_model [--shape 8b] [--device cuda] [--dtype bfloat16] [--seed 0]

No file is read or written. Parameters are allocated on the device and drawn there by a seeded generator. The scales
allow any draft acceptance by choice of the temperature, as in :mod:`benchmarks.decode.models`: attention outputs
outweigh a row's own embedding.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace

import torch

from testing.engine.published_models import WEDLM_7B, WEDLM_8B
from wedlm_core import ModelConfig
from wedlm_core.model.decoder import Decoder
from wedlm_core.model.placing import empty_decoder

SHAPES = {
    "25m": replace(WEDLM_8B, vocab_size=1024, hidden_size=384, intermediate_size=1792, num_hidden_layers=10,
                   num_attention_heads=6, num_key_value_heads=3, head_dim=64, tie_word_embeddings=True,
                   mask_token_id=3, eos_token_ids=(2,), pad_token_id=0),
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


def main() -> None:
    """Build a model; print its size and the time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="8b")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", choices=("bfloat16", "float16", "float32"), default="bfloat16")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    begin = time.perf_counter()
    model = random_decoder(SHAPES[args.shape], device=args.device, dtype=getattr(torch, args.dtype), seed=args.seed)
    if model.embed.weight.is_cuda:
        torch.cuda.synchronize()
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    seconds = time.perf_counter() - begin
    print(f"{args.shape}: {parameters(model):,} parameters, {size / 1e9:.2f} GB on {args.device}, {seconds:.1f} s")


if __name__ == "__main__":
    main()
