"""Runs that are killed (signal 9) at a named boundary, each in a process of its own forked from this one.

Arguments: the model. Lines of standard input: input folder, output folder, boundary, 0 or 1 (before or after it).
Prints the exit status of each.
"""

from __future__ import annotations

import os
import sys

from pipeline import layout
from pipeline.codec import SamplingParams
from pipeline.commands.run import run_on
from pipeline.config import RunConfig
from pipeline.prompts.model_files import resolved_model
from pipeline.storage.local import LocalStorage
from testing.pipeline.fakes import InlineExecutor
from testing.pipeline.faults import FaultyStorage, KillAt


def _run(model: str, source: str, output: str, boundary: str, after: bool) -> None:
    config = RunConfig(
        input=source, output=output, model=model, unit_rows=4, target_part_bytes=6000,
        sampling=SamplingParams(max_tokens=6, n=2),
    )  # fmt: skip
    storage = FaultyStorage(LocalStorage(output, layout.SCRATCH), KillAt(boundary=boundary, after=after))
    run_on(InlineExecutor(), config, storage, lambda progress: None)


def main() -> None:
    """Fork, run, wait; one after the other."""
    assert resolved_model(RunConfig(input="-", output="-", model=sys.argv[1])).tokenizer  # once, for all
    for line in sys.stdin.read().splitlines():
        source, output, boundary, after = line.split("\t")
        child = os.fork()
        if child == 0:
            _run(sys.argv[1], source, output, boundary, after == "1")
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
