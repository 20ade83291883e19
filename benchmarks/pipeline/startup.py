"""How long a user waits: the commands of a small job, and what their start is made of; of one checkout or of two.

    python -m benchmarks.pipeline.startup [--against FOLDER] [--repeats 5] [--rows 20]

FOLDER is the root of another checkout, run by this one's interpreter, in turns with this one. Each checkout has a cache
folder of its own: its first job finds it empty (cold), all later commands find it filled (warm). Wall seconds begin
with the command and so include the interpreter. CPU seconds are those of all processes that the command has started,
Ray's included; they hardly depend on what else the machine does, so the load is printed beside the wall seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.common import table, write_result
from benchmarks.pipeline.process_tree import ProcessTree
from testing.repository import ROOT

__all__ = ["main"]

_CHILD = Path(__file__).with_name("startup_child.py")
_GOALS = {"first row": 8.0, "job": 10.0, "nothing to do": 1.5, "validate": 3.0}
_READ = "import sys, pipeline; print(pipeline.read(sys.argv[1], format='arrow').num_rows)"


@dataclass(kw_only=True)
class _Checkout:
    """A checkout, its folders, and what was measured of it: name of a command or stage -> values of the repeats."""

    name: str
    root: Path
    work: Path
    wall: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    cpu: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    load: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def run(self, name: str, words: Sequence[str]) -> None:
        """Run a command with this checkout's code, and keep its wall and CPU seconds under a name."""
        times = self.work / "times.json"
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("RAY_")},
            "WEDLM_CACHE_HOME": str(self.work / "cache"),
            "NUMBA_CACHE_DIR": str(self.work / "cache" / "numba"),
            "PYTHONPATH": str(self.root),
            "WEDLM_STARTUP_TIMES": str(times),
        }
        times.unlink(missing_ok=True)
        self.load[name].append(os.getloadavg()[0])
        begin, epoch = time.monotonic(), time.time()
        with (self.work / "output.txt").open("w+") as output:
            process = subprocess.Popen(
                [sys.executable, *words], cwd=self.root, env=environment, stdout=output, stderr=subprocess.STDOUT
            )
            with ProcessTree(process.pid) as tree:
                status = process.wait()
                self.wall[name].append(time.monotonic() - begin)
            output.seek(0)
            if status:
                raise RuntimeError(f"{self.name}: {' '.join(words)} ended with {status}:\n{output.read()[-3000:]}")
        self.cpu[name].append(tree.seconds)
        if times.exists():
            for stage, at in json.loads(times.read_text()).items():
                own = at - epoch if stage.startswith("at: ") else at
                self.wall[f"{name}, {stage.removeprefix('at: ')}"].append(own)

    def job(self, prompts: Path, output: Path) -> list[str]:
        """The words of the job's command, without the interpreter."""
        return ["--input", str(prompts), "--output", str(output), "--model", "tiny",
                "--set", "sampling.max_tokens=64"]  # fmt: skip


def main() -> None:
    """Measure, print as it comes, write one file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, metavar="FOLDER", help="root of another checkout")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rows", type=int, default=20)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="wedlm-startup-") as folder:
        prompts = Path(folder) / "prompts.parquet"
        texts = [f"Count from {i % 7} to {i % 7 + 5 + i % 11}." for i in range(args.rows)]
        pq.write_table(pa.table({"prompt": texts}), prompts)
        roots = [("this", ROOT), *([("other", args.against.resolve())] if args.against else [])]
        checkouts = [_Checkout(name=name, root=root, work=Path(folder) / name) for name, root in roots]
        for one in checkouts:
            one.work.mkdir()
            one.run("cold job", [str(_CHILD), "job", *one.job(prompts, one.work / "cold")])
            print(f"{one.name}, cold: {one.wall['cold job'][0]:.1f} s", flush=True)
        for repeat in range(args.repeats):
            for one in checkouts if repeat % 2 == 0 else reversed(checkouts):
                _commands(one, prompts)
                print(f"{one.name}: {one.wall['job'][-1]:.1f} s, {one.cpu['job'][-1]:.1f} CPU s", flush=True)
    command = f"python -m benchmarks.pipeline.startup --repeats {args.repeats}" + (
        " --against OTHER" * bool(args.against)
    )
    write_result(
        "pipeline-startup", f"A job of {args.rows} rows from the command to its end", command, _body(checkouts)
    )


def _commands(one: _Checkout, prompts: Path) -> None:
    """Each command once, on warm caches."""
    output = one.work / "warm"
    shutil.rmtree(output, ignore_errors=True)
    one.run("job", [str(_CHILD), "job", *one.job(prompts, output)])
    generate = ["-m", "jobs.generate", *one.job(prompts, output)]
    one.run("nothing to do", generate)
    one.run("validate", [*generate, "--validate"])
    one.run("status", ["-m", "jobs.status", str(output)])
    one.run("read as Arrow", ["-c", _READ, str(output)])
    one.run("engine", [str(_CHILD), "engine"])


def _body(checkouts: Sequence[_Checkout]) -> str:
    commits = ", ".join(f"{one.name} {_commit(one.root)}" for one in checkouts)
    names = list(checkouts[0].wall)
    loads = [load for one in checkouts for every in one.load.values() for load in every]
    whole = [name for name in names if ", " not in name]
    parts = [
        f"Checkouts: {commits}. Medians with lowest and highest of the repeats; cold: once. Load of the machine while "
        f"it ran: {min(loads):.1f} to {max(loads):.1f}.",
        "Commands:\n\n" + _table(checkouts, whole, cpu=True),
    ]
    for kind, title in (
        ("job", "What a job has done how many seconds after the command, warm"),
        ("cold job", "The same, cold"),
        ("engine", "Seconds of each step of loading an engine, in a process without Ray, warm"),
    ):
        stages = [name for one in checkouts for name in one.wall if name.startswith(f"{kind}, ")]
        parts.append(f"{title}:\n\n" + _table(checkouts, list(dict.fromkeys(stages)), cpu=False))
    ours = checkouts[0].wall
    reached = {"first row": ours["job, first unit done"], "job": ours["job"], "nothing to do": ours["nothing to do"],
               "validate": ours["validate"]}  # fmt: skip
    goals = [(name, goal, statistics.median(reached[name]), "yes" if statistics.median(reached[name]) <= goal else "NO")
             for name, goal in _GOALS.items()]  # fmt: skip
    parts.append("Goals, seconds, this checkout:\n\n" + table(("what", "goal", "median", "reached"), goals))
    return "\n\n".join(parts)


def _table(checkouts: Sequence[_Checkout], names: Sequence[str], *, cpu: bool) -> str:
    head = [f"{one.name}, {kind}" for one in checkouts for kind in (("wall s", "CPU s") if cpu else ("s",))]
    rows = []
    for name in names:
        cells = []
        for one in checkouts:
            cells.append(_spread(one.wall.get(name, [])))
            if cpu:
                cells.append(_spread(one.cpu.get(name, [])))
        rows.append((name.partition(", ")[2] or name, *cells))
    return table(("what", *head), rows)


def _spread(values: Sequence[float]) -> str:
    if not values:
        return "-"
    middle = f"{statistics.median(values):.2f}"
    return middle if len(values) == 1 else f"{middle} ({min(values):.2f}-{max(values):.2f})"


def _commit(root: Path) -> str:
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=root, capture_output=True, text=True, check=False
    )
    return f"commit {done.stdout.strip()}" if done.returncode == 0 else "no commit"


if __name__ == "__main__":
    main()
