"""Reads ``infra/``: the operator's schemas, objects as kustomize makes them, commands in texts."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from testing.repository import ROOT

INFRA = ROOT / "infra"
SCHEMAS = ROOT.parent / "shared" / "kuberay-crd"
"""The operator's schemas, where they lie beside a checkout."""

Object = dict[str, Any]
_KNOWN = {
    "apiVersion",
    "kind",
    "resources",
    "images",
    "configMapGenerator",
    "generatorOptions",
    "patches",
    "nameSuffix",
}


def load(path: Path) -> Any:
    """A file of one YAML document."""
    return yaml.safe_load(path.read_text(encoding="utf-8"))


# ---- schemas


def _closed(schema: Any) -> Any:
    """The schema with unknown fields refused, as the API server does when it is asked to be strict."""
    if isinstance(schema, list):
        return [_closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: _closed(part) for name, part in schema.items()}
    open_to_all = schema.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in schema
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object" and not open_to_all:
        found["additionalProperties"] = False
    if schema.get("x-kubernetes-int-or-string"):
        found.pop("type", None)
    return found


@cache
def schema_of(kind: str) -> Any:
    """JSON schema of the operator's objects of a kind; unknown fields are refused, but for metadata."""
    text = (SCHEMAS / f"{kind.lower()}s.yaml").read_text(encoding="utf-8")
    versions = yaml.load(text, Loader=yaml.CSafeLoader)["spec"]["versions"]  # ten times as fast
    (v1,) = [version for version in versions if version["name"] == "v1"]
    schema = _closed(v1["schema"]["openAPIV3Schema"])
    schema["properties"]["metadata"] = {"type": "object"}
    return schema


def clusters_in(value: Any) -> Iterator[Object]:
    """Specifications of Ray clusters anywhere in an object."""
    if isinstance(value, dict):
        if "headGroupSpec" in value:
            yield value
        for part in value.values():
            yield from clusters_in(part)
    elif isinstance(value, list):
        for part in value:
            yield from clusters_in(part)


# ---- kustomize, as far as the overlays use it


def render(folder: Path) -> list[Object]:
    """The objects of ``kubectl kustomize FOLDER``.

    Raises:
        ValueError: the folder's kustomization uses a field, or a way of a field, that is not known here.
    """
    raw = load(folder / "kustomization.yaml")
    if unknown := set(raw) - _KNOWN:
        raise ValueError(f"{folder}: {sorted(unknown)}: this reader knows {sorted(_KNOWN)}")
    objects: list[Object] = []
    for name in raw.get("resources", []):
        path = folder / name
        found = render(path) if path.is_dir() else list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
        objects += copy.deepcopy(found)  # YAML's anchors make parts of an object one and the same
    for patch in raw.get("patches", []):
        for target in objects:
            if target["kind"] == patch["target"]["kind"]:
                for operation in load(folder / patch["path"]):
                    _apply(target, operation)
    if raw.get("configMapGenerator") and not raw.get("generatorOptions", {}).get("disableNameSuffixHash"):
        raise ValueError(f"{folder}: a ConfigMap with a hash in its name, which no Ray object would find")
    for generated in raw.get("configMapGenerator", []):
        data = {name: (folder / name).read_text(encoding="utf-8") for name in generated["files"]}
        metadata = {"name": generated["name"]}
        objects.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})
    for made in objects:
        made["metadata"]["name"] += raw.get("nameSuffix", "")
        for image in raw.get("images", []):
            _rename_images(made, image["name"], f"{image['newName']}:{image['newTag']}")
    return [_plain(made) for made in objects]


def _plain(value: Any) -> Any:
    """A copy without shared parts."""
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, list) else value


def _apply(target: Object, operation: Object) -> None:
    """A JSON patch of a place that exists."""
    *path, last = operation["path"].strip("/").split("/")
    place: Any = target
    for name in path:
        place = place[int(name) if isinstance(place, list) else name]
        if isinstance(place, dict):
            for key, part in place.items():  # this object's own, not an anchor's shared object
                place[key] = _plain(part)
    key = int(last) if isinstance(place, list) else last
    place[key]  # it has to be there
    if operation["op"] == "remove":
        del place[key]
    elif operation["op"] == "replace":
        place[key] = operation["value"]
    else:
        raise ValueError(f"op {operation['op']!r}: remove and replace are known here")


def _rename_images(value: Any, name: str, new: str) -> None:
    if isinstance(value, list):
        for part in value:
            _rename_images(part, name, new)
    elif isinstance(value, dict):
        for key, part in value.items():
            if key == "image" and part == name:
                value[key] = new
            else:
                _rename_images(part, name, new)


# ---- commands


def job_commands(text: str) -> list[tuple[str, list[str]]]:
    """Every ``python -m jobs.X`` in a text: module, and the options after it."""
    found = []
    for piece in re.sub(r"\s+", " ", text).split("python -m jobs.")[1:]:
        command = re.split(r"[`|;&#]| (?:python|ray|kubectl|sky) ", piece + " ")[0]
        options = re.findall(r"(?<![\w-])--[a-z][a-z-]*", command)
        found.append((f"jobs.{re.match(r'[a-z_]+', command)[0]}", options))  # type: ignore[index]
    return found
