"""``infra/`` agrees with the operator's schemas and the code: kinds, fields, commands, names, versions."""

from __future__ import annotations

import argparse
import ast
import re
import shlex
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from jobs.config_options import add_config_options
from jobs.etl import main, make_config
from pipeline import RunConfig
from testing.infra import INFRA, SCHEMAS, clusters_in, clusters_of, job_commands, load, render, schema_of
from testing.repository import ROOT, pins
from wedlm_base.version import VERSION

KUBERAY = INFRA / "kuberay"
MANIFESTS = sorted(KUBERAY.rglob("ray*.yaml"))
OVERLAYS = sorted(path.parent for path in (KUBERAY / "overlays").glob("*/kustomization.yaml"))
TEXTS = sorted(path for path in INFRA.rglob("*") if path.suffix in (".yaml", ".yml", ".md", ".py"))
over_overlays = pytest.mark.parametrize("folder", OVERLAYS, ids=lambda folder: folder.name)
CONTAINERFILE = (INFRA / "Containerfile").read_text(encoding="utf-8")
PINNED = pins()
needs_schemas = pytest.mark.skipif(not SCHEMAS.is_dir(), reason="the operator's schemas are not beside this repository")


def check(made: dict[str, Any]) -> None:
    assert made["apiVersion"] == "ray.io/v1"
    jsonschema.Draft202012Validator(schema_of(made["kind"])).validate(made)


def groups_of(cluster: dict[str, Any]) -> list[dict[str, Any]]:
    return [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]


def groups_in(folder: Path) -> list[dict[str, Any]]:
    return [group for cluster in clusters_of(folder) for group in groups_of(cluster)]


def containers_of(cluster: dict[str, Any]) -> list[dict[str, Any]]:
    return [container for group in groups_of(cluster) for container in group["template"]["spec"]["containers"]]


def ray_options(command: str) -> set[str]:
    """Options of a command of Ray's command line."""
    import ray.scripts.scripts as scripts

    return {option for parameter in scripts.cli.commands[command].params for option in parameter.opts}


# ---- schemas


def test_there_are_manifests_and_overlays() -> None:
    assert {"rayjob.yaml", "raycluster.yaml"} <= {path.name for path in MANIFESTS}
    assert {"generate", "generate-cpu", "cluster"} <= {folder.name for folder in OVERLAYS}


@needs_schemas
@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_a_manifest_is_valid_and_has_no_unknown_field(path: Path) -> None:
    check(load(path))


@needs_schemas
@over_overlays
def test_an_overlay_makes_valid_objects(folder: Path) -> None:
    for made in render(folder):
        if "Ray" in made["kind"]:
            check(made)


# ---- kustomize


def test_every_file_is_used_by_a_kustomization_and_no_other_is_named() -> None:
    used = set()
    for path in KUBERAY.rglob("kustomization.yaml"):
        raw = load(path)
        names = [*raw.get("resources", []), *(patch["path"] for patch in raw.get("patches", []))]
        names += [name for made in raw.get("configMapGenerator", []) for name in made["files"]]
        for name in names:
            target = (path.parent / name).resolve()
            assert target.exists(), f"{path.relative_to(ROOT)} names {name}"
            used.add(target / "kustomization.yaml" if target.is_dir() else target)
    roots = {folder / "kustomization.yaml" for folder in OVERLAYS}
    assert {path for path in KUBERAY.rglob("*") if path.is_file()} == used | roots


@over_overlays
def test_configmaps_that_pods_mount_are_made(folder: Path) -> None:
    made = render(folder)
    there = {one["metadata"]["name"] for one in made if one["kind"] == "ConfigMap"}
    pods = [group["template"]["spec"] for cluster in clusters_of(folder) for group in groups_of(cluster)]
    assert {v["configMap"]["name"] for pod in pods for v in pod["volumes"] if "configMap" in v} == there


# ---- jobs, commands, names


@pytest.mark.parametrize("path", sorted(KUBERAY.glob("overlays/*/job.yaml")), ids=lambda path: path.parent.name)
def test_a_job_is_a_configuration_that_the_workers_can_serve(path: Path) -> None:
    config = RunConfig.from_mapping(load(path))
    assert config.expect_autoscaling, "workers start at none"
    assert not config.storage_options, "credentials come from the environment"
    (cluster,) = clusters_of(path.parent)
    (group,) = cluster["workerGroupSpecs"]
    gpus = int(group["rayStartParams"]["num-gpus"])
    resources = group["template"]["spec"]["containers"][0]["resources"]
    assert int(resources["limits"].get("nvidia.com/gpu", 0)) == gpus
    actors = getattr(config.actors, "max", config.actors)
    if gpus:
        assert actors * float(config.gpus_per_actor) <= gpus * group["maxReplicas"]
    else:
        room = int(resources["requests"]["cpu"]) * group["maxReplicas"]
        assert actors * float(config.cpus_per_actor) < room, "tasks that read and tokenise need CPUs too"


