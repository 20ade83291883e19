"""Reads ``infra/``: the operator's schemas, objects that kustomize makes, commands in texts."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from testing.repository import ROOT

INFRA = ROOT / "infra"
SCHEMAS = ROOT.parent / "shared" / "kuberay-crd"
"""The operator's schemas, where they lie beside a checkout."""

Object = dict[str, Any]


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


# ---- kustomize


@cache
def render(folder: Path) -> list[Object]:
    """The objects of ``kubectl kustomize FOLDER``; a test that asks for them is skipped where kubectl is missing."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    done = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True, check=True)
    return list(yaml.safe_load_all(done.stdout))


def clusters_of(folder: Path) -> list[Object]:
    """Specifications of the Ray clusters of an overlay."""
    return [cluster for made in render(folder) for cluster in clusters_in(made)]


# ---- commands


def job_commands(text: str) -> list[tuple[str, list[str]]]:
    """Every ``python -m jobs.X`` in a text: module, and the options after it."""
    found = []
    for piece in re.sub(r"\s+", " ", text).split("python -m jobs.")[1:]:
        command = re.split(r"[`|;&#]| (?:python|ray|kubectl|sky) ", piece + " ")[0]
        options = re.findall(r"(?<![\w-])--[a-z][a-z-]*", command)
        found.append((f"jobs.{re.match(r'[a-z_]+', command)[0]}", options))  # type: ignore[index]
    return found
