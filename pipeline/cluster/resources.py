"""Resources of generate actors, and whether a cluster can hold them. Starts no Ray: asks it only where it runs."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pipeline.config import RunConfig
from pipeline.errors import ResourceError
from pipeline.settings.pools import ActorRange

Nodes = Sequence[Mapping[str, float]]
"""Ray's resources (CPU, GPU, ...) of each node."""
_SHARE_FOR_ACTORS = 0.75
_LEAST_CPUS = 0.25
"""Of an actor without a GPU whose CPUs are "auto": with less of a CPU each, actors only take turns."""
_KIND = "accelerator_type:"
"""Prefix of the names of Ray's resources for types of accelerators."""
_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, kw_only=True)
class ActorResources:
    """The generate actors of a pool.

    Attributes:
        actors, least: how many there are at most, and how many stay while there is work.
        cpus, gpus, custom, accelerator_type: reserved by each actor.
        per_node: of them on one node at most; None lets resources decide.
        threads: of each engine.
        idle_seconds: an actor above ``least`` that has had no unit for so long is ended.
        grows: whether more are asked for than the cluster has room for, so that nodes are added.
    """

    actors: int
    cpus: float
    gpus: float
    threads: int
    least: int = 1
    custom: Mapping[str, float] = field(default_factory=dict)
    accelerator_type: str | None = None
    per_node: int | None = None
    idle_seconds: float = 0.0
    grows: bool = False

    def describe(self) -> str:
        """Describe the resources of an actor."""
        wants = [
            f"{self.cpus:g} CPU",
            f"{self.gpus:g} GPU",
            *(f"{each:g} {name}" for name, each in self.custom.items()),
        ]
        on = "" if self.accelerator_type is None else f" on {self.accelerator_type} nodes"
        per_node = "" if self.per_node is None else f", at most {self.per_node} on a node"
        return f"{', '.join(wants[:-1])} and {wants[-1]}{on}{per_node}"


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
    """The message if there are more actors than units: the surplus would have nothing to do, and is not started."""
    runs = config.runs_of_pools()
    numbers = {name: run.actors for name, run in runs.items() if not isinstance(run.actors, ActorRange)}
    name = next((name for name, actors in numbers.items() if actors > max(1, units)), None)
    if name is None:
        return None
    setting = f"pools.{name}.actors" if name else "actors"
    return (
        f"{setting}={numbers[name]}: the rows to do make {units} unit{'s' * (units != 1)}, and an actor needs one at "
        f"least, so {max(1, units)} will be started. Lower actors, or unit_rows."
    )


def fit_pools(
    config: RunConfig,
    nodes: Nodes,
    units: int | None = None,
    *,
    private: bool = False,
    beside: Sequence[RunConfig] = (),
) -> dict[str, ActorResources]:
    """Resources of the actors of each pool on these nodes; without ``pools`` there is one pool, "".

    Args:
        config: asks for actors.
        nodes: of the cluster.
        units: work for the actors; no pool has more of them than this. None: not known yet.
        private: whether the session is the run's own, which no node is ever added to.
        beside: runs whose actors share the cluster with these.

    Raises:
        ResourceError: the cluster cannot hold the number of actors, or not even one actor of a range (Ray itself would
            wait for ever), or has no use for so many.
    """
    left = [dict(node) for node in nodes]
    fitted: dict[str, ActorResources] = {}
    for whole in (config, *beside):
        others = sum(other.most_actors for other in (config, *beside) if other is not whole)
        for name, run in whole.runs_of_pools().items():
            try:
                found = _fit(
                    run, whole, nodes, left, units if whole is config else None, private=private, others=others
                )
            except ResourceError as error:
                if name:
                    raise ResourceError(f"pools.{name}: {error}") from error
                raise
            if whole is config:
                fitted[name] = found
    return fitted


def fit_actors(config: RunConfig, nodes: Nodes, units: int | None = None) -> ActorResources:
    """:func:`fit_pools` of a run of one pool."""
    (only,) = fit_pools(config, nodes, units).values()
    return only


