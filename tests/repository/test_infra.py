"""What ``infra/`` says is true of the operator's schemas and of the code: kinds, fields, commands, names, versions."""

from __future__ import annotations

import re
import shlex
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from jobs.cli import add_config_options
from jobs.etl import make_config, make_parser
from pipeline import RunConfig
from testing.repository import ROOT
from testing.torch_pair import pins
from wedlm_batch.version import VERSION

INFRA = ROOT / "infra"
SCHEMAS = ROOT.parent / "shared" / "kuberay-crd"
MANIFESTS = sorted(path for path in (INFRA / "kuberay").rglob("ray*.yaml"))
needs_schemas = pytest.mark.skipif(not SCHEMAS.is_dir(), reason="the operator's schemas are not beside this repository")


def closed(schema: Any) -> Any:
    """The schema with unknown fields refused, as the API server does when it is asked to be strict."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: closed(part) for name, part in schema.items()}
    open_to_all = schema.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in schema
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object" and not open_to_all:
        found["additionalProperties"] = False
    if schema.get("x-kubernetes-int-or-string"):
        found.pop("type", None)
    return found


@cache
def schema_of(kind: str) -> Any:
    text = (SCHEMAS / f"{kind.lower()}s.yaml").read_text(encoding="utf-8")
    versions = yaml.load(text, Loader=yaml.CSafeLoader)["spec"]["versions"]  # ten times as fast
    (v1,) = [version for version in versions if version["name"] == "v1"]
    schema = closed(v1["schema"]["openAPIV3Schema"])
    schema["properties"]["metadata"] = {"type": "object"}
    return schema


def manifest(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return found


def cluster_of(spec: dict[str, Any]) -> dict[str, Any]:
    inner = spec["spec"].get("jobTemplate", spec["spec"])
    found: dict[str, Any] = inner.get("rayClusterSpec", inner)
    return found


def pods_of(spec: dict[str, Any]) -> list[dict[str, Any]]:
    cluster = cluster_of(spec)
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    return [group["template"]["spec"] for group in groups]


@needs_schemas
@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_a_manifest_is_valid_and_has_no_unknown_field(path: Path) -> None:
    found = manifest(path)
    assert found["apiVersion"] == "ray.io/v1"
    jsonschema.Draft202012Validator(schema_of(found["kind"])).validate(found)


@needs_schemas
@pytest.mark.parametrize("place", [("spec",), ("spec", "rayClusterSpec"), ("spec", "rayClusterSpec", "headGroupSpec")])
def test_an_unknown_field_is_refused_at_any_depth(place: tuple[str, ...]) -> None:
    found = manifest(INFRA / "kuberay" / "rayjob.yaml")
    inner = found
    for name in place:
        inner = inner[name]
    inner["minReplica"] = 1
    with pytest.raises(jsonschema.ValidationError, match="minReplica"):
        jsonschema.Draft202012Validator(schema_of("RayJob")).validate(found)


def test_the_entrypoint_is_a_command_of_ours_with_options_that_it_has() -> None:
    words = shlex.split(manifest(INFRA / "kuberay" / "rayjob.yaml")["spec"]["entrypoint"])
    assert words[:3] == ["python", "-m", "jobs.generate"]
    import argparse

    parser = argparse.ArgumentParser(exit_on_error=False)
    add_config_options(parser)
    args = parser.parse_args(words[3:])
    mounts = {m["mountPath"] for pod in pods_of(manifest(INFRA / "kuberay" / "rayjob.yaml"))
              for container in pod["containers"] for m in container["volumeMounts"]}  # fmt: skip
    assert str(args.config.parent) in mounts, "the configuration is mounted where the entrypoint reads it"


def test_the_job_is_a_configuration_that_the_workers_can_serve() -> None:
    config = RunConfig.from_mapping(yaml.safe_load((INFRA / "kuberay" / "job.yaml").read_text(encoding="utf-8")))
    assert config.expect_autoscaling, "workers start at none"
    (group,) = cluster_of(manifest(INFRA / "kuberay" / "rayjob.yaml"))["workerGroupSpecs"]
    gpus = int(group["rayStartParams"]["num-gpus"])
    assert config.actors * float(config.gpus_per_actor) <= gpus * group["maxReplicas"]
    limits = group["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert int(limits["nvidia.com/gpu"]) == gpus
    assert not config.storage_options, "credentials come from the environment"


def test_the_scheduled_job_is_a_command_and_a_configuration_of_ours() -> None:
    cron = manifest(INFRA / "kuberay" / "base" / "etl" / "raycronjob.yaml")
    words = shlex.split(cron["spec"]["jobTemplate"]["entrypoint"])
    assert words[:3] == ["python", "-m", "jobs.etl"]
    args = make_parser("etl").parse_args(words[3:])
    mounted = Path(args.config)
    overlay = INFRA / "kuberay" / "overlays" / "etl"
    args.config = overlay / mounted.name
    config = make_config(args)
    assert config.since is not None
    assert config.run.expect_autoscaling
    (generated,) = manifest(overlay / "kustomization.yaml")["configMapGenerator"]
    assert generated["files"] == [mounted.name]
    for pod in pods_of(cron):
        (volume,) = [v for v in pod["volumes"] if v.get("configMap", {}).get("name") == generated["name"]]
        mounts = [m for container in pod["containers"] for m in container["volumeMounts"]]
        assert {"name": volume["name"], "mountPath": str(mounted.parent), "readOnly": True} in mounts
    (group,) = cluster_of(cron)["workerGroupSpecs"]
    assert config.run.actors * float(config.run.gpus_per_actor) <= group["maxReplicas"]


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_pods_have_no_privileges_and_can_write_where_the_image_says(path: Path) -> None:
    caches = re.findall(r"=(/cache)/", (INFRA / "Containerfile").read_text(encoding="utf-8"))
    assert caches
    for pod in pods_of(manifest(path)):
        assert pod["securityContext"]["runAsNonRoot"] is True
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        for container in pod["containers"]:
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            writable = {m["mountPath"] for m in container["volumeMounts"] if "emptyDir" in volumes[m["name"]]}
            assert {"/tmp", *caches} <= writable


def test_versions_are_those_that_this_repository_is_tested_with() -> None:
    pinned = pins((ROOT / "constraints.txt").read_text(encoding="utf-8"))
    for path in MANIFESTS:
        assert cluster_of(manifest(path))["rayVersion"] == pinned["ray"], path.name
    kustomization = manifest(INFRA / "kuberay" / "kustomization.yaml")
    (image,) = kustomization["images"]
    assert image["newTag"].startswith(VERSION)
    assert all(
        image["name"] == c["image"] for path in MANIFESTS for p in pods_of(manifest(path)) for c in p["containers"]
    )
    assert all((INFRA / "kuberay" / name).is_file() for name in kustomization["resources"])


def test_what_the_image_copies_and_installs_exists() -> None:
    text = (INFRA / "Containerfile").read_text(encoding="utf-8")
    sources = [word for line in re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE) for word in line.split()[:-1]]
    assert sources
    assert all((ROOT / source).exists() for source in sources), sources
    used = set(re.findall(r"\b(WEDLM_\w+)=", text))
    code = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "wedlm_core").rglob("*.py"))
    assert used
    assert all(f'"{name}"' in code for name in used), "an environment variable that nothing reads"
