"""The tally of deaths in an actor of its own, where the death of another process does not reach it."""

from __future__ import annotations

from typing import Any

from pipeline.config import RunConfig
from pipeline.worker.crash_bisection import Attempt, Rows, Tally, Verdict

__all__ = ["RemoteTally", "start_tally"]


class RemoteTally:
    """The tally in a Ray actor. Should that be lost, it begins anew and has merely forgotten."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    def start(self, slot: str) -> Verdict:
        """Waits for the answer."""
        return self._ask("start", slot)

    def leave(self, slot: str) -> None:
        """Tells, and does not wait."""
        self._handle.leave.remote(slot)

    def begin(self, unit_id: str, rows: int, process: str, *, alone: bool = False) -> Attempt:
        """Waits for the answer."""
        return self._ask("begin", unit_id, rows, process, alone=alone)

    def enter(self, unit_id: str, process: str, step: tuple[Rows, ...]) -> None:
        """Waits until it is known: the next thing may be this process's death."""
        self._ask("enter", unit_id, process, step)

    def suspects(self, unit_id: str) -> bool:
        """Waits for the answer."""
        return self._ask("suspects", unit_id)

    def survive(self, unit_id: str, process: str) -> None:
        """Tells, and does not wait; calls of one process arrive in order."""
        self._handle.survive.remote(unit_id, process)

    def finish(self, unit_id: str) -> None:
        """Tells, and does not wait."""
        self._handle.finish.remote(unit_id)

    def abandon(self, unit_id: str) -> None:
        """Tells, and does not wait."""
        self._handle.abandon.remote(unit_id)

    def _ask(self, name: str, *args: Any, **options: Any) -> Any:
        import ray

        return ray.get(getattr(self._handle, name).remote(*args, **options))


def start_tally(config: RunConfig) -> RemoteTally:
    """A tally in an actor of this session, which ends with it; on the driver's node where that has room."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = ray.get_runtime_context().get_node_id()
    options = {
        "num_cpus": 0,
        "max_restarts": -1,
        "max_task_retries": -1,
        "scheduling_strategy": NodeAffinitySchedulingStrategy(node_id=here, soft=True),
    }
    return RemoteTally(ray.remote(Tally).options(**options).remote(config.max_row_deaths, config.max_engine_deaths))
