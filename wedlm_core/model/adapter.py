"""LoRA adapters in peft's format, merged into the weights while these are read. Imports no torch.

A weight W becomes W + scale * B A, computed in float64 in a fixed order and rounded to float32 once, so that it has the
same bits on every machine. The layout is that of peft 0.21: ``adapter_config.json`` and ``adapter_model.safetensors``.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from wedlm_core.errors import WeightsError, explain
from wedlm_core.model.checkpoint import FLOATS, Checkpoint, expected_tensors, opened, read_json, refuse_tensors
from wedlm_core.model.sources import resolve

CONFIG_FILE, ADAPTER_FILE = "adapter_config.json", "adapter_model.safetensors"
_MOST = 2**20  # of a rank or alpha
_CACHED = 2**16  # numbers that stay in a core's cache
_READ = frozenset({
    "r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "target_modules", "exclude_modules",
    "layers_to_transform", "base_model_name_or_path",
})  # fmt: skip
_HARMLESS = frozenset({
    "auto_mapping", "peft_version", "revision", "inference_mode", "lora_dropout", "megatron_core", "qalora_group_size",
    "eva_config", "ensure_weight_tying", "runtime_config",
})  # fmt: skip
_ALLOWED: Mapping[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",), "task_type": (None, "CAUSAL_LM"), "bias": ("none",),
    "layers_pattern": (None, [], "layers", ["layers"]),
    "init_lora_weights": (True, False, "gaussian", "eva", "orthogonal"),
}  # fmt: skip
"""Values of settings that leave W + scale * B A as the whole change. Others, such as "pissa", change W itself."""


@dataclass(frozen=True, kw_only=True)
class LowRank:
    """The two factors of a weight's change: the names of their tensors, and their scale."""

    a: str
    b: str
    scale: float


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """A checked adapter.

    Attributes:
        folder: of its files.
        changes: name of a tensor of the model -> its change.
    """

    folder: Path
    changes: Mapping[str, LowRank]

    @property
    def files(self) -> tuple[Path, ...]:
        """Its settings and its tensors."""
        return self.folder / CONFIG_FILE, self.folder / ADAPTER_FILE

    def merged(self, name: str, start: int, rows_RI: Any) -> Any:
        """Rows of a weight with their change.

        Args:
            name: of the tensor in the checkpoint.
            start: the first row.
            rows_RI: torch tensor, any dtype, any device.

        Returns:
            The rows as they are where the adapter leaves this tensor alone; else float32.

        Raises:
            WeightsError: the adapter has infinite numbers or NaN.
        """
        own = self.changes.get(name)
        if own is None:
            return rows_RI
        with opened(self.files[-1], device=rows_RI.device, what="adapter") as handle:
            a_KI = handle.get_tensor(own.a).double()
            b_RK = handle.get_slice(own.b)[start : start + len(rows_RI)].double()
        for place, factor in ((own.a, a_KI), (own.b, b_RK)):
            if not factor.isfinite().all():
                raise WeightsError(explain("adapter", place, "it has infinite numbers or NaN", "Train it again."))
        change_RI = a_KI.new_zeros(rows_RI.shape)
        together = max(1, _CACHED // a_KI.shape[1]) if a_KI.device.type == "cpu" else max(1, len(b_RK))
        for part_RI, own_RK in zip(change_RI.split(together), b_RK.split(together), strict=True):
            for k in range(len(a_KI)):  # products of float32 are exact in float64, so only the order of sums counts
                part_RI.addcmul_(own_RK[:, k : k + 1], a_KI[k : k + 1])
        return (rows_RI.double() + change_RI.mul_(own.scale)).float()


def resolve_adapter(name: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None) -> Path:
    """The local folder of an adapter; arguments and errors as of :func:`wedlm_core.model.sources.resolve`."""
    return resolve(name, None, storage_options, setting="adapter", needs=CONFIG_FILE)


def with_adapter(found: Checkpoint, folder: Path) -> Checkpoint:
    """A checkpoint with the adapter of a folder.

    Raises:
        WeightsError: it is no LoRA that can be merged, or does not fit the model; the message names value and rule.
    """
    if not (folder / ADAPTER_FILE).is_file():
        raise WeightsError(explain("adapter", str(folder), f"has no {ADAPTER_FILE}", "Save it with save_pretrained."))
    raw = read_json(folder / CONFIG_FILE, required=True, what="adapter")
    _check_settings(raw)
    expected = expected_tensors(found.config)
    modules = [name.removesuffix(".weight") for name in expected if name.endswith("proj.weight")]
    ranks = {module: _value(module, raw, "rank_pattern", "r") for module in modules if _is_target(module, raw)}
    if not ranks:
        rule = f"the model has {sorted({module.rpartition('.')[2] for module in modules})}"
        raise _refused("target_modules", raw.get("target_modules"), rule, "Use the model that it was trained on.")
    changes = {f"{module}.weight": _change(module, raw, rank) for module, rank in ranks.items()}
    shapes = {own.a: [ranks[name[:-7]], expected[name].shape[1]] for name, own in changes.items()}
    shapes |= {own.b: [expected[name].shape[0], ranks[name[:-7]]] for name, own in changes.items()}
    _check_tensors(folder, raw, shapes)
    return replace(found, adapter=Adapter(folder=folder, changes=changes))


def _refused(name: str, value: Any, rule: str, remedy: str) -> WeightsError:
    return WeightsError(explain(f"adapter.{name}", value, rule, remedy))


def _check_settings(raw: Mapping[str, Any]) -> None:
    for name, value in {"peft_type": None, **raw}.items():
        fits = value in _ALLOWED[name] if name in _ALLOWED else not value or name in _READ or name in _HARMLESS
        if not fits:
            rule = f"one of {list(_ALLOWED[name])}" if name in _ALLOWED else "only plain LoRA is merged here"
            raise _refused(name, value, rule, "Merge it with peft (merge_and_unload), and give the merged model.")
    for name in ("rank_pattern", "alpha_pattern", "r", "lora_alpha"):
        value = raw.get(name, {}) or {}
        for number in value.values() if isinstance(value, dict) and "pattern" in name else [raw.get(name, 8)]:
            if not isinstance(number, (int, float)) or not 0 < number < _MOST:
                raise _refused(name, number, f"a number between 0 and {_MOST}", "Correct it.")


def _is_target(module: str, raw: Mapping[str, Any]) -> bool:
    """Whether peft adapts a module of a layer; ``module``: its name in the model."""
    targets, layers = raw.get("target_modules"), raw.get("layers_to_transform")
    if _is_named(module, raw, "exclude_modules") or not _is_named(module, raw, "target_modules"):
        return False
    if layers in (None, []) or isinstance(targets, str) or (targets and module in targets):
        return True
    return int(module.split(".")[2]) in (layers if isinstance(layers, list) else [layers])


def _is_named(module: str, raw: Mapping[str, Any], setting: str) -> bool:
    names = raw.get(setting) or []
    if isinstance(names, str):
        return names == "all-linear" or _matches(names, module, setting)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise _refused(setting, names, "a list of names, or a regular expression", "Correct it.")
    return any(module == name or module.endswith(f".{name}") for name in names)


def _matches(pattern: str, module: str, setting: str) -> bool:
    try:
        return re.fullmatch(pattern, module) is not None
    except (re.error, OverflowError, RecursionError) as error:
        raise _refused(setting, pattern, f"no regular expression ({error})", "Correct it.") from error


def _value(module: str, raw: Mapping[str, Any], pattern: str, name: str) -> Any:
    """A number of a module: of the first pattern that fits it, else of all modules."""
    own = raw.get(pattern) or {}
    return next((own[key] for key in own if _matches(rf"(.*\.)?({key})", module, pattern)), raw.get(name, 8))


def _change(module: str, raw: Mapping[str, Any], rank: float) -> LowRank:
    alpha, prefix = _value(module, raw, "alpha_pattern", "lora_alpha"), f"base_model.model.{module}"
    scale = alpha / (math.sqrt(rank) if raw.get("use_rslora") else rank)
    return LowRank(a=f"{prefix}.lora_A.weight", b=f"{prefix}.lora_B.weight", scale=scale)


def _check_tensors(folder: Path, raw: Mapping[str, Any], shapes: Mapping[str, list[int]]) -> None:
    with opened(folder / ADAPTER_FILE, framework="numpy", what="adapter") as handle:
        inside = {name: handle.get_slice(name) for name in handle.keys()}  # noqa: SIM118  # no mapping
        problems = [f"missing {name}" for name in shapes if name not in inside]
        problems += [f"unexpected {name}" for name in sorted(inside) if name not in shapes]
        for name in (own for own in shapes if own in inside):
            shape, kind = inside[name].get_shape(), inside[name].get_dtype()
            problems += [f"misshapen {name}: {shape}, needs {shapes[name]}"] if shape != shapes[name] else []
            problems += [f"wrong kind {name}: {kind}, needs one of {FLOATS[1:]}"] if kind not in FLOATS[1:] else []
    if problems:
        base = raw.get("base_model_name_or_path") or "not named"
        message = f"adapter={str(folder)!r}: its tensors are not those that its {CONFIG_FILE} describes for this model."
        refuse_tensors(folder, problems, f"{message} Use the model that it was trained on ({base}).")
