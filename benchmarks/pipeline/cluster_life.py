"""The life of a job on a cluster that grows, shrinks and loses nodes: asserts what holds, draws the time line.

    python -m benchmarks.pipeline.cluster_life

Everything runs on this machine and is real: a Ray head with Ray's autoscaler, raylets with made-up GPUs that it starts
and ends, generate actors with the shipped model, signals. From no node up with the load; then a node is killed, one is
drained, one freezes and wakes up, all are killed at once, the head is killed and a new one continues; then down to no
node. Each engine step takes at least ``--pace`` seconds, as on a device of its own: two cores stand in for four GPUs.
"""

from __future__ import annotations

import argparse
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import pipeline
from benchmarks.common import table, write_result
from benchmarks.pipeline.cluster_life_plot import draw
from pipeline.schema import DATA_COLUMNS
from pipeline.sinks.staged import data_checksum
from testing.pipeline.autoscaled import AutoscaledCluster, serve_autoscaled
from testing.pipeline.ray_nodes import Node
from testing.pipeline.timeline import Sample, Timeline
from testing.pipeline.watched_driver import WatchedDriver

__all__ = ["main"]

NODES, ACTORS = 4, 3
DRAIN_SECONDS = 15.0
IDLE_SECONDS = 5.0
UNIT_ROWS = 8
APART_UNITS = 24
"""Units done between one blow and the next, at least."""


def write_prompts(path: Path, rows: int) -> None:
    """A table of prompts."""
    pq.write_table(pa.table({"prompt": [f"Count from {i % 97} to {i % 97 + 5 + i % 7}." for i in range(rows)]}), path)


def config_of(folder: Path, output: str, **fields: Any) -> dict[str, Any]:
    """Fields of RunConfig."""
    return {"input": str(folder / "prompts.parquet"), "output": str(folder / output), "unit_rows": UNIT_ROWS,
            "units_in_flight": 2, "num_threads": 1, "device": "cpu",
            "sampling": {"max_tokens": 24, "temperature": 0.7}, **fields}  # fmt: skip


def checksum_of(output: str) -> str:
    """Of the data columns of all rows, in order."""
    rows = pipeline.read(output, format="arrow")
    return data_checksum(rows, ("prompt", *DATA_COLUMNS))


def keep_logs(cluster: AutoscaledCluster, folder: Path) -> None:
    """Copy what Ray's processes said, for whoever looks into a failure."""
    folder.mkdir()
    for path in [*cluster.folder.glob("machines/*.log"), *cluster.folder.glob("h*/session_latest/logs/*.*")]:
        if path.is_file():
            shutil.copy(path, folder / f"{path.parts[3]}-{path.name}")


class Life:
    """The job on the cluster, blow by blow."""

    def __init__(self, cluster: AutoscaledCluster, driver: WatchedDriver, line: Timeline) -> None:
        self._cluster = cluster
        self._driver = driver
        self._line = line
        self.head_seconds = 0.0

    def live(self) -> None:
        """From no node to no node."""
        line, driver = self._line, self._driver
        time.sleep(3)
        assert line.last.nodes == 0, "the cluster begins without nodes"
        driver.start()
        line.mark("the job starts")
        self._at_work()
        self._victim().end()
        line.mark("a node is killed")
        self._at_work()
        self._drain()
        self._at_work()
        self._notice()
        self._at_work()
        frozen = self._victim()
        self._cluster.freeze(frozen)
        line.mark("a node freezes")
        self._at_work(seconds=20)
        frozen.thaw()
        line.mark("it wakes up")
        self._at_work()
        for node in self._cluster.machines():
            node.end()
        line.mark("all nodes are killed")
        line.wait_for(lambda last: last.nodes == 0, "no node is left")
        self._at_work()
        self._lose_head()
        driver.start()
        line.mark("the same job starts again")
        assert driver.wait(900) == 0, driver.said()[-3000:]
        line.mark("the job is done")
        line.wait_for(lambda last: last.nodes == 0, "the autoscaler gives all nodes back")
        line.mark("no node is left")
        time.sleep(3)

    def _at_work(self, seconds: float = 0.0) -> None:
        """All actors work, and some units are done since the last blow."""
        line, before = self._line, self._line.last.units
        begin = line.now

        def reached(last: Sample) -> bool:
            assert self._driver.process is not None
            assert self._driver.process.poll() is None, f"the job ended too early: {self._driver.said()[-3000:]}"
            enough = last.actors >= ACTORS and last.units >= before + APART_UNITS
            return enough and line.now >= begin + seconds

        line.wait_for(reached, f"{ACTORS} actors that work")

    def _victim(self) -> Node:
        """A node with an actor."""
        return next(node for node in self._cluster.machines() if node.actors())

    def _drain(self) -> None:
        node = self._victim()
        node.terminate()  # as Kubernetes does: Ray then drains the node
        self._line.mark("a node gets SIGTERM")
        begin = self._line.now
        while node.name in {other.name for other in self._cluster.machines()}:
            assert self._line.now < begin + DRAIN_SECONDS + 15, "a drained node ends"
            time.sleep(0.2)
        self._line.mark("it has ended, drained")

    def _notice(self) -> None:
        node = self._victim()
        self._cluster.give_notice(node)
        self._line.mark("a node has a spot notice")
        begin = self._line.now
        while node.actors():
            assert self._line.now < begin + DRAIN_SECONDS + 15, "the actor of a node that has notice leaves"
            time.sleep(0.2)
        self._line.mark("its actor has left")
        node.end()
        self._line.mark("the node is taken away")

    def _lose_head(self) -> None:
        self._cluster.kill_head()
        self._line.mark("the head is killed")
        begin = self._line.now
        status = self._driver.wait(90)
        self.head_seconds = self._line.now - begin
        assert status == 1, (status, self._driver.said()[-3000:])
        assert "run the same command again" in self._driver.said()
        self._line.mark("the driver has ended, status 1")
        self._cluster.start_head()
        self._line.mark("a new head")


