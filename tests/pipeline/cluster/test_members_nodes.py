"""Nodes that go while a job runs: one is killed, one is drained, one freezes and wakes up after all is published.

Real Ray nodes with made-up GPUs, real actors and engines, real signals. All of it happens to one job.
"""

from __future__ import annotations

import hashlib
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pipeline
from pipeline import layout
from pipeline.codec import make_requests
from testing.pipeline.ray_nodes import Cluster, Node, serve_cluster
from testing.pipeline.watched_driver import WatchedDriver
from wedlm_core import LLM, SamplingParams

ROWS, UNIT_ROWS = 160, 8
SAMPLING = {"max_tokens": 24, "temperature": 0.8, "window_size": 4, "ignore_eos": True}
DRAIN_SECONDS = 15.0


@dataclass(kw_only=True)
class Story:
    """The events.

    Attributes:
        source, output, model: of the job.
        said: by the driver.
        drain: seconds from the SIGTERM of a node to its end.
        late: staged by the frozen node's actor, woken after the driver had ended.
        before, after: checksum of each published file, before that actor was woken and at the end.
        again: exit status of the same job, run again.
    """

    source: Path
    output: Path
    model: Path
    said: str = ""
    drain: float = 0.0
    late: frozenset[str] = frozenset()
    before: dict[str, str]
    after: dict[str, str]
    again: int = -1


def published(output: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(output.glob("data-*/*"))}


def staged(output: Path) -> frozenset[str]:
    return frozenset(path.name for path in (output / layout.STAGED).glob("*"))


def nodes_at_work(cluster: Cluster, driver: WatchedDriver) -> list[Node]:
    """Three nodes with an actor each, once all of them work."""
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        found = [node for node in cluster.nodes if node.actors()]
        if len(found) == 3 and driver.units() >= 6:
            return found
        time.sleep(0.1)
    raise RuntimeError(f"the actors do not start: {driver.said()[-3000:]}")


pytestmark = pytest.mark.slow  # a head and nodes that are killed, drained and frozen: 40 s on a quiet machine


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory, qwen3_folder: Path) -> Iterator[Story]:
    folder = tmp_path_factory.mktemp("leaving")
    source, output = folder / "prompts.parquet", folder / "out"
    pq.write_table(pa.table({"prompt": [f"Count from {i} to {i + 5}." for i in range(ROWS)]}), source)
    config = {"input": str(source), "output": str(output), "model": str(qwen3_folder), "sampling": SAMPLING,
              "unit_rows": UNIT_ROWS, "units_in_flight": 2, "num_threads": 1, "device": "cpu", "actors": 3,
              "gpus_per_actor": 1, "cpus_per_actor": 0.5, "drain_seconds": DRAIN_SECONDS}  # fmt: skip
    with serve_cluster() as cluster:
        cluster.add_nodes(4, cpus=1, gpus=1)
        driver = WatchedDriver(cluster, folder / "driver", config, pace=0.08)
        driver.start()
        try:
            lost, drained, frozen = nodes_at_work(cluster, driver)
            lost.kill_raylet()
            begin = time.monotonic()
            drained.terminate()
            frozen.freeze()
            assert drained.process is not None
            drained.process.wait(60)
            drain = time.monotonic() - begin
            status = driver.wait(120)
            assert status == 0, driver.said()[-3000:]
            found = Story(source=source, output=output, model=qwen3_folder, said=driver.said(), drain=drain,
                          before=published(output), after={})  # fmt: skip
            assert not staged(output)
            # First the actor alone, so that nothing on its node has heard that the node is taken for dead.
            for actor in frozen.actors():
                actor.send_signal(signal.SIGCONT)
            deadline = time.monotonic() + 30
            while not found.late and time.monotonic() < deadline:
                time.sleep(0.1)
                found.late = staged(output)
            frozen.thaw()
            driver.start()
            found.again = driver.wait(60)
            found.after = published(output)
            yield found
        finally:
            driver.end()


def test_every_row_comes_out_once_and_as_a_bare_engine_gives_it(story: Story) -> None:
    llm, params = LLM(str(story.model)), SamplingParams(**SAMPLING)
    prompts = pq.read_table(story.source)["prompt"].to_pylist()
    expected: dict[str, list[int]] = {}
    for i, prompt in enumerate(prompts):
        (request,) = make_requests(str(i), f"{story.source.name}:{i}", llm.tokenizer.encode(prompt), params, 0)
        llm.engine.add(request)
    while llm.engine.has_work():
        expected.update((g.request_id.split("/")[0], list(g.token_ids)) for g in llm.engine.step())
    table = pipeline.read(str(story.output), format="arrow")
    assert table["row_id"].to_pylist() == [f"{story.source.name}:{i}" for i in range(ROWS)]
    assert table["token_ids"].to_pylist() == [expected[str(i)] for i in range(ROWS)]


def test_a_node_that_is_killed_is_told_and_its_actor_replaced(story: Story) -> None:
    assert "1 actor lost (the node was lost)" in story.said


def test_a_node_that_is_drained_loses_nothing_and_ends_as_soon_as_its_units_are_done(story: Story) -> None:
    assert f"1 actor to leave (the node is being drained): {DRAIN_SECONDS:.0f} s for" in story.said
    assert "1 actor left; 0 units handed back" in story.said
    assert story.drain < DRAIN_SECONDS


def test_a_node_that_froze_and_wakes_up_late_changes_nothing(story: Story) -> None:
    assert story.late, "its actor did stage units after all was published"
    assert story.again == 0
    assert story.after == story.before != {}
    assert pipeline.verify(str(story.output), input=str(story.source)).ok
