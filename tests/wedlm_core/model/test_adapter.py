"""LoRA adapters: merged as peft merges them, and refused by value and rule where they do not fit."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file

from testing.engine.models import write_model
from wedlm_core import LLM, SamplingParams
from wedlm_core.errors import WeightsError
from wedlm_core.model.adapter import ADAPTER_FILE, CONFIG_FILE, with_adapter
from wedlm_core.model.checkpoint import Checkpoint, expected_tensors, load_config, read_checkpoint
from wedlm_core.model.smoothing_files import smooth_checkpoint
from wedlm_core.model.weights import load_model, save_model

ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def base_of(folder: Path) -> Any:
    kind = transformers.Qwen3ForCausalLM if load_config(folder).qk_norm else transformers.Qwen2ForCausalLM
    return kind.from_pretrained(str(folder), dtype=torch.float32)


def make_adapter(base: Path, folder: Path, **settings: Any) -> Path:
    """An adapter of peft's, whose factors are all random."""
    torch.manual_seed(5)
    model = get_peft_model(base_of(base), LoraConfig(**{"r": 4, "lora_alpha": 6, "target_modules": ALL, **settings}))
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(str(folder))
    return folder


@pytest.fixture
def made(qwen3_folder: Path, tmp_path: Path) -> Path:
    return make_adapter(qwen3_folder, tmp_path / "adapter")


@pytest.mark.parametrize(
    ("qwen3", "settings"),
    [
        (False, {}),
        (True, {"use_rslora": True}),
        (False, {"target_modules": ["q_proj", "down_proj"], "layers_to_transform": [1]}),
        (True, {"target_modules": ["q_proj", "model.layers.1.mlp.up_proj"], "layers_to_transform": 0}),
        (True, {"target_modules": r".*layers\.0\.(self_attn\.[qv]_proj|mlp\.up_proj)",
                "init_lora_weights": "gaussian"}),
        (False, {"target_modules": "all-linear", "exclude_modules": ["k_proj"]}),
        (True, {"rank_pattern": {"q_proj": 2, "layers.1.mlp.up_proj": 8},
                "alpha_pattern": {r"layers\.\d.mlp.*": 32, "o_proj": 1}}),
    ],
    ids=["plain", "rslora", "one layer", "one layer, and a whole name", "regular expression", "all linear", "patterns"],
)  # fmt: skip
def test_weights_are_those_of_merge_and_unload(
    qwen3: bool, settings: dict[str, Any], qwen3_folder: Path, qwen25_folder: Path, tmp_path: Path
) -> None:
    base = qwen3_folder if qwen3 else qwen25_folder
    adapter = make_adapter(base, tmp_path / "adapter", **settings)
    theirs = PeftModel.from_pretrained(base_of(base), str(adapter)).merge_and_unload().state_dict()
    parameters = dict(load_model(base, adapter=adapter).named_parameters())
    plain = dict(load_model(base).named_parameters())
    changed = 0
    for name, where in expected_tensors(read_checkpoint(base).config).items():
        own = parameters[where.parameter].narrow(0, where.start, where.shape[0])
        torch.testing.assert_close(own, theirs[name], rtol=1e-6, atol=1e-6)
        changed += not torch.equal(own, plain[where.parameter].narrow(0, where.start, where.shape[0]))
    assert changed == sum(name.endswith("lora_A.weight") for name in load_file(adapter / ADAPTER_FILE))


