"""The contents of a checkpoint folder, and whether its ``config.json`` describes them. Imports no torch.

Only headers of the weights are read: each tensor's name, shape, dtype and place, against the length of its file. So
this is quick for a model of any size, and finds everything that :func:`wedlm_core.model.weights.load_model` would
refuse.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, NoReturn, Protocol

from safetensors import SafetensorError, safe_open

from wedlm_core.checks import is_text
from wedlm_core.config import ModelConfig
from wedlm_core.errors import WeightsError, explain, first_line

SINGLE_FILE, INDEX_FILE = "model.safetensors", "model.safetensors.index.json"
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
_SHOWN = 3  # names of absent files in a message


def read_json(path: Path, *, required: bool = False, what: str = "model") -> dict[str, Any]:
    """The JSON object in ``path``; empty if an optional file is absent. ``what``: the file's name in the error.

    Raises:
        WeightsError: a required file is absent, or the file is not a JSON object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        if not required:
            return {}
        raise WeightsError(explain(what, str(path), "this file is required", "Give a complete folder.")) from error
    except (ValueError, OSError, RecursionError) as error:
        reason = f"not readable JSON ({first_line(error)})"
        raise WeightsError(explain(what, str(path), reason, "Download it again.")) from error
    if not isinstance(value, dict):
        raise WeightsError(explain(what, str(path), "a JSON object is expected", "Download it again."))
    return value


def opened(
    path: Path, *, framework: str = "pt", device: Any = "cpu", what: str = "model", remedy: str = "Download it again."
) -> Any:
    """Open a safetensors file; its header is compared with the length of the file.

    Args:
        path: the file.
        framework: "pt" to read tensors with torch; "numpy" needs no torch, and suffices for the header.
        device: of tensors that are read.
        what: the file's name in the error.
        remedy: the error's advice.

    Raises:
        WeightsError: it is not a complete safetensors file.
    """
    try:
        return safe_open(path, framework=framework, device=str(device))
    except (SafetensorError, OSError) as error:
        rule = f"not a whole safetensors file ({first_line(error)})"
        raise WeightsError(explain(what, str(path), rule, remedy)) from error


def files_by_tensor(folder: Path) -> dict[str, Path]:
    """``{tensor name: file}``, from the index if the folder has one, else from the single file.

    Raises:
        WeightsError: there are no weights, or files of the index are absent or outside of the folder.
    """
    if (folder / INDEX_FILE).is_file():
        weight_map = read_json(folder / INDEX_FILE).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            rule = f"{INDEX_FILE} maps the name of each tensor to its file"
            raise WeightsError(explain("weight_map", weight_map, rule, "Download it again."))
        files = {name: _file_within(folder, name) for name in _file_names(weight_map)}
        absent = sorted(name for name, path in files.items() if not path.is_file())
        if absent:
            few = f"{absent[:_SHOWN]}" + (f" and {len(absent) - _SHOWN} more" if len(absent) > _SHOWN else "")
            raise WeightsError(explain("model", str(folder), f"shards named in {INDEX_FILE} are absent: {few}",
                                       "Download them."))  # fmt: skip
        return {tensor: files[name] for tensor, name in weight_map.items()}
    single = folder / SINGLE_FILE
    if not single.is_file():
        others = sorted(path.name for path in folder.glob("*.safetensors"))[:_SHOWN]
        rule = f"has neither {SINGLE_FILE} nor {INDEX_FILE}" + (f", but {others}" if others else "")
        remedy = "Rename the file, or download the index." if others else how_to_convert(folder)
        raise WeightsError(explain("model", str(folder), rule, remedy))
    with opened(single, framework="numpy") as handle:
        return dict.fromkeys(handle.keys(), single)


