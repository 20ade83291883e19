"""DecoderGpu on a GPU equals the plain decoder, at the published shapes too."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from testing.engine.models import random_decoder
from wedlm_core.config import ModelConfig
from wedlm_core.model.decoder_gpu import disagreement, use_gpu_decoder
from wedlm_core.model.placing import empty_decoder
from wedlm_core.model.shapes import WEDLM_7B, WEDLM_8B

pytestmark = pytest.mark.gpu  # kernels are compiled for a CUDA device and run on it


def mixing(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return q * 0.5 + (k - v).repeat_interleave(q.shape[-2] // k.shape[-2], dim=-2)


@pytest.mark.parametrize("shape", [WEDLM_7B, WEDLM_8B], ids=["7b", "8b"])
@pytest.mark.parametrize("rows", [1, 77, 1024])
def test_layers_of_the_published_shapes_equal_the_plain_ones(shape: ModelConfig, rows: int) -> None:
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
    assert not torch.isnan(found).any()
    assert (found.float() - plain.float()).norm() / plain.float().norm() < 1e-2
    same = (found == plain).float().mean()
    assert same > 0.5, f"only {same:.2f} of the values are bitwise alike: rounding is not where it was"


def test_a_float32_model_agrees_within_rounding() -> None:
    model = random_decoder(qwen3=True, seed=4).cuda()
    ids, positions = torch.tensor([5, 300, 5, 17]).cuda(), torch.tensor([0, 1, 2, 400]).cuda()
    with torch.inference_mode():
        plain = model(ids, positions, mixing)
        assert disagreement(model, range(3)) is None
        assert use_gpu_decoder(model)
        torch.testing.assert_close(model(ids, positions, mixing), plain, rtol=1e-4, atol=1e-4)
