"""The Ray session: joins a running cluster, or starts a private one on loopback."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from pipeline import stages
from pipeline.cluster.node_watch import NodeWatch
from pipeline.cluster.private_ray import (
    LOOPBACK,
    answers,
    end_of_logs,
    head_of,
    is_head_of_own_session,
    on_loopback,
    private_folder,
    silence_retries,
    warn_unless_on_loopback,
)
from pipeline.cluster.resources import connected_nodes, is_private, local_cpus
from pipeline.errors import ResourceError
from wedlm_base.names import MARKS, private_packages

_NEEDED = ("wedlm_base", "wedlm_batch", "pipeline", "wedlm_core")


Found = Mapping[str, str | None]
"""Place of the module that a worker finds, for each name that is not our package; None where it finds none."""


def marks_of(module: str) -> dict[str, str]:
    """The file (:data:`wedlm_base.names.MARKS`) that marks each package that ``module`` needs in a worker."""
    top, _, rest = module.partition(".")
    private = private_packages(f"{top}.{rest.partition('.')[0]}") if top == "wedlm_batch" else ()
    return {name: MARKS[name] for name in _NEEDED if name not in private}


def finder() -> Callable[[Mapping[str, str]], Found]:
    """The function that looks for packages with these marks in a worker; it is pickled whole, as it knows no module."""

    def find(marks: Mapping[str, str]) -> Found:
        import importlib.util
        import os

        found: dict[str, str | None] = {}
        for name, mark in marks.items():
            spec = importlib.util.find_spec(name)
            folders = [] if spec is None else list(spec.submodule_search_locations or ())
            if not any(os.path.isfile(os.path.join(folder, mark)) for folder in folders):
                found[name] = None if spec is None else spec.origin or next(iter(folders), None)
        return found

    return find


def why_not(found: Found) -> str | None:
    """The obstacle, with its remedy; None if nothing is."""
    for name, place in found.items():
        if place is None:
            return (
                f"worker processes of this Ray session do not find our package {name!r}. Install wedlm-batch on every "
                "node, in the Python environment of the session."
            )
        return (
            f"worker processes of this Ray session find {place} where our package {name!r} is needed. Start from "
            "`wedlm-batch` or `import wedlm_batch as wb` in the folder that has it, which avoid the name; or rename "
            "it, or leave it out of the session's working_dir."
        )
    return None


PRIVATE_SYSTEM_CONFIG = {
    # Ray starts workers at low priority. Here they are the job itself, not a guest on the machine.
    "worker_niceness": 0,
    # Prefetch tasks reserve a fraction of a CPU, so there are more workers than CPUs. By default Ray ends the surplus
    # after a second of idling and starts it again, imports included, for the next task.
    "num_workers_soft_limit": 8,
    "idle_worker_killing_time_threshold_ms": 60_000,
    # By default results below 100 kB go through the driver's memory, and prepared units are that small.
    "max_direct_call_object_size": 4096,
    # By default ``ray.init`` waits, without a limit and with Python's lock, for worker processes that it starts ahead.
    "prestart_worker_first_driver": False,
}
"""Settings of a private session."""
_PROBE_RETRIES = 2
_PROBE_SECONDS = 60.0
"""Time for a worker process of a private session to register; Ray itself starts others without end."""
_HEAD_SECONDS, _ASK_SECONDS = 60.0, 5.0
"""Time for the head of a cluster to answer, as it may have been started a moment ago; and of one question."""
_LOGS_STAY = "\nRay's logs hold the output of these processes."
_TOO_SLOW = "Timed out waiting for file"
"""In the log of a raylet whose agents did not start in the time that Ray gives them."""
_BUSY = "its processes took longer than Ray gives them (30 s), as this machine is busy"
_CHATTY = (
    "ray._private.authentication.authentication_token_setup",
    "ray.data._internal.execution.streaming_executor",
    "ray.data._internal.progress",
)
"""Ray loggers that are verbose about normal operation."""


_ENSURING = threading.Lock()
"""Several threads may want a session; the first one gets it for all."""
_INIT_LOGGER = "ray._private.worker"


def _is_not_about_signals(record: logging.LogRecord) -> bool:
    """Ray warns where it leaves the handler of SIGTERM to the caller, as it does in a thread: as wanted here."""
    return "SIGTERM handler is not set" not in record.getMessage()


def ensure_ray() -> bool:
    """Connect to Ray; True if this call started or joined a session, which the caller then ends.

    A session of this process is used as it is. In a submitted job, or wherever ``RAY_ADDRESS`` is set, that
    cluster is joined. Else a cluster of this process alone is started on loopback, without dashboard.
    """
    with _ENSURING:
        return _ensure_ray()


def _ensure_ray() -> bool:
    import ray

    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.ERROR)
    silence_retries()
    if ray.is_initialized():
        return False
    address = os.environ.get("RAY_ADDRESS")
    logging.getLogger(_INIT_LOGGER).addFilter(_is_not_about_signals)
    handler = signal.getsignal(signal.SIGTERM)
    if address:
        # Output of workers stays in Ray's log files; it would come with escape codes. The run reports its own end.
        _join(address, logging_level=logging.WARNING, log_to_driver=False)
    else:
        with on_loopback():
            _init_private(
                address="local",
                num_cpus=local_cpus(),  # the number that actors were checked against, before the session
                include_dashboard=False,
                logging_level=logging.WARNING,
                log_to_driver=False,
                _node_ip_address=LOOPBACK,
                _temp_dir=private_folder(),
            )
        warn_unless_on_loopback()
    if callable(handler) and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)  # Ray has put its own in the place of the caller's
    return True


def _join(address: str, **options: Any) -> None:
    """``ray.init`` for a cluster that runs.

    Raises:
        ResourceError: none runs at the address, or it does not answer.
    """
    import ray

    head, end = head_of(address), time.monotonic() + _HEAD_SECONDS
    # gRPC over TLS has no answer to who does not know its certificates.
    while head is not None and not os.environ.get("RAY_USE_TLS") and not answers(head, _ASK_SECONDS):
        if time.monotonic() > end:
            raise ResourceError(
                f"RAY_ADDRESS={address!r}: no Ray cluster has answered at {head} for {_HEAD_SECONDS:.0f} s. Correct "
                "the address or start the cluster's head; without RAY_ADDRESS a run starts its own Ray."
            )
        time.sleep(_ASK_SECONDS / 5)
    try:
        ray.init(address=address, **options)
    except Exception as error:  # Ray has no error of its own for it
        raise ResourceError(
            f"RAY_ADDRESS={address!r}: the cluster cannot be joined: {' '.join(str(error).split())}\nCorrect the "
            "address; without RAY_ADDRESS a run starts its own Ray."
        ) from error


def _init_private(**options: Any) -> None:
    """``ray.init`` for a session of our own; its logs go with it, so an error has their last lines.

    Raises:
        ResourceError: Ray's processes do not start.
    """
    import ray

    for attempt in range(2):
        try:
            ray.init(**options, _system_config=dict(PRIVATE_SYSTEM_CONFIG))  # Ray adds entries for one session to it
            return
        except Exception as error:  # Ray has no error of its own; a node that is slow to start is a plain Exception
            logs = _logs()
            if _TOO_SLOW not in logs:
                raise ResourceError(f"Ray does not start: {error}{logs}\nCorrect the cause, and run again.") from error
            if attempt:
                raise ResourceError(f"Ray does not start: {_BUSY}; run the same command again") from error
            stages.announce(f"Ray did not start: {_BUSY}; starting it once more")


def _logs() -> str:
    """The end of the logs of a session of our own, to follow a message."""
    end = end_of_logs(private_folder())
    return f"\nThe last lines of Ray's logs:\n{end}" if end else ""


def stays_on_this_machine() -> bool:
    """Whether all workers are processes of this machine, started by this process.

    Private sessions are local, and so is a session of the caller's ``ray.init()`` with one node.
    """
    if is_private():
        return True
    if os.environ.get("RAY_ADDRESS"):
        return False
    return is_head_of_own_session() and len(connected_nodes()) == 1


@contextmanager
def ray_session() -> Iterator[None]:
    """:func:`ensure_ray` for a block; ends only a session that it started."""
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
        modules of these names: actors and tasks, retried without limit, would restart for ever. In a private session it
        raises it too if no process registers in time. A cluster may have to add a node first: it reports the wait each
        minute.
    """
    import ray

    probe = ray.remote(finder()).options(num_cpus=0, max_retries=_PROBE_RETRIES)
    running = probe.remote(marks_of(__name__))

    def wait() -> None:
        try:
            while not ray.wait([running], timeout=_PROBE_SECONDS)[0] and not private:
                stages.announce("waiting for a worker process of the Ray cluster to start; none has registered yet")
            found = ray.get(running, timeout=0.0 if private else None)
        except ray.exceptions.GetTimeoutError as error:
            raise ResourceError(
                f"no worker process of this Ray session registered in {_PROBE_SECONDS:.0f} s: they end as they start, "
                f"or do not start.{_logs()}\nCorrect the environment of this process (a sitecustomize, the limits on "
                "processes and memory), and run again."
            ) from error
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


class Background:
    """A thread that starts the session. Ray's processes die with it, so it lives until :meth:`close`."""

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None
        self._session: Future[bool] | None = None
        self._watch: NodeWatch | None = None

    def wait(self) -> None:
        """Start the session unless that was done, and return once it has started.

        Raises:
            Exception: it could not be started.
        """
        if self._session is None:
            self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="session")
            self._session = self._thread.submit(self._start)
        self._session.result()

    def watch(self) -> NodeWatch:
        """The watch of the session's nodes, once that has started."""
        self.wait()
        assert self._watch is not None
        return self._watch

    def close(self) -> None:
        """End the session if it is ours."""
        if self._thread is None or self._session is None:
            return
        if self._watch is not None:
            self._watch.close()
        if self._session.exception() is None and self._session.result():
            import ray

            with stages.stage("Ray ended"):
                ray.shutdown()
        self._thread.shutdown()
        self._thread = self._session = None

    def _start(self) -> bool:
        with stages.stage("Ray started"):
            started = ensure_ray()
        import ray

        self._watch = NodeWatch(ray.get_runtime_context().gcs_address)
        self._watch.start()
        return started
