"""The Ray session (joins a running cluster or starts a private one on loopback) and the resources of its cluster."""

from __future__ import annotations

import atexit
import logging
import math
import os
import secrets
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipeline.cluster.lean_start import lean_start
from pipeline.cluster.loopback import LOOPBACK, on_loopback, warn_unless_on_loopback
from pipeline.errors import ResourceError

if TYPE_CHECKING:
    from pipeline.config import RunConfig

__all__ = [
    "PRIVATE_SYSTEM_CONFIG",
    "ActorResources",
    "check_resources",
    "ensure_ray",
    "plan_actors",
    "ray_session",
    "start_probe",
]

PRIVATE_SYSTEM_CONFIG = {
    # Ray starts workers at low priority. Here they are the job itself, not a guest on the machine.
    "worker_niceness": 0,
    # Prefetch tasks reserve a fraction of a CPU, so there are more workers than CPUs. By default Ray ends the surplus
    # after a second of idling and starts it again, imports included, for the next task.
    "num_workers_soft_limit": 8,
    "idle_worker_killing_time_threshold_ms": 60_000,
    # By default results below 100 kB go through the driver's memory, and prepared units are that small.
    "max_direct_call_object_size": 4096,
}
"""Settings of a private session."""
_SHARE_FOR_ACTORS = 0.75
_PROBE_RETRIES = 2
_CHATTY = (
    "ray._private.authentication.authentication_token_setup",
    "ray.data._internal.execution.streaming_executor",
    "ray.data._internal.progress",
)
"""Ray loggers that are verbose about normal operation."""


_INIT_LOGGER = "ray._private.worker"


def _is_not_about_signals(record: logging.LogRecord) -> bool:
    """Ray warns where it leaves the handler of SIGTERM to the caller, as it does in a thread; that is what we want."""
    return "SIGTERM handler is not set" not in record.getMessage()


@dataclass(frozen=True, kw_only=True)
class ActorResources:
    """What each generate actor reserves and how many threads its engine uses; and whether all share one node."""

    cpus: float
    gpus: float
    threads: int
    one_node: bool = False


def ensure_ray(workers: int = 2) -> bool:
    """Connect to Ray; True if this call started or joined a session, which the caller then ends.

    A session of this process is used as it is. In a submitted job, or wherever ``RAY_ADDRESS`` is set, that
    cluster is joined. Else a cluster of this process alone is started on loopback, without dashboard.

    Args:
        workers: worker processes that a session of our own starts at once.
    """
    import ray

    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.ERROR)
    if ray.is_initialized():
        return False
    address = os.environ.get("RAY_ADDRESS")
    if not address:
        _private_token()
    logging.getLogger(_INIT_LOGGER).addFilter(_is_not_about_signals)
    handler = signal.getsignal(signal.SIGTERM)
    if address:
        ray.init(address=address, logging_level=logging.WARNING)
    else:
        with on_loopback(), lean_start(LOOPBACK, workers):
            ray.init(
                address="local",
                include_dashboard=False,
                logging_level=logging.WARNING,
                log_to_driver=False,
                _node_ip_address=LOOPBACK,
                _system_config=dict(PRIVATE_SYSTEM_CONFIG),  # Ray adds to it what holds for one session only
            )
        warn_unless_on_loopback()
    if callable(handler) and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)  # Ray has put its own in the place of the caller's
    return True


@contextmanager
def ray_session() -> Iterator[None]:
    """:func:`ensure_ray` for a block; ends only what it started."""
    import ray

    started = ensure_ray()
    try:
        yield
    finally:
        if started:
            ray.shutdown()


