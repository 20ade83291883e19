"""Two checkouts' engines side by side: tokens per second of both, in turns, on the same prompts.

    python -m benchmarks.decode.versions OTHER [--models tiny random-25m 0.6b] [--numbers float32 bfloat16 int8]
        [--batches 1 8 32 64] [--point-seconds 6]

OTHER is the root of another checkout, run by this one's interpreter. Each has a process with an engine of its own. In a
round both decode the same prompts, some milliseconds each in turns, so that a machine whose speed changes slows both.
The result is the median over rounds of the ratio of their rates; their tokens have to be the same.

With one thread (the default) rates are by processor time, and other programs change them less; with more they need a
quiet machine. Both engines have the step cost that this checkout measured: two measurements of the same engine differ
by some percent, and windows with them. Compare a checkout with a copy of itself first, to see the noise.

A model that is named by its shape has random weights in bfloat16 and decodes random prompts greedily. ``--numbers`` are
those of weights: "int8" rounds weights of float32.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import table, write_result
from benchmarks.decode.passes import Workload
from benchmarks.decode.random_model import SHAPES, random_model_folder
from benchmarks.decode.workloads import MAX_SEQUENCES, MODELS, open_subject, regime, regimes_of
from testing.repository import ROOT
from wedlm_core import SamplingParams
from wedlm_core.model.sources import resolve

_CHILD = Path(__file__).with_name("versions_child.py")
_CONFIG = {"max_num_seqs": MAX_SEQUENCES, "prefix_caching": False, "max_model_len": 1024, "history_drafts": False}
"""Without history, which would hold all answers, as rounds repeat their prompts: who tries it first wins."""
_NUMBERS = {"float32": ("float32", "auto"), "bfloat16": ("bfloat16", "auto"), "int8": ("float32", "int8")}
"""The dtypes of a model's computation and weights."""
_PROMPT, _NEW, _WORDS = 64, 24, 900  # of random prompts: tokens, tokens that follow, different tokens
_STRATEGIES = ("verified", "autoregressive", "reference", "streaming", "blockwise")
_LEAST_ROUNDS, _MOST_ROUNDS = 5, 15
_TURN_SECONDS = 0.02


@dataclass(frozen=True, kw_only=True)
class _Point:
    """The sequences decoded at once."""

    model: str
    numbers: str
    regime: str
    strategy: str
    batch: int


