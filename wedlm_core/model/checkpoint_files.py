"""The files of a checkpoint folder: read its JSON files, open its safetensors files. Imports no torch by itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from wedlm_core.checks import is_text
from wedlm_core.errors import WeightsError, explain, first_line

__all__ = ["INDEX_FILE", "SINGLE_FILE", "files_by_tensor", "how_to_convert", "opened", "read_json"]

SINGLE_FILE, INDEX_FILE = "model.safetensors", "model.safetensors.index.json"
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
_SHOWN = 3  # names of absent files in a message


def read_json(path: Path, *, required: bool = False) -> dict[str, Any]:
    """The JSON object in ``path``; empty if an optional file is absent.

    Raises:
        WeightsError: a required file is absent, or the file is not a JSON object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        if not required:
            return {}
        raise WeightsError(explain("model", str(path), "this file is required", "Give a complete folder.")) from error
    except (ValueError, OSError, RecursionError) as error:
        reason = f"not readable JSON ({first_line(error)})"
        raise WeightsError(explain("model", str(path), reason, "Download it again.")) from error
    if not isinstance(value, dict):
        raise WeightsError(explain("model", str(path), "a JSON object is expected", "Download it again."))
    return value


def opened(
    path: Path, *, framework: str = "pt", device: Any = "cpu", what: str = "model", remedy: str = "Download it again."
) -> Any:
    """Open a safetensors file; its header is compared with the length of the file.

    Args:
        path: the file.
        framework: "pt" to read tensors with torch; "numpy" needs no torch, and suffices for the header.
        device: of tensors that are read.
        what: names the file in the error.
        remedy: what the error advises.

    Raises:
        WeightsError: it is not a complete safetensors file.
    """
    try:
        return safe_open(path, framework=framework, device=str(device))
    except (SafetensorError, OSError) as error:
        rule = f"not a whole safetensors file ({first_line(error)})"
        raise WeightsError(explain(what, str(path), rule, remedy)) from error


def files_by_tensor(folder: Path) -> dict[str, Path]:
    """``{tensor name: file}``, from the index if there is one, else from the single file.

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
    """What to do with a folder without safetensors; pickled weights are named, and never opened."""
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