def _fit(
    run: RunConfig, whole: RunConfig, nodes: Nodes, left: list[dict[str, float]], units: int | None, *, private: bool,
    others: int = 0,
) -> ActorResources:  # fmt: skip
    """Resources of a pool's actors.

    ``run`` is the run as the pool sees it, ``whole`` that of all pools; ``left``: free resources after earlier pools,
    from which those of this pool are subtracted; ``others``: actors of other runs.
    """
    given, cap = run.actors, max(1, units) if units is not None else sys.maxsize
    ranged = isinstance(given, ActorRange)
    have = _sums(nodes)
    # A range shares the cores there are; a fixed number shares them all the same.
    most = whole.most_actors + others
    sharing = min(most, max(1, int(have["CPU"]))) if ranged else most
    wanted = ActorResources(
        actors=min(run.most_actors, cap),
        least=min(given.min if isinstance(given, ActorRange) else given, cap),
        cpus=_cpus(run, have, min(sharing, cap) if run is whole and not others else sharing),
        gpus=_gpus(run, have),
        # By the actors that are asked for, so that a run that continues with fewer units left has the same threads.
        threads=run.num_threads or max(1, int(have["CPU"]) // sharing),
        custom=dict(run.resources_per_actor),
        accelerator_type=run.accelerator_type,
        per_node=run.actors_per_node,
        idle_seconds=given.idle_seconds if isinstance(given, ActorRange) else 0.0,
    )
    if run.expect_autoscaling and not private:
        return replace(wanted, grows=ranged)
    _check_device(run, have)
    if not ranged:
        _check_shares(run, wanted, have, sharing)
    if ranged and not private and (wanted.gpus or wanted.custom or wanted.accelerator_type):
        # Such actors wait for their accelerators, and take no CPU of the tasks that read and tokenise.
        return replace(wanted, grows=True)
    room = _take(left, wanted)
    if room < wanted.actors and (not ranged or not room):
        raise _no_room(run, wanted, room, nodes, have)
    if sum(node.get("CPU", 0.0) for node in left) <= 0 and wanted.cpus:
        if not ranged or room == 1:
            raise ResourceError(
                f"actors={room} with {wanted.cpus:g} CPU each reserve every CPU of the cluster, so none is left to "
                "read and tokenise the input. Lower cpus_per_actor."
            )
        room -= 1
    return replace(wanted, actors=room, least=min(wanted.least, room)) if ranged else wanted


def _sums(nodes: Nodes) -> dict[str, float]:
    return {key: sum(node.get(key, 0.0) for node in nodes) for key in ("CPU", "GPU")}


def _gpus(config: RunConfig, have: Mapping[str, float]) -> float:
    if config.gpus_per_actor != "auto":
        return float(config.gpus_per_actor)
    needed = config.accelerator_type is not None or config.device.startswith("cuda")
    return 1.0 if have["GPU"] > 0 or needed else 0.0


def _cpus(config: RunConfig, have: Mapping[str, float], sharing: int) -> float:
    if config.cpus_per_actor != "auto":
        return float(config.cpus_per_actor)
    if have["CPU"] < 1 and config.expect_autoscaling:
        return 1.0
    # Prefetch tasks need CPUs too: actors that reserve all of them would wait for their input for ever.
    return min(1.0, math.floor(100 * _SHARE_FOR_ACTORS * have["CPU"] / sharing) / 100)


def _check_device(config: RunConfig, have: Mapping[str, float]) -> None:
    if not config.device.startswith("cuda"):
        return
    if have["GPU"] <= 0 and not isinstance(config.actors, ActorRange):
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


def _check_shares(config: RunConfig, wanted: ActorResources, have: Mapping[str, float], sharing: int) -> None:
    if config.cpus_per_actor != "auto" or wanted.gpus or wanted.cpus >= _LEAST_CPUS or sharing == 1:
        return
    most = max(1, int(_SHARE_FOR_ACTORS * have["CPU"] / _LEAST_CPUS))
    raise ResourceError(
        f"actors={config.actors}: the cluster has {have['CPU']:g} CPU, enough for {most} actors of a quarter of a CPU. "
        f"Lower actors to {most} (one per core is fastest), or set cpus_per_actor."
    )


def _no_room(
    config: RunConfig, wanted: ActorResources, room: int, nodes: Nodes, have: Mapping[str, float]
) -> ResourceError:
    kind, hint = wanted.accelerator_type, ""
    if kind is not None and not any(f"{_KIND}{kind}" in node for node in nodes):
        there = sorted({name.removeprefix(_KIND) for node in nodes for name in node if name.startswith(_KIND)})
        hint = f" No node has an accelerator {kind!r}; there are: {', '.join(there) or 'none'}."
    if config.expect_autoscaling:
        hint += " A session of this machine alone gets no nodes, whatever expect_autoscaling says: set RAY_ADDRESS."
    asked = (
        config.actors if not isinstance(config.actors, ActorRange) else f"{config.actors.min} to {config.actors.max}"
    )
    return ResourceError(
        f"actors={asked} with {wanted.describe()} each: the cluster ({have['CPU']:g} CPU, {have['GPU']:g} "
        f"GPU on {len(nodes)} nodes) has room for {room}. Lower actors, gpus_per_actor or cpus_per_actor, or set "
        f"expect_autoscaling if nodes will be added.{hint}"
    )


def _take(left: list[dict[str, float]], wanted: ActorResources) -> int:
    """Place actors on nodes, as many as are wanted and fit; their resources are subtracted from ``left``."""
    placed = 0
    for node in left:
        count = min(_room(node, wanted), wanted.actors - placed)
        for name, each in {"CPU": wanted.cpus, "GPU": wanted.gpus, **wanted.custom}.items():
            if each:
                node[name] = node.get(name, 0.0) - count * each
        placed += count
    return placed


def _room(node: Mapping[str, float], wanted: ActorResources) -> int:
    """Actors that a node has room for."""
    if wanted.accelerator_type is not None and f"{_KIND}{wanted.accelerator_type}" not in node:
        return 0
    rooms = [wanted.actors if wanted.per_node is None else wanted.per_node]
    if 0 < wanted.gpus < 1:  # an actor's share is of one GPU
        rooms.append(int(node.get("GPU", 0.0)) * int(1 / wanted.gpus + 1e-9))
    elif wanted.gpus:
        rooms.append(int(node.get("GPU", 0.0) / wanted.gpus + 1e-9))
    rooms += [
        int(node.get(name, 0.0) / each + 1e-9) for name, each in {"CPU": wanted.cpus, **wanted.custom}.items() if each
    ]
    return max(0, min(rooms))
