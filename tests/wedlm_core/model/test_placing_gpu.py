"""Loading to a GPU: no host copy of the model, the file's values on the device, pools within their share of memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from testing.engine.loading_child import anonymous_bytes
from testing.engine.models import random_decoder, save_sharded, wide_model, write_tokenizer
from wedlm_core.config import EngineConfig
from wedlm_core.engine import Engine
from wedlm_core.model import placing
from wedlm_core.model.weights import load_model
from wedlm_core.tokenizer import Tokenizer

pytestmark = pytest.mark.gpu  # every test here allocates memory of a CUDA device


def test_weights_on_the_device_equal_those_on_the_host(tmp_path: Path) -> None:
    for qwen3 in (True, False):
        save_sharded(random_decoder(qwen3=qwen3, seed=5), tmp_path / str(qwen3), 30_000)
        host = load_model(tmp_path / str(qwen3), dtype=torch.bfloat16)
        device = load_model(tmp_path / str(qwen3), dtype=torch.bfloat16, device="cuda")
        for name, parameter in device.named_parameters():
            assert parameter.device.type == "cuda"
            assert torch.equal(parameter.cpu(), host.get_parameter(name))
        assert (device.lm_head.weight is device.embed.weight) == device.config.tie_word_embeddings


def test_the_host_never_holds_the_model_and_the_device_holds_it_once(tmp_path: Path) -> None:
    wide_model(tmp_path / "small", 64, 1)
    wide_model(tmp_path / "large", 400_000, 4)
    load_model(tmp_path / "small", device="cuda", dtype=torch.bfloat16)  # CUDA's own memory on the host comes first
    before = anonymous_bytes()
    torch.cuda.reset_peak_memory_stats()
    on_device = torch.cuda.memory_allocated()
    model = load_model(tmp_path / "large", device="cuda", dtype=torch.bfloat16, workers=4)
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    assert size > 800e6
    assert anonymous_bytes() - before < 256 << 20
    assert torch.cuda.max_memory_allocated() - on_device <= size + 8 * placing.PIECE_BYTES


def test_engines_of_one_device_take_their_shares_of_its_memory(tmp_path: Path) -> None:
    wide_model(tmp_path, 4000, 4)
    write_tokenizer(tmp_path)
    total, before, engines = torch.cuda.mem_get_info()[1], torch.cuda.memory_allocated(), []
    for number in (1, 2):
        model = load_model(tmp_path, device="cuda", dtype=torch.bfloat16)
        # Sequences that could use far more than the share.
        config = EngineConfig(gpu_memory_utilization=0.15, max_num_seqs=4096, max_batch_rows=4096, max_model_len=4096)
        engines.append(Engine(model, Tokenizer.load(tmp_path), config))
        held = torch.cuda.memory_allocated() - before
        assert number * 0.08 * total < held <= number * 0.15 * total