def test_the_entrypoint_is_a_command_of_ours_with_options_that_it_has() -> None:
    made = load(KUBERAY / "base" / "job" / "rayjob.yaml")
    words = shlex.split(made["spec"]["entrypoint"])
    assert words[:3] == ["python", "-m", "jobs.generate"]
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_config_options(parser)
    args = parser.parse_args(words[3:])
    (cluster,) = clusters_in(made)
    mounts = {m["mountPath"] for container in containers_of(cluster) for m in container["volumeMounts"]}
    assert str(args.config.parent) in mounts, "the configuration is mounted where the entrypoint reads it"


def test_the_scheduled_job_is_a_command_and_a_configuration_of_ours() -> None:
    overlay = KUBERAY / "overlays" / "etl"
    cron = load(KUBERAY / "base" / "etl" / "raycronjob.yaml")
    words = shlex.split(cron["spec"]["jobTemplate"]["entrypoint"])
    assert words[:3] == ["python", "-m", "jobs.etl"]
    args = main.parse(words[3:])
    mounted = Path(args.config)
    args.config = overlay / mounted.name
    config = make_config(args)
    assert config.since is not None
    assert config.run.expect_autoscaling
    (generated,) = load(overlay / "kustomization.yaml")["configMapGenerator"]
    assert generated["files"] == [mounted.name]
    (cluster,) = clusters_in(cron)
    for group in groups_of(cluster):
        pod = group["template"]["spec"]
        (volume,) = [v for v in pod["volumes"] if v.get("configMap", {}).get("name") == generated["name"]]
        mounts = [m for container in pod["containers"] for m in container["volumeMounts"]]
        assert {"name": volume["name"], "mountPath": str(mounted.parent), "readOnly": True} in mounts
    (workers,) = cluster["workerGroupSpecs"]
    assert config.run.most_actors * float(config.run.gpus_per_actor) <= workers["maxReplicas"]


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(INFRA)))
def test_commands_name_jobs_and_options_that_are_there(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":  # strings that are written in pieces
        text = " ".join(node.value for node in ast.walk(ast.parse(text))
                        if isinstance(node, ast.Constant) and isinstance(node.value, str))  # fmt: skip
    for module, options in job_commands(text):
        file = ROOT.joinpath(*module.split(".")).with_suffix(".py")
        assert file.exists(), module
        shared = [ROOT / "jobs" / name for name in ("cli.py", "config_options.py")]
        source = "".join(part.read_text(encoding="utf-8") for part in (file, *shared))
        absent = [option for option in options if f'"{option}"' not in source]
        assert not absent, f"{module} has no {absent}"


def test_commands_are_found_in_manifests() -> None:
    found = [command for path in TEXTS for command in job_commands(path.read_text(encoding="utf-8"))]
    assert ("jobs.generate", ["--config"]) in found


@over_overlays
def test_nodes_are_started_with_options_that_ray_has(folder: Path) -> None:
    options = ray_options("start")
    for group in groups_in(folder):
        assert not [name for name in group["rayStartParams"] if f"--{name}" not in options]


@over_overlays
def test_metrics_are_served_at_the_port_that_pods_declare(folder: Path) -> None:
    for group in groups_in(folder):
        ports = {port["name"]: port["containerPort"] for port in group["template"]["spec"]["containers"][0]["ports"]}
        assert str(ports["metrics"]) == group["rayStartParams"]["metrics-export-port"]


@over_overlays
def test_a_head_does_no_work_and_a_worker_drains_within_its_grace(folder: Path) -> None:
    (made,) = clusters_of(folder)
    head = made["headGroupSpec"]
    assert (head["rayStartParams"]["num-cpus"], head["rayStartParams"]["num-gpus"]) == ("0", "0")
    assert "tolerations" not in head["template"]["spec"], "on demand: nodes for spot have a taint"
    assert made["enableInTreeAutoscaling"]
    for group in made["workerGroupSpecs"]:
        assert group["minReplicas"] == 0 < group["maxReplicas"]
        pod = group["template"]["spec"]
        shell, flag, script = pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
        assert (shell, flag) == ("sh", "-c")
        drain, wait = (shlex.split(part) for part in script.split(";"))
        assert drain[:2] == ["ray", "drain-node"]
        given = dict(zip(drain[2::2], drain[3::2], strict=True))
        assert set(given) <= ray_options("drain-node")
        import ray.scripts.scripts as scripts

        reasons = next(p.type for p in scripts.drain_node.params if "--reason" in p.opts)
        assert given["--reason"] in reasons.choices
        deadline = int(given["--deadline-remaining-seconds"])
        assert int(wait[1]) >= deadline, "the pod waits for its actors"
        assert pod["terminationGracePeriodSeconds"] > deadline + 10, "and then for their processes"


@over_overlays
def test_pods_have_no_privileges_and_can_write_where_the_image_says(folder: Path) -> None:
    caches = set(re.findall(r"=(/cache)/", CONTAINERFILE))
    assert caches
    for group in groups_in(folder):
        pod = group["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert f"USER {pod['securityContext']['runAsUser']}\n" in CONTAINERFILE
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        for container in pod["containers"]:
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            writable = {m["mountPath"] for m in container["volumeMounts"] if "emptyDir" in volumes[m["name"]]}
            assert {"/tmp", *caches} <= writable


def test_images_are_built_from_the_containerfile_in_this_version() -> None:
    targets = set(re.findall(r"^FROM base AS (\S+)$", CONTAINERFILE, re.MULTILINE))
    assert targets == {"cpu", "cuda"}
    allowed = {f"registry.example.com/wedlm-batch:{VERSION}-{target}" for target in targets}
    images = {container["image"] for folder in OVERLAYS for c in clusters_of(folder) for container in containers_of(c)}
    assert images == allowed
    named = {image for path in TEXTS for image in re.findall(r"\S*/wedlm-batch:[\w.-]+", path.read_text("utf-8"))}
    assert {re.sub(r"^docker:", "", image) for image in named} <= allowed
    assert load(INFRA / "ray-up" / "aws.yaml")["docker"]["image"] in allowed
    for path in MANIFESTS:
        for cluster in clusters_in(load(path)):
            plain = {container["image"] for container in containers_of(cluster)}
            assert plain == {"wedlm-batch"}, "the name that overlays replace"


def test_versions_are_those_that_this_repository_is_tested_with() -> None:
    for path in MANIFESTS:
        for cluster in clusters_in(load(path)):
            assert cluster["rayVersion"] == PINNED["ray"], path.name


# ---- the image


def test_what_the_image_copies_and_installs_exists() -> None:
    copies = re.findall(r"^COPY (?!--from)(.+)$", CONTAINERFILE, re.MULTILINE)
    sources = [word for line in copies for word in line.split()[:-1]]
    assert sources
    assert all((ROOT / source).exists() for source in sources), sources
    stages = re.findall(r"^FROM \S+ AS (\S+)$", CONTAINERFILE, re.MULTILINE)
    assert set(re.findall(r"[-,]from=([\w-]+)", CONTAINERFILE)) <= set(stages)


def test_every_package_of_the_image_has_the_version_of_the_constraints() -> None:
    commands = re.findall(r"pip (?:install|wheel) (.+)", CONTAINERFILE.replace("\\\n", " "))
    ours = "--no-cache-dir --no-deps --wheel-dir /wheels ."
    assert ours in commands
    assert not [one for one in commands if one != ours and "--constraint /opt/constraints.txt" not in one]
    assert set(re.findall(r"^COPY constraints.txt (\S+)$", CONTAINERFILE, re.MULTILINE)) == {"/opt/constraints.txt"}
    assert {"torch", "triton", "flash-attn", "ninja", "setuptools", "wheel", "packaging"} <= set(PINNED)


def test_the_cuda_image_has_flash_attn_and_the_cpu_image_has_not() -> None:
    stages = dict(re.findall(r"^FROM \S+ AS (\S+)\n(.*?)(?=^FROM|\Z)", CONTAINERFILE, re.MULTILINE | re.DOTALL))
    assert "from=flash-attn" in stages["cuda"]
    assert "flash" not in stages["cpu"]
    assert "pip wheel" in stages["flash-attn"]
    for target in ("cpu", "cuda"):
        assert re.search(r"^USER 1000$", stages[target], re.MULTILINE)


RAY_NAMES = re.compile(r"\bRAY_[A-Z_]{3,}\b")
"""Names of environment variables of Ray's own."""


def test_environment_variables_are_read_by_somebody() -> None:
    trees = (ROOT / "wedlm_core", ROOT / "pipeline", ROOT / "jobs")
    code = "".join(path.read_text(encoding="utf-8") for tree in trees for path in tree.rglob("*.py"))
    texts = CONTAINERFILE + "".join(path.read_text(encoding="utf-8") for path in TEXTS)
    ours = set(re.findall(r"\bWEDLM_[A-Z_]+\b", texts))
    assert "WEDLM_CACHE_HOME" in ours
    assert not [name for name in ours if f'"{name}"' not in code], "a variable that nothing reads"
    import ray

    package = Path(ray.__file__).parent
    files = [*package.glob("_private/*.py"), *package.glob("dashboard/modules/job/*.py"), *package.glob("scripts/*.py"),
             *package.glob("autoscaler/_private/*.py")]  # fmt: skip
    known = "".join(path.read_text(encoding="utf-8") for path in files)
    rays = set(RAY_NAMES.findall(texts))
    assert {"RAY_JOB_STOP_WAIT_TIME_S"} <= rays
    assert not [name for name in rays if name not in known]
