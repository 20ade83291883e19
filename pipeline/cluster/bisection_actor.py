"""The crash bisection in a separate Ray actor: it survives the processes whose deaths it records."""

from __future__ import annotations

from typing import Any

from pipeline.cluster.node_watch import fate_of
from pipeline.config import RunConfig
from pipeline.worker.crash_bisection import CrashBisection
from pipeline.worker.crash_trial import Attempt, Rows, Verdict


class RemoteBisection:
    """A :class:`CrashBisection` in a Ray actor. If the actor is lost, the search starts again with no history."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    def start_process(self, worker: str, process: str = "", machine: str = "") -> Verdict:
        """Blocks for the answer."""
        return self._ask("start_process", worker, process, machine)

    def end_process(self, worker: str) -> None:
        """Does not block."""
        # Not retried: Ray would tell the user if the end of the session cuts it off.
        self._handle.end_process.options(max_task_retries=0).remote(worker)

    def begin_unit(
        self, unit_id: str, rows: int, process: str, *, alone: bool = False, forks: bool = False
    ) -> Attempt:  # fmt: skip
        """Blocks for the answer."""
        return self._ask("begin_unit", unit_id, rows, process, alone=alone, forks=forks)

    def begin_step(self, unit_id: str, process: str, step: Rows) -> None:
        """Blocks until it is recorded: this process may die next."""
        self._ask("begin_step", unit_id, process, step)

    def is_suspect(self, unit_id: str) -> bool:
        """Blocks for the answer."""
        return self._ask("is_suspect", unit_id)

    def finish_step(self, unit_id: str, process: str, step: Rows, results: bytes) -> None:
        """Does not block; Ray keeps the order of one process's calls."""
        self._handle.finish_step.remote(unit_id, process, step, results)

    def lose_step(self, unit_id: str, rows: int, step: Rows) -> Attempt:
        """Blocks for the answer."""
        return self._ask("lose_step", unit_id, rows, step)

    def finish_unit(self, unit_id: str) -> None:
        """Does not block."""
        self._handle.finish_unit.remote(unit_id)

    def abandon_unit(self, unit_id: str) -> None:
        """Does not block."""
        self._handle.abandon_unit.remote(unit_id)

    def reach(self, worker: str, stage: str) -> None:
        """See :class:`_Recorder`. Does not block."""
        self._handle.reach.remote(worker, stage)

    def reached(self) -> Any:
        """A reference to the records of :class:`_Recorder`."""
        return self._handle.reached.remote()

    def close(self) -> None:
        """End its process. Handles that went to other processes would keep it for as long as the session lasts."""
        import ray

        ray.kill(self._handle)

    def _ask(self, name: str, *args: Any, **options: Any) -> Any:
        import ray

        return ray.get(getattr(self._handle, name).remote(*args, **options))


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