def how_to_convert(folder: Path) -> str:
    """The advice for a folder without safetensors; pickled weights are named, and never opened."""
    pickles = sorted(path.name for path in folder.iterdir() if path.suffix in _PICKLES)[:_SHOWN]
    if not pickles:
        return "Convert the checkpoint to safetensors."
    return (
        f"{', '.join(pickles)}: pickles, which can run any code when they are opened, and are not. Convert the "
        "checkpoint to safetensors where you trust it."
    )


def _file_names(weight_map: Mapping[str, Any]) -> list[str]:
    """The distinct file names of an index. Anything but a plain name is refused."""
    for tensor, name in weight_map.items():
        plain = is_text(name) and 1 <= len(name) <= 255 and name not in (".", "..")
        if not plain or any(mark in name for mark in ("/", "\\", ":", "\0")):
            rule = f"{INDEX_FILE} names files of its own folder only, without a path"
            raise WeightsError(explain(f"weight_map[{tensor[:80]!r}]", name, rule, "Download it again."))
    return list(dict.fromkeys(weight_map.values()))


def _file_within(folder: Path, name: str) -> Path:
    """The path of a file in the folder. A link must stay inside, or lead to the blobs of the hub's cache."""
    path, home = folder / name, folder.resolve()
    target = path.resolve()
    blobs = home.parent.parent / "blobs" if home.parent.name == "snapshots" else home
    if target.is_relative_to(home) or target.is_relative_to(blobs):
        return path
    rule = f"a link out of the model's folder (to {target}) is not followed"
    raise WeightsError(explain("weight_map", name, rule, "Put the file itself there."))


_DERIVED = "rotary_emb.inv_freq"  # some old checkpoints store this; it follows from the configuration
_LISTED = 5  # most problems listed per kind; the rest is counted
FLOATS = ("F64", "F32", "F16", "BF16")


class Merges(Protocol):
    """A change of weights, see :class:`wedlm_core.model.adapter.Adapter`."""

    @property
    def files(self) -> tuple[Path, ...]:
        """Its files."""
        ...

    def merged(self, name: str, start: int, rows_RI: Any) -> Any:
        """Rows of a weight with their change."""
        ...


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A checked folder: its configuration, the file of each tensor, and a change of them."""

    folder: Path
    config: ModelConfig
    files: Mapping[str, Path]
    adapter: Merges | None = None


def read_checkpoint(folder: str | os.PathLike[str]) -> Checkpoint:
    """Read configuration and headers of a folder in Hugging Face layout.

    Raises:
        WeightsError: files are absent or damaged; or tensors are missing, misshapen, of a wrong dtype or unexpected.
            One message lists all of them.
        ConfigError: the configuration describes a model this package does not implement.
    """
    folder = Path(folder)
    config, files = load_config(folder), files_by_tensor(folder)
    _check_tensors(folder, config, files)
    return Checkpoint(folder=folder, config=config, files=files)


def load_config(folder: str | os.PathLike[str]) -> ModelConfig:
    """Read ``config.json``. If it has no mask id, it is that of ``generation_config.json``, if any.

    Engines also take the mask token and the end-of-sequence tokens of the tokenizer.

    Raises:
        WeightsError: a file is missing or is not JSON.
        ConfigError: the configuration describes a model this package does not implement.
    """
    raw = read_json(Path(folder) / "config.json", required=True)
    generation = read_json(Path(folder) / "generation_config.json")
    if raw.get("mask_token_id") is None:
        raw["mask_token_id"] = generation.get("mask_token_id")
    return ModelConfig.from_hf(raw)


def _check_tensors(folder: Path, config: ModelConfig, files: Mapping[str, Path]) -> None:
    """Compare names, shapes and dtypes in the files' headers with those that ``config`` asks for."""
    expected = expected_tensors(config)
    tied_head = {"lm_head.weight"} if config.tie_word_embeddings else set()
    problems = [f"missing {name}" for name in expected if name not in files]
    problems += [f"unexpected {name}" for name in sorted(files)
                 if name not in expected and name not in tied_head and not name.endswith(_DERIVED)]  # fmt: skip
    for path in sorted(set(files.values())):
        with opened(path, framework="numpy") as handle:
            inside = set(handle.keys())
            for name in (n for n, home in files.items() if home == path and n in expected):
                if name not in inside:
                    problems.append(f"missing {name} ({INDEX_FILE} says it is in {path.name})")
                    continue
                found = handle.get_slice(name)
                shape, kind = found.get_shape(), found.get_dtype()
                if tuple(shape) != expected[name].shape:
                    problems.append(f"misshapen {name}: {shape}, needs {list(expected[name].shape)}")
                if kind not in FLOATS:
                    problems.append(f"wrong kind {name}: {kind}, needs one of {FLOATS} (quantised files are not read)")
    if problems:
        refuse_tensors(folder, problems)


