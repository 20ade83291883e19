"""A damaged or hostile model folder is refused quickly in one clear line, and nothing outside it is read."""

from __future__ import annotations

import json
import math
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from testing.engine.models import random_decoder, save_sharded, write_tokenizer
from testing.engine.refusals import assert_refused
from wedlm_core import LLM
from wedlm_core.config import ModelConfig, YarnScaling
from wedlm_core.errors import ConfigError, WeDLMError, WeightsError
from wedlm_core.model.weights import load_config, load_model
from wedlm_core.tokenizer import Tokenizer

HUGE = 10**400
INDEX = "model.safetensors.index.json"
FAMILY: tuple[type[WeDLMError], ...] = (ConfigError, WeightsError)


@pytest.fixture
def folder(qwen3_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(qwen3_folder, tmp_path / "m"))


@pytest.fixture(scope="module")
def in_shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("shards")
    save_sharded(random_decoder(qwen3=True, seed=0), made, 30_000)
    write_tokenizer(made)
    return made


@pytest.fixture
def sharded(in_shards: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(in_shards, tmp_path / "m"))


def edit(path: Path, **changes: Any) -> None:
    """Change fields of a JSON object; Python's writer says ``NaN`` and ``Infinity``, and its reader takes them."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def yarn(**changes: Any) -> dict[str, Any]:
    return {"rope_type": "yarn", "rope_theta": 1e6, "factor": 2.0, "original_max_position_embeddings": 256, **changes}


NUMBERS: list[Any] = [0, -1, 2**62, HUGE, True, 1.5, math.nan, math.inf, "32", [32], {}]
CONFIG: list[tuple[str, Any]] = [
    *((name, v) for name in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
                             "num_attention_heads", "num_key_value_heads", "head_dim", "max_position_embeddings")
      for v in NUMBERS),
    ("max_position_embeddings", 10**12), ("num_hidden_layers", 10**9), ("vocab_size", 10**10),
    ("num_key_value_heads", 3), ("head_dim", 7),
    *(("rms_norm_eps", v) for v in (math.nan, math.inf, HUGE, 0, -1e-6, 2, True, "1e-6", None)),
    *(("rope_theta", v) for v in (math.nan, math.inf, HUGE, 0, -1.0, 1.0, 1e30, True, "10000", [1])),
    *(("initializer_range", v) for v in (math.nan, HUGE, -1, "0.02")),
    *((name, v) for name in ("attention_bias", "qk_norm", "tie_word_embeddings") for v in ("false", 1, 0, [])),
    ("use_sliding_window", "false"), ("use_sliding_window", True), ("model_type", None), ("model_type", ["wedlm"]),
    ("model_type", "llama"), ("hidden_act", None), ("hidden_act", "gelu"), ("hidden_size", None),
    ("quantization_config", {"quant_method": "fp8"}),
    *(("mask_token_id", v) for v in (2**70, 336, -1, True, 2.0, "2", [2])),
    *(("eos_token_id", v) for v in (2**70, -1, True, 1.0, "1", [[1]], [True], [1, "2"], {"id": 1}, [1] * 5000)),
    *((name, v) for name in ("bos_token_id", "pad_token_id") for v in (2**70, "0", True, [0])),
    *(("rope_parameters", v) for v in ("yarn", 5, ["yarn"], {"rope_type": "llama3"}, {"rope_type": ["yarn"]},
                                       {"full_attention": {"rope_type": "default", "rope_theta": 5e6}})),
    *(("rope_parameters", yarn(factor=v)) for v in (math.nan, HUGE, 0, -1, "2", True)),
    *(("rope_parameters", yarn(original_max_position_embeddings=v)) for v in (0, -1, 10**12, HUGE, 1.5, "256")),
    *(("rope_parameters", yarn(**{name: v})) for name in ("beta_fast", "beta_slow", "attention_factor", "mscale",
                                                         "mscale_all_dim") for v in (math.nan, HUGE, 0, -1, "1")),
    *(("rope_parameters", yarn(truncate=v)) for v in (1, "true")),
    *(("rope_parameters", yarn(rope_theta=v)) for v in (math.nan, 0, HUGE, "1e6")),
]  # fmt: skip


@pytest.mark.parametrize("case", CONFIG, ids=lambda case: f"{case[0]}-{type(case[1]).__name__}")
def test_an_absurd_value_in_config_json_is_refused(folder: Path, case: tuple[str, Any]) -> None:
    name, value = case
    # rope_theta stands in rope_parameters as well, which come first.
    extra = {"rope_parameters": None} if name == "rope_theta" else {}
    edit(folder / "config.json", **{name: value, **extra})
    words = {"rope_parameters": "^rope_", "eos_token_id": "^eos_token_id"}.get(name, f"^{name}=")
    assert_refused(lambda: load_model(folder), words, (ConfigError,))


def test_a_hidden_size_that_heads_do_not_divide_is_refused(folder: Path) -> None:
    edit(folder / "config.json", head_dim=None, hidden_size=33)
    assert_refused(lambda: load_model(folder), r"^hidden_size=33: a multiple of num_attention_heads=4", FAMILY)


@pytest.mark.parametrize("layers", [4096, 3])
def test_a_config_of_another_size_than_the_weights_is_refused_before_anything_is_allocated(
    folder: Path, layers: int
) -> None:
    """Billions of parameters that are not in the files; missing tensors are listed, as far as anyone would read."""
    edit(folder / "config.json", num_hidden_layers=layers, intermediate_size=1 << 22, vocab_size=1 << 24)
    with pytest.raises(WeightsError, match=r"misshapen model\.embed_tokens\.weight") as caught:
        load_model(folder)
    assert len(str(caught.value)) < 6000


@pytest.mark.parametrize(
    "changes",
    [
        {"bos_token_id": None, "pad_token_id": None, "eos_token_id": None, "initializer_range": 0},
        {"attention_bias": None, "use_sliding_window": None, "rope_parameters": {}, "rope_scaling": {}},
        {"eos_token_id": [1, 0], "pad_token_id": -1, "rope_theta": 1e9, "rms_norm_eps": 1e-12},
        {"rope_parameters": yarn(attention_factor=None, mscale=None, truncate=False)},
        {"unknown": {"deep": [1]}, "max_position_embeddings": 1 << 20},
    ],
)
def test_what_real_configurations_hold_is_read(folder: Path, changes: dict[str, Any]) -> None:
    edit(folder / "config.json", **changes)
    assert load_config(folder).hidden_size == 32


@pytest.fixture(scope="module")
def imported(qwen3_folder: Path) -> None:
    """Imports take time, and are no part of a refusal."""
    LLM(str(qwen3_folder), device="cpu")


JSON_FILES = ("config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json")


TEXTS = {
    "list": "[]", "number": "5", "null": "null", "text": '"x"', "cut": "{", "empty": "", "zeros": "\x00" * 100,
    "deep": "[" * 200_000, "digits": '{"a": ' + "9" * 5000 + "}",
    "odd": '{"eos_token_id": {"a": 1}, "mask_token": {"content": 5}}',
}  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("name", JSON_FILES)
def test_a_json_file_that_is_no_sane_object_is_refused(folder: Path, name: str, text: str, imported: None) -> None:
    edit(folder / "config.json", mask_token_id=None)  # so that every file is asked for it
    (folder / name).write_text(TEXTS[text])
    assert_refused(lambda: LLM(str(folder), device="cpu"), "model=|eos_token_id=|config.json=", FAMILY)


def test_files_that_are_not_utf_8_are_refused(folder: Path) -> None:
    (folder / "config.json").write_bytes(b"\xff\xfe{}")
    assert_refused(lambda: load_config(folder), r"^model=.*not readable JSON", FAMILY)


def outside(sharded: Path) -> Path:
    """A good shard beside the model's folder."""
    shard = next(sharded.glob("model-00002*"))
    elsewhere = sharded.parent / "elsewhere" / shard.name
    elsewhere.parent.mkdir()
    shard.rename(elsewhere)
    return elsewhere


