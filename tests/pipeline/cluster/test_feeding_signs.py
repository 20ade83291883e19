"""The open question at each actor: it joins with its first sign, and is asked again until it has to go."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from pipeline.cluster.feeding import Feeding
from pipeline.cluster.generate_actor import Sign
from pipeline.cluster.metrics import DriverSource
from pipeline.cluster.resources import ActorResources
from pipeline.stopping import Stop
from pipeline.worker.notice import SIGTERM


class Reference:
    def __init__(self, future: Future[Any]) -> None:
        self._future = future

    def future(self) -> Future[Any]:
        return self._future


class Pool:
    """One actor. ``questions``: the process that is known, and where the answer goes."""

    def __init__(self) -> None:
        self.resources = {"": ActorResources(actors=1, least=1, cpus=1, gpus=0, threads=1)}
        self.names, self.closed, self.metrics = {0: ""}, False, DriverSource()
        self.questions: list[tuple[str, Future[Any]]] = []
        self.noted: list[float] = []
        self.ended: list[int] = []

    def watch(self, actor: int, known: str) -> Reference:
        self.questions.append((known, Future()))
        return Reference(self.questions[-1][1])

    def note_start(self, actor: int, taken: dict[str, float]) -> None:
        self.noted.append(taken["loaded"])

    def end(self, actor: int) -> None:
        self.ended.append(actor)


def loop_of(pool: Pool) -> Feeding:
    return Feeding(pool, {"": 4}, 10, Stop(), None, 20.0)  # type: ignore[arg-type]


def answer(loop: Feeding, pool: Pool, process: str, notice: str | None = None) -> None:
    pool.questions[-1][1].set_result(Sign(process=process, node="n", taken={"loaded": 2.0}, notice=notice))
    assert not loop.take_event()


def test_an_actor_joins_once_and_is_asked_until_it_has_notice() -> None:
    pool = Pool()
    loop = loop_of(pool)
    assert [known for known, _ in pool.questions] == [""]
    answer(loop, pool, "p")
    answer(loop, pool, "q")  # its process died, and Ray started another
    assert [known for known, _ in pool.questions] == ["", "p", "q"]
    assert (pool.noted, loop.members.starts, loop.members.ready_actors) == ([2.0], [{"loaded": 2.0}], (0,))
    answer(loop, pool, "q", SIGTERM)
    assert len(pool.questions) == 3, "it has to go"
    assert pool.ended == [0], "it holds no unit"


def test_an_error_of_an_actor_that_was_ended_is_no_error_of_the_run() -> None:
    pool = Pool()
    loop = loop_of(pool)
    loop.members.end(0)
    pool.questions[-1][1].set_exception(ConnectionError("it was ended"))
    assert not loop.take_event()
    assert len(pool.questions) == 1