def main(argv: Sequence[str] | None = None) -> None:
    """Run it, check it, write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("out/cluster_life"), help="for working files")
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--pace", type=float, default=0.5, help="seconds of an engine's step, at least")
    args = parser.parse_args(argv)
    folder = args.folder.absolute()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write_prompts(folder / "prompts.parquet", args.rows)
    config = config_of(folder, "out", actors={"min": 0, "max": ACTORS, "idle_seconds": IDLE_SECONDS},
                       gpus_per_actor=1, cpus_per_actor=0.5, drain_seconds=DRAIN_SECONDS,
                       expect_autoscaling=True)  # fmt: skip
    with serve_autoscaled(most=NODES, idle_seconds=IDLE_SECONDS) as cluster:
        driver = WatchedDriver(cluster, folder / "driver", config, pace=args.pace)
        line = Timeline(cluster, driver.units)
        life = Life(cluster, driver, line)
        try:
            with line.recording():
                life.live()
        finally:
            driver.end()
            line.save(folder / "timeline")
            (folder / "driver.txt").write_text(driver.said())
            keep_logs(cluster, folder / "logs")
    pipeline.run(config=pipeline.RunConfig.from_mapping(config_of(folder, "undisturbed")))
    sums = [checksum_of(str(folder / name)) for name in ("out", "undisturbed")]
    assert sums[0] == sums[1], "the data columns are those of an undisturbed run"
    assert pipeline.verify(str(folder / "out"), input=config["input"]).ok
    assert len(pipeline.read(str(folder / "out"), format="arrow")) == args.rows
    assert max(sample.actors for sample in line.samples) <= NODES
    report(line, life, args, sums[0])


def report(line: Timeline, life: Life, args: argparse.Namespace, checksum: str) -> None:
    """Write the table, the data and the drawing."""
    events = [(f"{event.seconds:.0f}", event.what) for event in line.events]
    body = (
        f"{args.rows} rows in units of {UNIT_ROWS}, up to {ACTORS} actors, up to {NODES} nodes of 1 CPU and 1 made-up "
        f"GPU, an engine step of {args.pace:g} s at least. All rows once (`verify` is content), data columns equal to "
        f"those of an undisturbed run by one actor: SHA-256 `{checksum}`. The driver ended {life.head_seconds:.0f} s "
        "after its head was killed.\n\n" + table(("s", "event"), events)
    )
    path = write_result("cluster-life", "The life of a job on a cluster that loses nodes",
                        "python -m benchmarks.pipeline.cluster_life", body)  # fmt: skip
    line.save(path)
    draw(line, path.with_suffix(".png"))
    with path.open("a") as file:
        file.write(
            f"\n![time line]({path.stem}.png)\n\nData: [samples]({path.stem}.csv), [events]({path.stem}.json).\n"
        )


if __name__ == "__main__":
    main()