def point_to(sharded: Path, entry: Any) -> None:
    """Every tensor of the second shard is said to be in ``entry``."""
    weight_map = json.loads((sharded / INDEX).read_text())["weight_map"]
    moved = {name: entry if file.startswith("model-00002") else file for name, file in weight_map.items()}
    edit(sharded / INDEX, weight_map=moved)


ENTRIES: list[Any] = [
    "../elsewhere/{name}", "{folder}/../elsewhere/{name}", "./../elsewhere/{name}", "a/../../elsewhere/{name}",
    "..", ".", "", "/", "/etc/passwd", "s3://bucket/{name}", "https://example.com/{name}", "file://{folder}/{name}",
    "..\\elsewhere\\{name}", "C:\\{name}", "~/{name}", "nul\x00.safetensors", "\ud800.safetensors", "x" * 5000,
    None, 5, ["{name}"], {"file": "{name}"}, True,
]  # fmt: skip


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda e: ascii(e)[:30])
def test_an_index_entry_that_leaves_the_folder_is_refused(sharded: Path, entry: Any) -> None:
    shard = outside(sharded)
    if isinstance(entry, str):
        entry = entry.replace("{name}", shard.name).replace("{folder}", str(sharded))
    point_to(sharded, entry)
    assert_refused(lambda: load_model(sharded), "^weight_map", (WeightsError,))


