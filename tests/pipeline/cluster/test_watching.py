"""The open question at each actor: asked again after each answer, and after the death of a process."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from pipeline.cluster.watching import Watched, Watching


class Reference:
    def __init__(self, future: Future[Any]) -> None:
        self._future = future

    def future(self) -> Future[Any]:
        return self._future


class Asked:
    """A pool and its members; ``questions``: actor, known process, and where the answer goes."""

    def __init__(self) -> None:
        self.questions: list[tuple[int, str, Future[Any]]] = []
        self.there = {1, 2}

    def watch(self, actor: int, process: str) -> Reference:
        self.questions.append((actor, process, Future()))
        return Reference(self.questions[-1][2])

    def __contains__(self, actor: int) -> bool:
        return actor in self.there

    def open(self) -> list[tuple[int, str]]:
        return [(actor, process) for actor, process, future in self.questions if not future.done()]


class Noted:
    """In place of :class:`Leaving`: notes what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def moved(self, *told: Any) -> None:
        self.told.append(("moved", *told))

    def noticed(self, *told: Any) -> None:
        self.told.append(("noticed", *told))


class Story:
    def __init__(self) -> None:
        self.asked, self.leaving = Asked(), Noted()
        self.inbox: list[Watched] = []
        self.watching = Watching(self.asked, self.inbox.append)
        self.watching.begin(1)

    def answer(self, value: Any, now: float) -> None:
        """The open question is answered, or fails, and the answer is taken up."""
        future = next(future for _, _, future in self.asked.questions if not future.done())
        if isinstance(value, Exception):
            future.set_exception(value)
        else:
            future.set_result(value)
        self.watching.take(self.inbox.pop(), self.asked, self.leaving, now)  # type: ignore[arg-type]

    def pass_time(self, now: float) -> None:
        self.watching.again(self.asked, now)  # type: ignore[arg-type]


@pytest.fixture
def story() -> Story:
    return Story()


def test_an_actor_says_where_it_is_and_is_asked_on_until_it_has_notice(story: Story) -> None:
    assert story.asked.open() == [(1, "")]
    story.answer(("p", "node a", None), 5.0)
    assert story.asked.open() == [(1, "p")], "it answers when that process has notice"
    story.answer(("p", "node a", "SIGTERM"), 9.0)
    assert story.leaving.told == [("moved", 1, "node a", 5.0), ("noticed", 1, "SIGTERM", 9.0)]
    assert story.asked.open() == [], "it has to go"


def test_an_actor_whose_process_died_is_asked_again_after_a_pause(story: Story) -> None:
    story.answer(("p", "node a", None), 5.0)
    story.answer(ConnectionError("the process died"), 6.0)
    story.pass_time(6.5)
    assert story.asked.open() == []
    story.pass_time(7.0)
    assert story.asked.open() == [(1, "")]
    story.pass_time(8.0)
    assert story.asked.open() == [(1, "")], "once"
    story.answer(("q", "node b", None), 9.0)
    assert story.leaving.told[-1] == ("moved", 1, "node b", 9.0), "its next process may be elsewhere"


def test_an_actor_that_was_ended_is_left_alone(story: Story) -> None:
    story.answer(("p", "node a", None), 5.0)
    story.answer(ConnectionError("the process died"), 6.0)
    story.asked.there.clear()
    story.pass_time(100.0)
    assert story.asked.open() == []
    story.watching.begin(2)
    story.answer(ConnectionError("it was ended"), 101.0)
    story.pass_time(200.0)
    assert story.asked.open() == []
    assert story.leaving.told == [("moved", 1, "node a", 5.0)]
