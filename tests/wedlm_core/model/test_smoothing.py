"""Smoothing: it changes no bit of a wide model, and makes rounding of uneven channels better."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import torch
from torch import Tensor

from testing.engine.models import random_decoder, write_tokenizer
from wedlm_core import LLM, EngineConfig, SamplingParams
from wedlm_core.errors import ConfigError, WeightsError
from wedlm_core.model import smoothing_files
from wedlm_core.model.checkpoint import read_checkpoint
from wedlm_core.model.decoder import Decoder, DecoderLayer
from wedlm_core.model.smoothing import MOST, Smoothing, expected_sites
from wedlm_core.model.smoothing_files import load_smoothing, save_smoothing, smooth_checkpoint
from wedlm_core.model.smoothing_names import smoothing_digest
from wedlm_core.model.weights import load_model, save_model

SAMPLE = [[(7 * i * i + 3 * j + i) % 300 for i in range(5 + j % 40)] for j in range(30)]


def logits(model: Decoder, tokens: list[int]) -> Tensor:
    """Of every token; attention in the order of positions, plainly."""

    def attend(_: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (each.transpose(0, 1) for each in (q, k, v))
        group = q.shape[0] // k.shape[0]
        k, v = k.repeat_interleave(group, dim=0), v.repeat_interleave(group, dim=0)
        score = q @ k.transpose(1, 2) * q.shape[-1] ** -0.5
        hidden = torch.ones(score.shape[1:], dtype=torch.bool).triu(1)
        return (score.masked_fill(hidden, -torch.inf).softmax(dim=-1) @ v).transpose(0, 1)

    with torch.no_grad():
        return model.logits(model(torch.tensor(tokens), torch.arange(len(tokens)), attend))


def uneven(folder: Path, *, qwen3: bool) -> Path:
    """A model some of whose channels are 64 times as large as the others, as in large models, and its plain logits."""
    model = random_decoder(qwen3=qwen3, seed=4)
    with torch.no_grad():
        for layer in cast(list[DecoderLayer], list(model.layers)):
            for norm, linear in ((layer.input_norm, layer.qkv_proj), (layer.post_norm, layer.gate_up_proj)):
                norm.weight[::16] *= 64
                linear.weight[:, ::16] /= 64
            inner = model.config.intermediate_size
            layer.gate_up_proj.weight[inner::16] *= 64
            layer.down_proj.weight[:, ::16] /= 64
    save_model(model, folder)
    write_tokenizer(folder)
    return folder


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("fixture", ["qwen3_folder", "qwen25_folder"])
def test_a_wide_model_keeps_every_bit(fixture: str, dtype: torch.dtype, request: pytest.FixtureRequest) -> None:
    folder: Path = request.getfixturevalue(fixture)
    found, generator = read_checkpoint(folder), torch.Generator().manual_seed(0)
    exponents = {
        name: torch.randint(-6, 7, (size,), dtype=torch.int8, generator=generator)
        for name, size in expected_sites(found.config).items()
    }
    plain = load_model(folder, dtype=dtype)
    smooth = load_model(folder, dtype=dtype, smoothing=Smoothing(found.config, exponents))
    changed = [n for n, p in smooth.named_parameters() if not torch.equal(p, plain.get_parameter(n))]
    assert len(changed) >= 6 * found.config.num_hidden_layers
    assert torch.equal(logits(smooth, SAMPLE[7]), logits(plain, SAMPLE[7]))


@pytest.mark.parametrize("weight_dtype", ["int8", "int4"])
@pytest.mark.parametrize("qwen3", [True, False])
def test_channels_of_uneven_size_round_better(tmp_path: Path, qwen3: bool, weight_dtype: str) -> None:
    folder = uneven(tmp_path / "m", qwen3=qwen3)
    found = smooth_checkpoint(read_checkpoint(folder), SAMPLE, weight_dtype)
    want = logits(load_model(folder), SAMPLE[3])

    def error(smoothing: Smoothing | None) -> float:
        model = load_model(folder, weight_dtype=weight_dtype, quantised_head=False, smoothing=smoothing)
        return float((logits(model, SAMPLE[3]) - want).norm() / want.norm())

    assert error(found) < {"int8": 0.5, "int4": 0.9}[weight_dtype] * error(None)


def test_the_same_sample_gives_the_same_file_and_another_sample_another_digest(tmp_path: Path) -> None:
    folder = uneven(tmp_path / "m", qwen3=True)
    found = read_checkpoint(folder)
    for name, sample in (("a", SAMPLE), ("b", SAMPLE), ("c", SAMPLE[:1])):
        save_smoothing(smooth_checkpoint(found, sample, "int8"), tmp_path / name)
    digests = {name: smoothing_digest(str(tmp_path / name), folder) for name in "abc"}
    assert digests["a"] == digests["b"] != digests["c"]
    assert smoothing_digest("off", folder) == ""
    back = load_smoothing(tmp_path / "a", found)
    again = smooth_checkpoint(found, SAMPLE, "int8")
    assert all(torch.equal(back.exponents[name], each) for name, each in again.exponents.items())


def test_the_shipped_sample_is_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smoothing_files, "writable_cache", lambda name: tmp_path / name)
    (tmp_path / "smoothing").mkdir()
    config = EngineConfig(weight_dtype="int8", smoothing="sample", max_num_seqs=2)
    params = SamplingParams(max_tokens=48)
    (first,) = LLM("tiny", config=config, device="cpu").generate(["Count from 3 to 9."], params)
    monkeypatch.setattr(smoothing_files, "search", None)  # a second search would fail
    (second,) = LLM("tiny", config=config, device="cpu").generate(["Count from 3 to 9."], params)
    assert first.token_ids == second.token_ids
    assert "3, 4, 5, 6, 7, 8, 9" in first.text


def test_a_cached_file_that_was_cut_is_made_again(
    tmp_path: Path, qwen3_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smoothing_files, "writable_cache", lambda name: tmp_path)

    def made() -> Path:
        device = torch.device("cpu")
        smoothing_files.smoothing_of(
            "sample", read_checkpoint(qwen3_folder), lambda texts: [[1, 2, 3]] * len(texts), weight_dtype="int8",
            head=True, device=device,
        )  # fmt: skip
        (path,) = tmp_path.glob("*.safetensors")
        return path

    whole = made().read_bytes()
    made().write_bytes(whole[:-1])
    assert made().read_bytes() == whole


def test_what_is_no_smoothing_of_this_model_is_refused(tmp_path: Path, qwen3_folder: Path) -> None:
    found = read_checkpoint(qwen3_folder)
    sites = expected_sites(found.config)
    good = {name: torch.zeros(size, dtype=torch.int8) for name, size in sites.items()}
    path = tmp_path / "s"

    def refused(exponents: dict[str, Tensor], match: str) -> None:
        save_smoothing(Smoothing(replace(found.config, num_hidden_layers=1), exponents), path)
        with pytest.raises(WeightsError, match=match):
            load_smoothing(path, found)

    for fault in (torch.zeros(3, dtype=torch.int8), good["layers.0.post"].int(), good["layers.0.post"] + MOST + 1):
        refused({**good, "layers.1.post": fault}, r"layers\.1\.post.*again")
    refused({**good, "layers.77.post": good["layers.0.post"].clone()}, r"layers\.77")
    refused({name: good[name] for name in list(sites)[1:]}, "missing")
    path.write_bytes(b"no such format")
    with pytest.raises(WeightsError, match="safetensors"):
        load_smoothing(path, found)
    with pytest.raises(ConfigError, match=r"no such file.*smooth"):
        load_smoothing(tmp_path / "absent", found)
    samples: list[list[list[int]]] = [[], [[]], [[10**6]]]
    for sample in samples:
        with pytest.raises(ConfigError, match="rows of text"):
            smooth_checkpoint(found, sample, "int8")


def test_smoothing_needs_weights_that_are_rounded() -> None:
    for given in ({}, {"weight_dtype": "fp8_e4m3"}):
        with pytest.raises(ConfigError, match=r"smoothing='sample'.*int8"):
            EngineConfig(smoothing="sample", **given)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="path of a file"):
        EngineConfig(smoothing="", weight_dtype="int8")
