"""The Ray session: joins a running cluster, or starts a private one on loopback."""

from __future__ import annotations

import functools
import logging
import os
import re
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from pipeline import stages
from pipeline.cluster.lean_start import lean_start
from pipeline.cluster.loopback import LOOPBACK, on_loopback, warn_unless_on_loopback
from pipeline.cluster.private_folder import end_of_logs, private_folder
from pipeline.cluster.resources import connected_nodes, is_private, local_cpus
from pipeline.cluster.worker_names import finder, marks_of, why_not
from pipeline.errors import ResourceError

__all__ = [
    "PRIVATE_SYSTEM_CONFIG",
    "ensure_ray",
    "ray_session",
    "start_probe",
    "stays_on_this_machine",
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
_PROBE_RETRIES = 2
_LOGS_STAY = "\nRay's logs hold the output of these processes."
_ANSWER_SECONDS = 0.5
_CHATTY = (
    "ray._private.authentication.authentication_token_setup",
    "ray.data._internal.execution.streaming_executor",
    "ray.data._internal.progress",
)
"""Ray loggers that are verbose about normal operation."""


_ENSURING = threading.Lock()
"""Several threads may want a session; the first one gets it for all."""
_INIT_LOGGER = "ray._private.worker"


_RETRIED = re.compile(
    r"Task (PooledGenerateActor|_Recorder|prepare_units|_write_part|_prepare|ReadUnits)\b.* retries remaining",
    re.DOTALL,
)
"""What Ray prints, on standard output, when it does a task of ours again: after each death, and after each run that is
stopped. The run itself says what matters of it; Ray's logs have the rest."""


def _silence_retries() -> None:
    """Leave :data:`_RETRIED` out of what Ray prints in this process."""
    from ray._private import worker

    plain = getattr(worker, "print_to_stdstream", None)  # a part of Ray that may change; then it prints as before
    if plain is None or hasattr(plain, "__wrapped__"):
        return

    @functools.wraps(plain)
    def printed(data: dict[str, Any], *args: Any, **options: Any) -> None:
        if not any(_RETRIED.match(line) for line in data.get("lines", ())):
            plain(data, *args, **options)

    worker.print_to_stdstream = printed


def _is_not_about_signals(record: logging.LogRecord) -> bool:
    """Ray warns where it leaves the handler of SIGTERM to the caller, as it does in a thread; that is what we want."""
    return "SIGTERM handler is not set" not in record.getMessage()


def ensure_ray(workers: int = 2) -> bool:
    """Connect to Ray; True if this call started or joined a session, which the caller then ends.

    A session of this process is used as it is. In a submitted job, or wherever ``RAY_ADDRESS`` is set, that
    cluster is joined. Else a cluster of this process alone is started on loopback, without dashboard.

    Args:
        workers: worker processes that a session of our own starts at once.
    """
    with _ENSURING:
        return _ensure_ray(workers)


def _ensure_ray(workers: int) -> bool:
    import ray

    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.ERROR)
    _silence_retries()
    if ray.is_initialized():
        return False
    address = os.environ.get("RAY_ADDRESS")
    if not address and (there := _cluster_here()) is not None:
        stages.announce(
            f"a Ray cluster runs on this machine ({there}), and this run has a Ray of its own. To run on the "
            "cluster, set RAY_ADDRESS=auto"
        )
    logging.getLogger(_INIT_LOGGER).addFilter(_is_not_about_signals)
    handler = signal.getsignal(signal.SIGTERM)
    if address:
        # What workers print stays in Ray's log files; it would come with escape codes. What ends a run, the run says.
        ray.init(address=address, logging_level=logging.WARNING, log_to_driver=False)
    else:
        with on_loopback(), lean_start(LOOPBACK, workers):
            _init_private(
                address="local",
                num_cpus=local_cpus(),  # what actors were checked against, before there was a session
                include_dashboard=False,
                logging_level=logging.WARNING,
                log_to_driver=False,
                _node_ip_address=LOOPBACK,
                _temp_dir=private_folder(),
                _system_config=dict(PRIVATE_SYSTEM_CONFIG),  # Ray adds to it what holds for one session only
            )
        warn_unless_on_loopback()
    if callable(handler) and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)  # Ray has put its own in the place of the caller's
    return True


def _init_private(**options: Any) -> None:
    """``ray.init`` for a session of our own; its logs go with it, so an error has their last lines.

    Raises:
        ResourceError: Ray's processes do not start.
    """
    import ray

    try:
        ray.init(**options)
    except (OSError, RuntimeError) as error:  # Ray has no error of its own for it
        raise ResourceError(f"Ray does not start: {error}{_logs()}\nCorrect the cause, and run again.") from error


def _logs() -> str:
    """The end of the logs of a session of our own, to follow a message."""
    end = end_of_logs(private_folder())
    return f"\nThe last lines of Ray's logs:\n{end}" if end else ""


def _cluster_here() -> str | None:
    """The address of a cluster that ``ray start`` began on this machine, if it answers."""
    with suppress(Exception):  # a part of Ray that may change; no more than a message depends on it
        from ray._private.utils import read_ray_address

        address: str = read_ray_address() or ""
        host, _, port = address.rpartition(":")
        socket.create_connection((host, int(port)), timeout=_ANSWER_SECONDS).close()
        return address
    return None


def stays_on_this_machine() -> bool:
    """Whether what is sent to workers reaches processes of this machine alone, which this process began.

    So it is of a private session, and of one that the caller began by ``ray.init()``, while it has one node.
    """
    if is_private():
        return True
    if os.environ.get("RAY_ADDRESS"):
        return False
    import ray

    node = ray._private.worker._global_node
    return node is not None and node.is_head() and len(connected_nodes()) == 1


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


def start_probe(*, private: bool = False) -> Callable[[], None]:
    """Run a task that looks for our packages, to see whether worker processes start at all and find them.

    Args:
        private: whether the session is one of our own, whose logs go with it.

    Returns:
        A function that waits for the task, and raises ResourceError if these processes end as they start, or find other
        modules of these names: actors and tasks, retried without limit, would restart for ever.
    """
    import ray

    probe = ray.remote(finder()).options(num_cpus=0, max_retries=_PROBE_RETRIES)
    running = probe.remote(marks_of(__name__))

    def wait() -> None:
        try:
            found = ray.get(running)
        except ray.exceptions.RayError as error:
            logs = _logs() if private else _LOGS_STAY
            raise ResourceError(
                f"worker processes of this Ray session end as they start, {1 + _PROBE_RETRIES} of them in a row: "
                f"{error}{logs}\nCorrect the session's runtime environment (its set-up hook, its "
                "packages) or the memory of its nodes."
            ) from error
        if (problem := why_not(found)) is not None:
            raise ResourceError(problem)

    return wait
