"""How long a user waits: the commands of a small job, each from its start to its end.

    python -m benchmarks.pipeline.startup [--repeats 5] [--rows 20]

The first job finds an empty cache folder (cold); all later commands find it filled (warm). Seconds are wall time with
the interpreter's start in them; the load of the machine is printed beside them. The stages of a job are those of its
own lines of progress.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.common import table, write_result
from testing.repository import ROOT

_READ = "import sys, pipeline; print(pipeline.read(sys.argv[1], format='arrow').num_rows)"
_STAGE = re.compile(r"progress stage=(\w+) elapsed_s=([\d.]+)")


class _Commands:
    """Runs commands with one cache folder; ``seconds`` keeps the wall time of each under its name."""

    def __init__(self, work: Path) -> None:
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self.loads: list[float] = []
        self._environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("RAY_")},
            "WEDLM_CACHE_HOME": str(work / "cache"),
            "NUMBA_CACHE_DIR": str(work / "cache" / "numba"),
        }

    def run(self, name: str, *words: str) -> None:
        """Run a command of this checkout; keep its time, and when each stage of its progress began."""
        self.loads.append(os.getloadavg()[0])
        begin = time.monotonic()
        done = subprocess.run(
            [sys.executable, *words], cwd=ROOT, env=self._environment, capture_output=True, text=True, check=False
        )
        self.seconds[name].append(time.monotonic() - begin)
        if done.returncode:
            raise RuntimeError(f"{' '.join(words)} ended with {done.returncode}:\n{done.stderr[-3000:]}")
        stages = {stage: float(at) for stage, at in reversed(_STAGE.findall(done.stderr))}
        for stage, at in sorted(stages.items(), key=lambda found: found[1]):
            self.seconds[f"{name}: {stage} since the run began"].append(at)


def main() -> None:
    """Measure, print as it comes, write one file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rows", type=int, default=20)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="wedlm-startup-") as folder:
        prompts, output = Path(folder) / "prompts.parquet", Path(folder) / "output"
        texts = [f"Count from {i % 7} to {i % 7 + 5 + i % 11}." for i in range(args.rows)]
        pq.write_table(pa.table({"prompt": texts}), prompts)
        job = ("-m", "jobs.generate", "--input", str(prompts), "--output", str(output), "--model", "tiny",
               "--set", "sampling.max_tokens=64", "--progress", "lines")  # fmt: skip
        commands = _Commands(Path(folder))
        commands.run("cold job", *job)
        for _ in range(args.repeats):
            shutil.rmtree(output)
            commands.run("job", *job)
            commands.run("nothing to do", *job)
            commands.run("validate", *job, "--validate")
            commands.run("status", "-m", "jobs.status", str(output))
            commands.run("read as Arrow", "-c", _READ, str(output))
            print(f"job: {commands.seconds['job'][-1]:.1f} s", flush=True)
    command = f"python -m benchmarks.pipeline.startup --repeats {args.repeats} --rows {args.rows}"
    write_result("pipeline-startup", f"Commands of a job of {args.rows} rows", command, _body(commands))


def _body(commands: _Commands) -> str:
    rows = [(name, _spread(values)) for name, values in commands.seconds.items()]
    return (
        f"Medians with lowest and highest of the repeats; cold: once. Load of the machine while it ran: "
        f"{min(commands.loads):.1f} to {max(commands.loads):.1f}.\n\n" + table(("command", "seconds"), rows)
    )


def _spread(values: Sequence[float]) -> str:
    middle = f"{statistics.median(values):.2f}"
    return middle if len(values) == 1 else f"{middle} ({min(values):.2f}-{max(values):.2f})"


if __name__ == "__main__":
    main()
