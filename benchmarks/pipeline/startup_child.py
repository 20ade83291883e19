"""One command of one checkout, which says when it reached what; see :mod:`benchmarks.pipeline.startup`.

Runs by its path, with the checkout that it measures as working folder. It notes when functions that older and newer
checkouts have return, and changes nothing else. ``job WORDS...`` is ``jobs.generate``; ``engine`` loads an engine as an
actor does.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

sys.path[0] = os.getcwd()

TIMES: dict[str, float] = {}
"""Name -> seconds; after ``at: ``, since 1970."""

NOTED = (
    (("pipeline.cluster.session",), "ensure_ray", "Ray started"),
    (("pipeline.commands.run",), "begin", "units planned"),
    (("pipeline.cluster.dispatcher",), "Dispatcher.offer", "first unit tokenised"),
    (("pipeline.cluster.dispatcher",), "Dispatcher.join", "first engine ready"),
    (("pipeline.cluster.dispatcher",), "Dispatcher.done", "first unit done"),
    (("pipeline.commands.run",), "_publish", "rows published"),
)
"""Modules of which the first that there is has a function, the function, and what is reached when it first returns."""


def main() -> None:
    """Do what the command line says."""
    atexit.register(_save)
    if sys.argv[1] == "engine":
        _engine()
        return
    from jobs import generate

    for modules, name, reached in NOTED:
        _note(modules, name, reached)
    TIMES["at: imported"] = time.time()
    status = generate.main(sys.argv[2:])
    TIMES["at: Ray ended"] = time.time()
    raise SystemExit(status)


def _note(modules: tuple[str, ...], name: str, reached: str) -> None:
    for module in modules:
        try:
            owner: Any = importlib.import_module(module)
        except ImportError:
            continue
        *path, last = name.split(".")
        for part in path:
            owner = getattr(owner, part)
        setattr(owner, last, _noting(getattr(owner, last), f"at: {reached}"))
        return


def _noting(function: Callable[..., Any], reached: str) -> Callable[..., Any]:
    def noting(*args: Any, **options: Any) -> Any:
        result = function(*args, **options)
        TIMES.setdefault(reached, time.time())
        return result

    return noting


def _engine() -> None:
    """Load an engine in steps, each with its seconds."""
    begin = time.perf_counter()

    def step(name: str) -> None:
        nonlocal begin
        now = time.perf_counter()
        TIMES[name] = now - begin
        begin = now

    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    import torch

    step("import torch")
    from wedlm_core.llm import LLM
    from wedlm_core.types import SamplingParams

    step("import wedlm_core")
    torch.set_num_threads(os.cpu_count() or 1)
    llm = LLM("tiny", device="cpu")
    step("model, tokenizer, KV pool")
    llm.generate([[0]], SamplingParams(max_tokens=2, ignore_eos=True, strategy="autoregressive"))
    step("kernels and first forwards")
    llm.engine.measure_step_cost()
    step("step costs")
    llm.generate([[5, 6, 7]], SamplingParams(max_tokens=20))
    step("first generation")


def _save() -> None:
    with open(os.environ["WEDLM_STARTUP_TIMES"], "w", encoding="utf-8") as file:
        json.dump(TIMES, file)


if __name__ == "__main__":
    main()