def _private_token() -> None:
    """Protect a private cluster by a token of its own, unless the user has configured one.

    Left alone, Ray would leave a token in the user's home, which later clusters and clients then trip over.
    """
    if any(os.environ.get(name) for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")):
        return
    folder = tempfile.mkdtemp(prefix="wedlm-ray-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = os.path.join(folder, "token")
    with open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
        file.write(secrets.token_hex(32))
    # Ray itself turns the mode on for a local cluster, and refreshes what it read of it at import.
    os.environ["RAY_AUTH_TOKEN_PATH"] = path


def start_probe() -> Callable[[], None]:
    """Run an empty task, to see whether worker processes of the cluster start at all.

    Returns:
        A function that waits for the task, and raises ResourceError if these processes end as they start: actors and
        tasks, retried without limit, would restart for ever.
    """
    import ray

    running = ray.remote(_nothing).options(num_cpus=0, max_retries=_PROBE_RETRIES).remote()

    def wait() -> None:
        try:
            ray.get(running)
        except ray.exceptions.RayError as error:
            raise ResourceError(
                f"worker processes of this Ray session end as they start, {1 + _PROBE_RETRIES} of them in a row: "
                f"{error}\nCorrect the session's runtime environment (its set-up hook, its packages) or the memory of "
                "its nodes; Ray's logs hold the output of these processes."
            ) from error

    return wait


def _nothing() -> None:
    """The task of :func:`start_probe`."""


def check_resources(config: RunConfig) -> None:
    """Check that the actors fit in the cluster that a run would use. Starts no session: asks this machine instead.

    Raises:
        ResourceError: they do not.
    """
    import ray

    if ray.is_initialized() or os.environ.get("RAY_ADDRESS"):
        with ray_session():
            plan_actors(config)
    else:
        plan_actors(config, [_this_machine()])


def _this_machine() -> dict[str, float]:
    """The resources that a session of our own would have."""
    from ray._private.resource_and_label_spec import ResourceAndLabelSpec

    found = ResourceAndLabelSpec()
    found.resolve(is_head=True, node_ip_address=LOOPBACK)
    return {"CPU": float(found.num_cpus or 0), "GPU": float(found.num_gpus or 0)}


def plan_actors(config: RunConfig, nodes: list[dict[str, float]] | None = None) -> ActorResources:
    """Resources per actor.

    Args:
        config: the run's configuration.
        nodes: the resources of each node; None takes the connected cluster's.

    Raises:
        ResourceError: the cluster cannot hold the actors; Ray itself would wait for ever.
    """
    if nodes is None:
        import ray

        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    total_cpus = sum(node.get("CPU", 0.0) for node in nodes)
    total_gpus = sum(node.get("GPU", 0.0) for node in nodes)
    gpus = (1.0 if total_gpus > 0 else 0.0) if config.gpus_per_actor == "auto" else float(config.gpus_per_actor)
    if config.cpus_per_actor == "auto":
        # Prefetch tasks need CPUs too: actors that reserve all of them would wait for their input for ever.
        cpus = min(1.0, math.floor(100 * _SHARE_FOR_ACTORS * total_cpus / config.actors) / 100)
    else:
        cpus = float(config.cpus_per_actor)
    if not config.expect_autoscaling:
        _check_fit(config, nodes, cpus, gpus)
    threads = config.num_threads or max(1, int(total_cpus) // config.actors)
    return ActorResources(cpus=cpus, gpus=gpus, threads=threads, one_node=len(nodes) == 1)


def _check_fit(config: RunConfig, nodes: list[dict[str, float]], cpus: float, gpus: float) -> None:
    room = 0
    for node in nodes:
        wanted = [(have, each) for have, each in ((node.get("CPU", 0), cpus), (node.get("GPU", 0), gpus)) if each > 0]
        room += min((int(have / each + 1e-9) for have, each in wanted), default=config.actors)
    if room < config.actors:
        have = {key: sum(node.get(key, 0.0) for node in nodes) for key in ("CPU", "GPU")}
        raise ResourceError(
            f"actors={config.actors} with {cpus:g} CPU and {gpus:g} GPU each: the cluster ({have['CPU']:g} CPU, "
            f"{have['GPU']:g} GPU on {len(nodes)} nodes) has room for {room}. Lower actors, gpus_per_actor or "
            "cpus_per_actor, or set expect_autoscaling if nodes will be added."
        )
    spare = sum(node.get("CPU", 0.0) for node in nodes) - cpus * config.actors
    if spare <= 0:
        raise ResourceError(
            f"actors={config.actors} with {cpus:g} CPU each take every CPU of the cluster, and nothing is left to read "
            "and tokenise the input. Lower cpus_per_actor."
        )