def test_the_change_is_exact_whatever_the_pieces_and_threads(
    qwen3_folder: Path, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = with_adapter(read_checkpoint(qwen3_folder), made)
    whole = dict(load_model(qwen3_folder, adapter=made).named_parameters())
    monkeypatch.setattr("wedlm_core.model.placing._HOST_PIECE_BYTES", 1000)
    monkeypatch.setattr("wedlm_core.model.adapter._CACHED", 100)
    pieces = dict(load_model(qwen3_folder, adapter=made, workers=3).named_parameters())
    assert all(torch.equal(whole[name], pieces[name]) for name in whole)
    name = "model.layers.0.mlp.up_proj.weight"
    assert found.adapter is not None
    tensors = load_file(made / ADAPTER_FILE)
    a, b = (tensors[f"base_model.model.model.layers.0.mlp.up_proj.lora_{letter}.weight"].double() for letter in "AB")
    stored = load_file(found.files[name])[name]
    exact = (stored.double() + 1.5 * (b @ a)).float()
    torch.testing.assert_close(found.adapter.merged(name, 0, stored), exact, rtol=0, atol=1e-7)


def test_generations_are_those_of_the_merged_model_in_every_weight_dtype(
    qwen3_folder: Path, made: Path, tmp_path: Path
) -> None:
    merged = shutil.copytree(qwen3_folder, tmp_path / "merged")
    save_model(load_model(qwen3_folder, adapter=made), merged)
    for weight_dtype, smoothing in (("auto", "off"), ("int8", "off"), ("int8", "sample")):
        options: dict[str, Any] = {"weight_dtype": weight_dtype, "smoothing": smoothing}
        params = SamplingParams(max_tokens=12, window_size=2, ignore_eos=True)
        with_own, without, plain = (
            LLM(str(folder), adapter=own, **options).generate(["Count."], params)[0].token_ids
            for folder, own in ((qwen3_folder, str(made)), (merged, None), (qwen3_folder, None))
        )
        assert with_own == without
        assert with_own != plain


def test_smoothing_is_of_the_merged_weights(qwen3_folder: Path, made: Path, tmp_path: Path) -> None:
    merged = shutil.copytree(qwen3_folder, tmp_path / "merged")
    save_model(load_model(qwen3_folder, adapter=made), merged)
    plain = read_checkpoint(qwen3_folder)
    own, same, other = (
        smooth_checkpoint(found, [[5, 6, 7, 8]] * 4, "int8").exponents
        for found in (with_adapter(plain, made), read_checkpoint(merged), plain)
    )
    assert all(torch.equal(own[name], same[name]) for name in same)
    assert not all(torch.equal(own[name], other[name]) for name in other)


def edited(folder: Path, **settings: Any) -> Path:
    raw = json.loads((folder / CONFIG_FILE).read_text())
    (folder / CONFIG_FILE).write_text(json.dumps({**raw, **settings}))
    return folder


def without(folder: Path, *names: str, **more: torch.Tensor) -> Path:
    tensors = load_file(folder / ADAPTER_FILE)
    kept = {name: value for name, value in tensors.items() if not any(part in name for part in names)}
    save_file({**kept, **more}, folder / ADAPTER_FILE)
    return folder


def test_an_adapted_output_head_is_refused_by_name(qwen3_folder: Path, tmp_path: Path) -> None:
    adapter = make_adapter(qwen3_folder, tmp_path / "adapter", target_modules=["q_proj", "lm_head"])
    with pytest.raises(WeightsError, match=r"unexpected base_model.model.lm_head.lora_A"):
        with_adapter(read_checkpoint(qwen3_folder), adapter)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"peft_type": "VERA"}, "adapter.peft_type='VERA'.*LORA.*merge_and_unload"),
        ({"peft_type": None}, "adapter.peft_type=None"),
        ({"use_dora": True}, "adapter.use_dora=True"),
        ({"bias": "all"}, "adapter.bias='all'"),
        ({"lora_bias": True}, "adapter.lora_bias=True"),
        ({"modules_to_save": ["lm_head"]}, "adapter.modules_to_save"),
        ({"init_lora_weights": "pissa_niter_4"}, "adapter.init_lora_weights='pissa_niter_4'"),
        ({"task_type": "SEQ_CLS"}, "adapter.task_type='SEQ_CLS'"),
        ({"of_later_versions": {"a": 1}}, "adapter.of_later_versions"),
        ({"r": 0}, "adapter.r=0"),
        ({"r": 8}, "misshapen .*lora_A"),
        ({"lora_alpha": float("nan")}, "adapter.lora_alpha=nan"),
        ({"lora_alpha": 10**400}, "adapter.lora_alpha"),
        ({"rank_pattern": {"q_proj": "4"}}, "adapter.rank_pattern='4'"),
        ({"rank_pattern": {"(": 4}}, "adapter.rank_pattern.*no regular expression"),
        ({"rank_pattern": [4]}, "adapter.rank_pattern"),
        ({"target_modules": ["c_attn"]}, r"adapter.target_modules=\['c_attn'\].*q_proj"),
        ({"target_modules": "("}, "adapter.target_modules='\\('.*no regular expression"),
        ({"target_modules": "a{99999999999}"}, "adapter.target_modules=.*no regular expression"),
        ({"alpha_pattern": {"(" * 3000 + ")" * 3000: 4}}, "adapter.alpha_pattern=.*no regular expression"),
        ({"target_modules": {"q_proj": 1}}, "adapter.target_modules"),
        ({"target_modules": ["q_proj"]}, "unexpected .*down_proj"),
        ({"layers_to_transform": [0]}, "unexpected .*layers.1"),
    ],
)
def test_settings_that_cannot_be_merged_are_refused(
    qwen3_folder: Path, made: Path, settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(WeightsError, match=f"(?s){words}"):
        with_adapter(read_checkpoint(qwen3_folder), edited(made, **settings))


def test_adapters_of_other_models_and_damaged_ones_are_refused(qwen3_folder: Path, made: Path, tmp_path: Path) -> None:
    def refused(words: str, folder: Path, base: Checkpoint | None = None) -> None:
        with pytest.raises(WeightsError, match=f"(?s){words}"):
            with_adapter(base or read_checkpoint(qwen3_folder), folder)

    def copy(name: str) -> Path:
        return shutil.copytree(made, tmp_path / name)

    wide = read_checkpoint(write_model(tmp_path / "wide", qwen3=True, seed=4, heads=2))
    refused("Use the model that it was trained on .*misshapen .*lora_A", made, wide)
    refused("missing .*q_proj.lora_B", without(copy("a"), "layers.1.self_attn.q_proj.lora_B"))
    head, a = "base_model.model.lm_head.weight", "base_model.model.model.layers.0.mlp.up_proj.lora_A.weight"
    refused(f"unexpected {head}", without(copy("b"), **{head: torch.ones(2)}))
    bytes_ = torch.ones(load_file(made / ADAPTER_FILE)[a].shape, dtype=torch.int8)
    refused("wrong kind", without(copy("c"), **{a: bytes_}))
    cut = copy("d")
    (cut / ADAPTER_FILE).write_bytes((made / ADAPTER_FILE).read_bytes()[:-9])
    refused("adapter=.*not a whole safetensors file", cut)
    pickled = copy("e")
    (pickled / ADAPTER_FILE).rename(pickled / "adapter_model.bin")
    refused("has no adapter_model.safetensors", pickled)
    (pickled / CONFIG_FILE).write_text("[1]")
    (pickled / "adapter_model.bin").rename(pickled / ADAPTER_FILE)
    refused("adapter=.*a JSON object is expected", pickled)
    with pytest.raises(WeightsError, match=r"adapter=.*has no adapter_config.json"):
        LLM(str(qwen3_folder), adapter=str(qwen3_folder))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_are_refused_when_they_are_merged(
    value: float, qwen3_folder: Path, made: Path
) -> None:
    tensors = load_file(made / ADAPTER_FILE)
    name = next(own for own in tensors if "q_proj.lora_B" in own)
    tensors[name][-1, -1] = value
    save_file(tensors, made / ADAPTER_FILE)
    with pytest.raises(WeightsError, match=rf"{name}'?: it has infinite numbers or NaN"):
        load_model(qwen3_folder, adapter=made)
