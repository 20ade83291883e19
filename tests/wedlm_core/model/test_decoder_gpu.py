"""DecoderGpu on a GPU equals the plain decoder, at the published shapes too."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from testing.engine.published_models import WEDLM_7B, WEDLM_8B
from wedlm_core.config import ModelConfig
from wedlm_core.kernels.gpu.layer_gpu import Rotation, add_rms_norm, norm_rope, silu_mul
from wedlm_core.model.decoder import RMSNorm
from wedlm_core.model.decoder_gpu import use_gpu_decoder
from wedlm_core.model.placing import empty_decoder
from wedlm_core.model.rotary import apply_rope

pytestmark = pytest.mark.gpu  # kernels are compiled for a CUDA device and run on it


def mixing(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return q * 0.5 + (k - v).repeat_interleave(q.shape[-2] // k.shape[-2], dim=-2)


@pytest.mark.parametrize("shape", [WEDLM_7B, WEDLM_8B], ids=["7b", "8b"])
@pytest.mark.parametrize("rows", [1, 16, 77, 1024])
def test_layers_of_the_published_shapes_are_as_right_as_the_plain_ones(shape: ModelConfig, rows: int) -> None:
    """Held against float32: libraries sum products in an order of their own, and so do kernels for few rows."""
    config = replace(shape, num_hidden_layers=2, vocab_size=2000, mask_token_id=None)
    model = empty_decoder(config, device="cuda", dtype=torch.bfloat16)
    generator = torch.Generator("cuda").manual_seed(0)
    for name, parameter in model.named_parameters():
        std = 1.0 if name.startswith("embed") else parameter.shape[-1] ** -0.5
        parameter.fill_(1.0) if "norm" in name else parameter.normal_(std=std, generator=generator)
    model.set_max_positions(40_000)
    ids = torch.randint(2000, (rows,), device="cuda", generator=generator)
    positions = torch.randint(40_000, (rows,), device="cuda", generator=generator)
    with torch.inference_mode():
        plain = model(ids, positions, mixing)
        assert use_gpu_decoder(model)
        found = model(ids, positions, mixing)
        model.packed_forward = None
        right = model.float()(ids, positions, mixing)

    def error(hidden: torch.Tensor) -> float:
        return float((hidden.float() - right).norm() / right.norm())

    assert error(plain) < 2e-2
    assert error(found) < 1.3 * error(plain)


@pytest.mark.parametrize("rows", [1, 77, 1024])
def test_each_kernel_rounds_where_the_plain_layers_do(rows: int) -> None:
    """On the same inputs: through layers and products, one rounding that differs reaches every value."""
    config = replace(WEDLM_8B, num_hidden_layers=1, vocab_size=2000, mask_token_id=None)
    heads, kv_heads, dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim

    def some(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)

    def alike(found: torch.Tensor, plain: torch.Tensor) -> bool:
        share = float((found == plain).float().mean())
        assert found.shape == plain.shape
        assert share > 0.99, f"only {share:.3f} of the values are bitwise alike: rounding is not where it was"
        return True

    norm = RMSNorm(config.hidden_size, config.rms_norm_eps).to(device="cuda", dtype=torch.bfloat16)
    norm.weight.data.copy_(some(config.hidden_size))
    x, delta = some(rows, config.hidden_size), some(rows, config.hidden_size)
    with torch.inference_mode():
        total = x + delta
        found = add_rms_norm(x, delta, norm.weight, norm.eps)
        assert torch.equal(x, total), "the residual is a sum, rounded once"
        assert alike(found, norm(total))

        gate_up = some(rows, 2 * config.intermediate_size)
        gate, up = gate_up.chunk(2, dim=-1)
        assert alike(silu_mul(gate_up), torch.nn.functional.silu(gate) * up)

        model = empty_decoder(config, device="cuda", dtype=torch.bfloat16)
        model.set_max_positions(4000)
        qkv, positions = some(rows, (heads + 2 * kv_heads) * dim), torch.randint(4000, (rows,), device="cuda")
        q_norm, k_norm = (RMSNorm(dim, config.rms_norm_eps).to(device="cuda", dtype=torch.bfloat16) for _ in range(2))
        q_norm.weight.data.copy_(some(dim))
        k_norm.weight.data.copy_(some(dim))
        rotation = Rotation(
            position_T=positions, cos=model.cos, sin=model.sin, weights=(q_norm.weight, k_norm.weight),
            eps=config.rms_norm_eps, heads=heads, kv_heads=kv_heads, head_dim=dim,
        )  # fmt: skip
        q, k, v = norm_rope(qkv, rotation)
        cos, sin = model.cos[positions].unsqueeze(-2), model.sin[positions].unsqueeze(-2)
        plain = qkv.unflatten(-1, (-1, dim)).split((heads, kv_heads, kv_heads), dim=-2)
        assert alike(q, apply_rope(q_norm(plain[0]), cos, sin))
        assert alike(k, apply_rope(k_norm(plain[1]), cos, sin))
        assert torch.equal(v, plain[2])