class _Engine:
    """A checkout's engine in a process of its own."""

    def __init__(self, root: Path, cache: str, model: str, numbers: str, threads: int, cost: dict[str, Any]) -> None:
        environment = {**os.environ, "WEDLM_CACHE_HOME": cache, "PYTHONPATH": str(root)}
        self._process = subprocess.Popen(
            [sys.executable, str(_CHILD)], cwd=root, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        dtype, weights = _NUMBERS[numbers]
        config = {**_CONFIG, "weight_dtype": weights}
        self.cost = self.ask({"model": model, "dtype": dtype, "config": config, "threads": threads, "step_cost": cost})

    def ask(self, order: dict[str, Any]) -> dict[str, Any]:
        """Its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def main() -> None:
    """Compare, print as it comes, write one file."""
    args = _parser().parse_args()
    other, lines, begin = args.other.resolve(), [], time.monotonic()
    if not (other / "wedlm_core").is_dir():
        raise SystemExit(f"{args.other}: it has to be the root of another checkout, and holds no wedlm_core")
    for model, numbers in itertools.product(args.models, args.numbers):
        for point, ours, theirs, same in _model(args, model, numbers, other):
            ratios = sorted(a / b for a, b in zip(ours, theirs, strict=True))
            ratio = statistics.median(ratios)
            spread, rates = f"{ratio:.3f} ({ratios[0]:.2f}-{ratios[-1]:.2f})", map(statistics.median, (theirs, ours))
            lines.append((
                point.model, point.numbers, point.regime, point.strategy, str(point.batch),
                *(f"{rate:.0f}" for rate in rates), spread, "yes" if same else "NO",
            ))  # fmt: skip
            print(*lines[-1], flush=True)
    body = (
        f"Other checkout: {_commit(other)}; this one: {_commit(ROOT)}. "
        f"The whole run took {(time.monotonic() - begin) / 60:.0f} minutes.\n\n"
        + table(("model", "numbers", "regime", "strategy", "batch", "other, tokens/s", "this, tokens/s", "this / other",
                 "same tokens"), lines)
    )  # fmt: skip
    words = " ".join("OTHER" if word == str(args.other) else word for word in sys.argv[1:])
    slug = "-".join(["decode-versions", *(model for model in args.models if model in SHAPES)])
    write_result(slug, "Two checkouts side by side", f"python -m benchmarks.decode.versions {words}", body,
                 threads=args.threads)  # fmt: skip


def _model(
    args: argparse.Namespace, model: str, numbers: str, other: Path
) -> Iterator[tuple[_Point, list[float], list[float], bool]]:
    """Rates of this checkout and of the other one, point by point, and whether all tokens were the same."""
    with tempfile.TemporaryDirectory() as mine, tempfile.TemporaryDirectory() as its, _folder(model) as folder:
        measured = _Engine(ROOT, mine, str(folder), numbers, args.threads, {})
        measured.close()
        engines = [
            _Engine(root, cache, str(folder), numbers, args.threads, measured.cost)
            for root, cache in ((ROOT, mine), (other, its))
        ]
        for point, work in _points(args, model, numbers):
            order = _order(work, point.strategy)
            digests = {answer["digest"] for answer in _round(engines, order)}  # warms up
            rates: tuple[list[float], list[float]] = ([], [])
            begin = time.monotonic()
            while len(rates[0]) < _LEAST_ROUNDS or (
                len(rates[0]) < _MOST_ROUNDS and time.monotonic() - begin < args.point_seconds
            ):
                for own, answer in zip(rates, _round(engines, order), strict=True):
                    own.append(answer["rate"])
                    digests.add(answer["digest"])
            yield point, *rates, len(digests) == 1
        for engine in engines:
            engine.close()


def _round(engines: Sequence[_Engine], order: dict[str, Any]) -> list[dict[str, Any]]:
    """The last answers of engines that decode in turns, in a new order each time."""
    for engine in engines:
        engine.ask(order)
    answers: list[dict[str, Any]] = [{} for _ in engines]
    left, draw = list(range(len(engines))), random.Random(0)
    while left:
        draw.shuffle(left)
        for which in left:
            answers[which] = engines[which].ask({"seconds": _TURN_SECONDS})
        left = [which for which in left if not answers[which]["ends"]]
    return answers


def _points(args: argparse.Namespace, model: str, numbers: str) -> Iterator[tuple[_Point, Workload]]:
    for name, batch, work in _works(args, model):
        for strategy in args.strategies:
            yield _Point(model=model, numbers=numbers, regime=name, strategy=strategy, batch=batch), work


def _works(args: argparse.Namespace, model: str) -> Iterator[tuple[str, int, Workload]]:
    if model in SHAPES:
        for batch in args.batches:
            yield "random", batch, _random_work(batch)
        return
    with open_subject(model) as subject:
        for name, batch in itertools.product(regimes_of(subject), args.batches):
            yield name, batch, regime(subject, name, batch)


def _random_work(batch: int) -> Workload:
    draw = random.Random(batch)
    prompts = [[10 + draw.randrange(_WORDS) for _ in range(_PROMPT)] for _ in range(2 * batch)]
    params = SamplingParams(max_tokens=_NEW, temperature=0.0, ignore_eos=True)
    return Workload(prompts=prompts, params=[params] * len(prompts), concurrency=batch)


def _order(work: Workload, strategy: str) -> dict[str, Any]:
    names = ("max_tokens", "temperature", "ignore_eos")
    requests = [
        {"prompt": list(prompt), "params": {**{n: asdict(params)[n] for n in names}, "strategy": strategy}}
        for prompt, params in zip(work.prompts, work.params, strict=True)
    ]
    return {"requests": requests, "concurrency": work.concurrency}


@contextmanager
def _folder(model: str) -> Iterator[Path]:
    if model == "tiny":
        yield resolve("tiny")
        return
    with random_model_folder(model, dtype=torch.bfloat16) if model in SHAPES else random_model_folder("25m") as folder:
        yield folder


def _commit(root: Path) -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    return f"commit {subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout.strip()}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="root of another checkout")
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=(*MODELS, *SHAPES))
    parser.add_argument("--numbers", nargs="+", default=["float32"], choices=list(_NUMBERS))
    parser.add_argument("--strategies", nargs="+", default=list(_STRATEGIES[:2]), choices=_STRATEGIES)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32, 64])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--point-seconds", type=float, default=6.0, help="rounds are added to a point until then")
    return parser


if __name__ == "__main__":
    main()
