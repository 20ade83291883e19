"""The crash bisection in a separate Ray actor: it survives the processes whose deaths it records."""

from __future__ import annotations

from typing import Any

from pipeline.cluster.node_watch import fate_of
from pipeline.config import RunConfig
from pipeline.worker.crash_bisection import CrashBisection


def _asked(name: str) -> Any:
    """The method of this name, which blocks for the answer."""

    def ask(bisection: RemoteBisection, *args: Any, **options: Any) -> Any:
        import ray

        return ray.get(getattr(bisection.handle, name).remote(*args, **options))

    return ask


def _sent(name: str) -> Any:
    """The method of this name, which does not block; Ray keeps the order of one process's calls."""

    def send(bisection: RemoteBisection, *args: Any) -> None:
        getattr(bisection.handle, name).remote(*args)

    return send


class RemoteBisection(CrashBisection):
    """A bisection in a Ray actor: each method is a call of it. If it is lost, the search starts again with no history.

    Attributes:
        handle: of the actor.
    """

    start_process = _asked("start_process")
    begin_unit = _asked("begin_unit")
    begin_step = _asked("begin_step")  # recorded before the step: this process may die in it
    is_suspect = _asked("is_suspect")
    lose_step = _asked("lose_step")
    finish_step = _sent("finish_step")
    finish_unit = _sent("finish_unit")
    abandon_unit = _sent("abandon_unit")
    reach = _sent("reach")

    def __init__(self, handle: Any) -> None:
        self.handle = handle

    def end_process(self, worker: str) -> None:
        """Does not block."""
        # Not retried: Ray would tell the user if the end of the session cuts it off.
        self.handle.end_process.options(max_task_retries=0).remote(worker)

    def reached(self) -> Any:
        """A reference to the records of :class:`_Recorder`."""
        return self.handle.reached.remote()

    def close(self) -> None:
        """End its process. Handles that went to other processes would keep it for as long as the session lasts."""
        import ray

        ray.kill(self.handle)


class _Recorder(CrashBisection):
    """The bisection. It also keeps the stage of each starting process, since all of them know it."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._stages: dict[str, str] = {}

    def reach(self, worker: str, stage: str) -> None:
        """A worker's process begins a stage of its start."""
        self._stages[worker] = stage

    def reached(self) -> dict[str, str]:
        """The latest stage of each worker."""
        return dict(self._stages)

    def end_process(self, worker: str) -> None:
        """See :class:`CrashBisection`."""
        self._stages.pop(worker, None)
        super().end_process(worker)


def start_bisection(config: RunConfig) -> RemoteBisection:
    """Start a crash bisection in an actor of this session, on the node of the driver, so that it lasts as long."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = ray.get_runtime_context().get_node_id()
    options = {
        "num_cpus": 0,
        "max_restarts": -1,
        "max_task_retries": -1,
        "scheduling_strategy": NodeAffinitySchedulingStrategy(node_id=here, soft=False),
    }
    remote: Any = ray.remote(_Recorder).options(**options)
    return RemoteBisection(remote.remote(config.max_row_deaths, config.max_engine_deaths, fate_of))
