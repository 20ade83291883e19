"""Kills and damage, and their cost: rows lost, duplicated and wrong, work redone.

    python -m benchmarks.pipeline.chaos --part reference          # undisturbed: the first part to run
    python -m benchmarks.pipeline.chaos --part local-1            # local-2, s3-1, s3-2: store and actors, 19 events
    python -m benchmarks.pipeline.chaos --part report             # the table of the parts that were run

Each part ends by itself in about ten minutes on two cores and leaves its figures in ``--folder``. Everything is
real: Ray nodes on loopback addresses in processes of their own, the shipped model, a server that speaks the S3
protocol in its own process, signal 9 to processes at random moments. Between the kills staged units are damaged, state
files emptied while no driver lives, a driver is stopped until another has taken over and then woken, and at the end
the input is edited in place while the job runs. Every operation on the output also fails with a probability of 2%, in
the driver and in the actors.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import pipeline
from benchmarks.common import table, write_result
from pipeline.schema import DATA_COLUMNS
from pipeline.sinks.staged import data_checksum
from testing.pipeline.chaos import Chaos, Outcome
from testing.pipeline.ray_nodes import Cluster, serve_cluster
from testing.pipeline.s3 import serve_s3

EVENTS = {"driver": 3, "actor": 3, "raylet": 2, "sigterm": 1, "bit flip": 2, "deletion": 1, "zeros": 1, "cut": 1,
          "swap": 1, "state": 2, "frozen": 1, "edit": 1}  # fmt: skip
"""The events of a scene: see :mod:`testing.pipeline.chaos`."""
TTL_SECONDS = 15.0
FAILURES = 0.02
PARTS = ("reference", "local-1", "local-2", "s3-1", "s3-2", "report")
SCENES = PARTS[1:5]
COLUMNS = ("prompt", "number", *DATA_COLUMNS)


def write_prompts(path: Path, rows: int) -> Path:
    """Prompts that the shipped model answers at some length."""
    prompts = [f"Count from {i % 97} to {i % 97 + 20 + i % 23}." for i in range(rows)]
    # Plain text on disk: an edit in place leaves a table of other prompts.
    columns = pa.table({"prompt": prompts, "number": list(range(rows))})
    pq.write_table(columns, path, compression="none", use_dictionary=False)
    return path


def config_of(source: Path, output: str, actors: int, options: dict[str, Any] | None = None) -> dict[str, Any]:
    """Fields of RunConfig, the same for every part but for where and how many."""
    return {"input": str(source), "output": output, "actors": actors, "num_threads": 1, "unit_rows": 16,
            "cpus_per_actor": 0.5, "units_in_flight": 8, "model": "tiny", "target_part_bytes": 200_000,
            "output_storage_options": options or {}, "sampling": {"max_tokens": 128, "temperature": 0.7}}  # fmt: skip


@contextmanager
def stage_for(actors: int) -> Iterator[Cluster]:
    """A head and a node of two CPUs for each actor."""
    with serve_cluster() as cluster:
        for _ in range(actors):
            cluster.add_node(2)
        yield cluster


def disturb(part: str, folder: Path, rows: int, kills: int | None, seed: int, tokens: int) -> dict[str, Any]:
    """Run a scene with its kills; the findings. ``tokens``: of the whole job, as the reference has it."""
    store, actors = part.split("-")[0], int(part.split("-")[1])
    source = write_prompts(folder / "prompts.parquet", rows)
    plan = [kind for kind, count in EVENTS.items() for _ in range(count) if kind != "edit"]
    random.Random(seed).shuffle(plan)
    plan = [*plan[: None if kills is None else kills - 1], "edit"]  # which is noticed at the latest when all is done
    with ExitStack() as stack:
        cluster = stack.enter_context(stage_for(actors))
        if store == "local":
            config = config_of(source, str(folder / "out"), actors)
        else:
            server = stack.enter_context(serve_s3())
            config = config_of(source, f"{server.bucket('chaos')}/out", actors, server.references(folder))
        chaos = Chaos(cluster, folder, config, tokens=tokens, failures=FAILURES, ttl=TTL_SECONDS, seed=seed)
        return _figures(chaos.run(plan), config)


def reference(folder: Path, rows: int) -> dict[str, Any]:
    """The same job undisturbed: one actor, local disk."""
    source = write_prompts(folder / "prompts.parquet", rows)
    with stage_for(1) as cluster:
        config = config_of(source, str(folder / "out"), 1)
        outcome = Chaos(cluster, folder, config).run(())
    return _figures(outcome, config)


def _published(config: dict[str, Any]) -> pa.Table:
    return pipeline.read(config["output"], format="arrow", storage_options=config["output_storage_options"])


def _figures(outcome: Outcome, config: dict[str, Any]) -> dict[str, Any]:
    published = _published(config)
    options = config["output_storage_options"]
    problems = pipeline.verify(config["output"], input=config["input"], storage_options=options).problems
    keys = Counter(zip(published["row_id"].to_pylist(), published["sample_index"].to_pylist(), strict=True))
    return {
        "rows": len(keys),
        "duplicated": sum(count - 1 for count in keys.values()),
        "sha256": data_checksum(published, COLUMNS),
        "problems": problems,
        "kills": {kind: count for kind, count in outcome.kills.items() if count},
        "seconds": outcome.seconds,
        "tokens": sum(n or 0 for n in published["completion_tokens"].to_pylist()),
        "tokens_generated": outcome.work.tokens,
        "busy_seconds": outcome.work.busy_seconds,
    }


def report(folder: Path) -> None:
    """Write the table."""
    found = {part: json.loads(path.read_text()) for part in PARTS if (path := folder / f"{part}.json").exists()}
    base = found["reference"]
    lines: list[tuple[Any, ...]] = []
    for part in SCENES:
        if part not in found:
            continue
        f = found[part]
        count = sum(f["kills"].values())
        redone = max(0, f["tokens_generated"] - f["tokens"])
        per_kill = redone / max(1, count)
        seconds = per_kill * f["busy_seconds"] / max(1, f["tokens_generated"])
        wrong = 0 if f["sha256"] == base["sha256"] else "SOME"
        lines.append(
            (part, *(f["kills"].get(kind, 0) for kind in EVENTS), base["rows"] - f["rows"], f["duplicated"], wrong,
             len(f["problems"]), seconds, f"{per_kill / f['tokens']:.2%}", round(f["seconds"]))
        )  # fmt: skip
    named = {"driver": "driver killed", "actor": "actor killed", "raylet": "raylet killed", "sigterm": "SIGTERM",
             "state": "state file emptied", "edit": "input edited", "frozen": "driver frozen"}  # fmt: skip
    header = ("store-actors", *(named.get(kind, f"staged: {kind}") for kind in EVENTS), "rows lost", "rows duplicated",
              "rows wrong", "problems found by verify", "redone per event, s of one engine", "redone per event",
              "s")  # fmt: skip
    total = sum(sum(found[part]["kills"].values()) for part in SCENES if part in found)
    body = table(header, lines)
    body += (
        f"\n\n{total} kills and damages. {base['rows']} rows, {base['tokens']} tokens, units of 16 rows, 8 units in "
        f"flight per actor, temperature 0.7. SHA-256 of the data columns of the undisturbed run: `{base['sha256']}`. "
        f"Undisturbed: {base['seconds']:.0f} s. In the scenes above each operation on the output also failed with a "
        f"probability of {FAILURES:.0%}. Rows wrong: none where that SHA-256 is the same. "
        "Each edit of the input ended its run with an error; each driver that was frozen until another had taken over "
        "ended with an error when it was woken. Drivers that end by an error are started again, as their user would."
    )
    write_result("chaos", "Kills and damage at random moments", "python -m benchmarks.pipeline.chaos --part ...", body)


def main(argv: Sequence[str] | None = None) -> None:
    """Run one part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=PARTS, required=True)
    parser.add_argument("--folder", type=Path, default=Path("out/chaos"), help="for figures and working files")
    parser.add_argument("--rows", type=int, default=8000)
    parser.add_argument("--kills", type=int, help="fewer kills than planned, for a trial")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    if args.part == "report":
        report(args.folder)
        return
    folder = (args.folder / args.part).absolute()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    begin = time.monotonic()
    figures = _run_part(args.part, folder, args)
    (args.folder / f"{args.part}.json").write_text(json.dumps(figures, indent=1))
    print(json.dumps(figures, indent=1), f"\n{args.part}: {time.monotonic() - begin:.0f} s")


def _run_part(part: str, folder: Path, args: argparse.Namespace) -> Any:
    if part == "reference":
        return reference(folder, args.rows)
    tokens = json.loads((args.folder / "reference.json").read_text())["tokens"]
    return disturb(part, folder, args.rows, args.kills, args.seed + SCENES.index(part), tokens)


if __name__ == "__main__":
    main()