def refuse_tensors(folder: Path, problems: list[str], message: str = "") -> NoReturn:
    """Raise WeightsError with these problems (each begins with its kind), some of each kind, after a message."""
    lines = []
    for kind, found in groupby(problems, key=lambda problem: problem.split()[0]):
        own = list(found)
        lines += own[:_LISTED] + ([f"and {len(own) - _LISTED} more {kind}"] if len(own) > _LISTED else [])
    listing = "".join(f"\n  {line}" for line in lines)
    message = message or (f"model={str(folder)!r}: the tensors are not those that config.json describes. "
                          "Correct config.json or convert the checkpoint.")  # fmt: skip
    raise WeightsError(f"{message}{listing}")


@dataclass(frozen=True, kw_only=True)
class TensorPlace:
    """Where one Hugging Face tensor belongs.

    Attributes:
        parameter: name of a parameter of :class:`Decoder`.
        start: the tensor fills ``[start : start + shape[0]]`` of the parameter.
        shape: shape of the tensor.
    """

    parameter: str
    start: int
    shape: tuple[int, ...]


def expected_tensors(config: ModelConfig) -> dict[str, TensorPlace]:
    """Every tensor that a checkpoint of ``config`` must hold, by Hugging Face name; ``lm_head`` only if untied."""
    width, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
    q_rows, kv_rows = config.num_attention_heads * dim, config.num_key_value_heads * dim
    expected = {
        "model.embed_tokens.weight": TensorPlace(parameter="embed.weight", start=0, shape=(config.vocab_size, width))
    }
    for i in range(config.num_hidden_layers):
        theirs, ours = f"model.layers.{i}", f"layers.{i}"

        def put(name: str, parameter: str, *shape: int, start: int = 0, t: str = theirs, o: str = ours) -> None:
            expected[f"{t}.{name}"] = TensorPlace(parameter=f"{o}.{parameter}", start=start, shape=shape)

        start = 0
        for letter, rows in (("q", q_rows), ("k", kv_rows), ("v", kv_rows)):
            put(f"self_attn.{letter}_proj.weight", "qkv_proj.weight", rows, width, start=start)
            if config.attention_bias:
                put(f"self_attn.{letter}_proj.bias", "qkv_proj.bias", rows, start=start)
            start += rows
        if config.qk_norm:
            put("self_attn.q_norm.weight", "q_norm.weight", dim)
            put("self_attn.k_norm.weight", "k_norm.weight", dim)
        put("self_attn.o_proj.weight", "o_proj.weight", width, q_rows)
        put("mlp.gate_proj.weight", "gate_up_proj.weight", inner, width)
        put("mlp.up_proj.weight", "gate_up_proj.weight", inner, width, start=inner)
        put("mlp.down_proj.weight", "down_proj.weight", width, inner)
        put("input_layernorm.weight", "input_norm.weight", width)
        put("post_attention_layernorm.weight", "post_norm.weight", width)
    expected["model.norm.weight"] = TensorPlace(parameter="norm.weight", start=0, shape=(width,))
    if not config.tie_word_embeddings:
        expected["lm_head.weight"] = TensorPlace(parameter="lm_head.weight", start=0, shape=(config.vocab_size, width))
    return expected