def test_an_absolute_index_entry_is_refused_even_inside_of_the_folder(sharded: Path) -> None:
    point_to(sharded, str(next(sharded.glob("model-00002*"))))
    assert_refused(lambda: load_model(sharded), "^weight_map", (WeightsError,))


def test_an_index_entry_that_is_a_link_out_of_the_folder_is_refused(sharded: Path) -> None:
    shard = outside(sharded)
    (sharded / shard.name).symlink_to(shard)
    assert_refused(lambda: load_model(sharded), "^weight_map.*link", (WeightsError,))


def test_links_within_the_folder_and_a_linked_folder_are_read(sharded: Path, tmp_path: Path) -> None:
    shard = next(sharded.glob("model-00002*"))
    (sharded / "blobs").mkdir()
    shard.rename(sharded / "blobs" / "b")
    shard.symlink_to("blobs/b")
    (tmp_path / "by another name").symlink_to(sharded)
    assert load_model(tmp_path / "by another name").config.hidden_size == 32


def test_the_layout_of_the_hubs_cache_is_read(sharded: Path, tmp_path: Path) -> None:
    """Its snapshots are folders of links to blobs beside them."""
    blobs, snapshot = tmp_path / "repo" / "blobs", tmp_path / "repo" / "snapshots" / "abc"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for number, path in enumerate(sorted(sharded.iterdir())):
        path.rename(blobs / str(number))
        (snapshot / path.name).symlink_to(os.path.relpath(blobs / str(number), snapshot))
    assert load_model(snapshot).config.hidden_size == 32


@pytest.mark.parametrize("weight_map", [None, 5, [], "model.safetensors", {}], ids=ascii)
def test_an_index_without_a_map_is_refused(sharded: Path, weight_map: Any) -> None:
    edit(sharded / INDEX, weight_map=weight_map)
    assert_refused(lambda: load_model(sharded), "^weight_map=", (WeightsError,))


def test_an_index_that_names_absent_files_is_refused_in_one_line(sharded: Path) -> None:
    weight_map = json.loads((sharded / INDEX).read_text())["weight_map"]
    edit(sharded / INDEX, weight_map={name: f"model-{i:05d}.safetensors" for i, name in enumerate(weight_map)})
    assert_refused(lambda: load_model(sharded), "^model=.*absent", (WeightsError,))


@pytest.mark.parametrize("keep", [0, 1, 7, 8, 100, -1, -5000])
def test_truncated_weights_are_refused(folder: Path, keep: int) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:keep])
    assert_refused(lambda: load_model(folder), "^model=.*not a whole safetensors file", (WeightsError,))


@pytest.mark.parametrize("header", [b"\xff" * 8, (10**12).to_bytes(8, "little"), b"\x00" * 8])
def test_a_lying_header_is_refused(folder: Path, header: bytes) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(header + weights.read_bytes()[8:])
    assert_refused(lambda: load_model(folder), "^model=", (WeightsError,))


def test_files_that_are_absent_or_folders_are_refused(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    assert_refused(lambda: load_model(folder), r"^model=.*neither model\.safetensors nor", (WeightsError,))
    (folder / "config.json").unlink()
    assert_refused(lambda: load_model(folder), "^model=.*required", (WeightsError,))
    (folder / "config.json").mkdir()
    assert_refused(lambda: load_config(folder), "^model=", (WeightsError,))


@pytest.mark.parametrize("raw", [None, [], 5, "x"], ids=ascii)
def test_what_is_no_configuration_is_refused(raw: Any) -> None:
    assert_refused(lambda: ModelConfig.from_hf(raw), "^config.json=", (ConfigError,))


def test_configurations_made_in_python_are_checked_as_well() -> None:
    good = random_decoder(qwen3=True, seed=0).config
    for name, value in (("hidden_size", True), ("rope_theta", math.nan), ("eos_token_ids", [1]), ("qk_norm", 1)):
        assert_refused(lambda n=name, v=value: ModelConfig(**{**vars(good), n: v}), f"^{name}=", (ConfigError,))
    assert_refused(lambda: YarnScaling(factor=0.5, original_max_position_embeddings=9), r"^rope_scaling\.factor=")


def test_a_tokenizer_that_is_absent_is_refused(tmp_path: Path) -> None:
    assert_refused(lambda: Tokenizer.load(tmp_path), "^model=.*no tokenizer.json", (WeightsError,))
