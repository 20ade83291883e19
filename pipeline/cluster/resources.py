"""What generate actors reserve, and whether a cluster can hold them. Starts no Ray: asks it only where it runs."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.config import RunConfig
from pipeline.errors import ResourceError

__all__ = [
    "ActorResources",
    "Nodes",
    "connected_nodes",
    "fit_actors",
    "is_private",
    "local_cpus",
    "local_node",
    "surplus_actors",
]

Nodes = Sequence[Mapping[str, float]]
"""Ray's resources (CPU, GPU, ...) of each node."""
_SHARE_FOR_ACTORS = 0.75
_LEAST_CPUS = 0.25
"""Of an actor without a GPU whose CPUs are "auto": with less of a CPU each, actors only take turns."""
_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, kw_only=True)
class ActorResources:
    """How many generate actors there are, what each reserves, and how many threads its engine uses."""

    actors: int
    cpus: float
    gpus: float
    threads: int


def is_private() -> bool:
    """Whether a run would start a Ray of its own on this machine: no session is there, and no address is given."""
    ray = sys.modules.get("ray")
    return not os.environ.get("RAY_ADDRESS") and not (ray is not None and ray.is_initialized())


def connected_nodes() -> Nodes:
    """The nodes of the Ray session of this process."""
    import ray

    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def local_node() -> Mapping[str, float]:
    """The resources of this machine, as a private session sees them."""
    return {"CPU": float(local_cpus()), "GPU": float(_local_gpus())}


def local_cpus() -> int:
    """CPUs that this process may use: of its affinity, and of its container's quota."""
    affinity = getattr(os, "sched_getaffinity", None)
    cpus = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    quota = _quota()
    return cpus if quota is None else max(1, min(cpus, int(quota)))


def _quota() -> float | None:
    """CPUs of the container's quota; None if it has none."""
    try:
        if (_CGROUP / "cpu.max").is_file():
            quota, period = (_CGROUP / "cpu.max").read_text().split()
        else:
            quota, period = ((_CGROUP / "cpu" / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return float(quota) / float(period) if float(quota) > 0 else None
    except (OSError, ValueError):  # not in a container, or "max"
        return None


def _local_gpus() -> int:
    """NVIDIA GPUs whose driver is loaded, of those that CUDA_VISIBLE_DEVICES leaves."""
    there = len(list(Path("/proc/driver/nvidia/gpus").glob("*")))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return there if visible is None else min(there, len([name for name in visible.split(",") if name.strip()]))


def surplus_actors(config: RunConfig, units: int) -> str | None:
    """What to say if there are more actors than units: the surplus would have nothing to do, and is not started."""
    if config.actors <= max(1, units):
        return None
    return (
        f"actors={config.actors}: the rows to do make {units} unit{'s' * (units != 1)}, and an actor needs one at "
        f"least, so {max(1, units)} will be started. Lower actors, or unit_rows."
    )


def fit_actors(config: RunConfig, nodes: Nodes, units: int | None = None) -> ActorResources:
    """Resources per actor on these nodes.

    Args:
        config: asks for actors.
        nodes: of the cluster.
        units: work for the actors; there are no more of them than this. None: not known yet.

    Raises:
        ResourceError: the cluster cannot hold the actors (Ray itself would wait for ever), or has no use for so many.
    """
    actors = config.actors if units is None else min(config.actors, max(1, units))
    have = {key: sum(node.get(key, 0.0) for node in nodes) for key in ("CPU", "GPU")}
    gpus = (1.0 if have["GPU"] > 0 else 0.0) if config.gpus_per_actor == "auto" else float(config.gpus_per_actor)
    if config.cpus_per_actor == "auto":
        # Prefetch tasks need CPUs too: actors that reserve all of them would wait for their input for ever.
        cpus = min(1.0, math.floor(100 * _SHARE_FOR_ACTORS * have["CPU"] / actors) / 100)
    else:
        cpus = float(config.cpus_per_actor)
    if not config.expect_autoscaling:
        _check_device(config, have)
        _check_shares(config, actors, have, cpus, gpus)
        _check_room(config, actors, nodes, have, cpus, gpus)
    # By the actors that are asked for, so that a run that continues with fewer units left has the same threads.
    threads = config.num_threads or max(1, int(have["CPU"]) // config.actors)
    return ActorResources(actors=actors, cpus=cpus, gpus=gpus, threads=threads)


def _check_device(config: RunConfig, have: Mapping[str, float]) -> None:
    if not config.device.startswith("cuda"):
        return
    if have["GPU"] <= 0:
        raise ResourceError(
            f"device={config.device!r}: there is no GPU here (the cluster has {have['CPU']:g} CPU, 0 GPU). "
            'Use "cpu" or "auto", or set expect_autoscaling if nodes with GPUs will be added.'
        )
    number, own = int(config.device.partition(":")[2] or 0), config.gpus_per_actor
    seen = 1 if own == "auto" else math.ceil(own)
    if seen and number >= seen:
        raise ResourceError(
            f"device={config.device!r}: an actor sees the {seen} GPU{'s' * (seen > 1)} that it reserves, numbered from "
            '0. Use "cuda"; gpus_per_actor says how many an actor reserves.'
        )


def _check_shares(config: RunConfig, actors: int, have: Mapping[str, float], cpus: float, gpus: float) -> None:
    if config.cpus_per_actor != "auto" or gpus or cpus >= _LEAST_CPUS or actors == 1:
        return
    most = max(1, int(_SHARE_FOR_ACTORS * have["CPU"] / _LEAST_CPUS))
    raise ResourceError(
        f"actors={config.actors}: the cluster's {have['CPU']:g} CPU are of use to {most} at most, a quarter of a CPU "
        f"each. Lower actors to {most} (one per core is fastest), or set cpus_per_actor."
    )


def _check_room(
    config: RunConfig, actors: int, nodes: Nodes, have: Mapping[str, float], cpus: float, gpus: float
) -> None:
    room = 0
    for node in nodes:
        wanted = [(has, each) for has, each in ((node.get("CPU", 0), cpus), (node.get("GPU", 0), gpus)) if each > 0]
        room += min((int(has / each + 1e-9) for has, each in wanted), default=actors)
    if room < actors:
        raise ResourceError(
            f"actors={config.actors} with {cpus:g} CPU and {gpus:g} GPU each: the cluster ({have['CPU']:g} CPU, "
            f"{have['GPU']:g} GPU on {len(nodes)} nodes) has room for {room}. Lower actors, gpus_per_actor or "
            "cpus_per_actor, or set expect_autoscaling if nodes will be added."
        )
    if have["CPU"] - cpus * actors <= 0:
        raise ResourceError(
            f"actors={actors} with {cpus:g} CPU each take every CPU of the cluster, and nothing is left to read "
            "and tokenise the input. Lower cpus_per_actor."
        )
