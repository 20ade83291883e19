"""Measures whole jobs, prefill and end included, with our engine and with others.

    python -m benchmarks.gpu.jobs [--shape 8b | --model FOLDER] [--numbers bfloat16 int8 int8+kv8]
        [--lengths 128/1024 1000/1000 2048/2048] [--at-once 1 32 64 128 256 512]
        [--decodings autoregressive low medium high] [--vllm PYTHON] [--transformers PYTHON] [--output FOLDER]
    python -m benchmarks.gpu.jobs --device cpu --shape tiny --lengths 20/12 --at-once 1 4      # runs the code

All rows of a job have the same numbers of prompt and output tokens. A job has four rows for each sequence that runs
at once; at its end, slots become empty. Without ``--model`` weights are random; *low*, *medium* and *high* are
temperatures that let ``verified`` accept as many drafts as in texts of such entropy. With ``--model`` the weights come
from the folder, and ``verified`` decodes at temperature 0.7. Other engines (:mod:`benchmarks.gpu.peers`) run after
ours, each with the Python interpreter that its option names. They decode autoregressively, with the weights of
``--model`` or random ones. Each result is written once it is measured, as a line of
``jobs_<date>_<shape>.jsonl``. Exit code: 0; 1 if a line of ours failed; 2 without a GPU.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import json
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import machine, positive, table
from benchmarks.decode.random_model import SHAPES
from benchmarks.gpu import peers
from benchmarks.gpu.decoding import AUTO, AUTOREGRESSIVE, Subject, regimes
from benchmarks.gpu.device import ceilings
from benchmarks.gpu.section import TOY, Clock, Scene, scale_of
from wedlm_core import ModelConfig, Request, SamplingParams
from wedlm_core.engine import Engine
from wedlm_core.model.weights import load_config

NUMBERS: Mapping[str, tuple[Any, Any]] = {
    "bfloat16": ("auto", "auto"), "int8": ("int8", "auto"), "int8+kv8": ("int8", "fp8_e4m3"),
}  # fmt: skip
"""Name -> dtypes of weights, and of keys and values. On a CPU, keys and values in 8 bits are int8."""
DECODINGS = ("autoregressive", "low", "medium", "high")
_ROWS = 4  # rows of a job for each sequence that runs at once
_WARM = 16  # tokens of each output in the job before, which warms up
_TEMPERATURE = 0.7
_LIMIT = 1800.0  # most seconds of another engine's program


@dataclass(frozen=True, kw_only=True)
class Done:
    """Counts of a finished job: seconds, engine steps, generated tokens, forwards of its sequences, and their rows.

    ``kv_tokens``: tokens whose keys and values were read.
    """

    seconds: float
    steps: int
    tokens: int
    forwards: int
    rows: int
    kv_tokens: float

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds


def run_job(engine: Engine, prompts: Sequence[tuple[int, ...]], params: SamplingParams, at_once: int) -> Done:
    """Decode the prompts, ``at_once`` of them at a time; the next one enters when one ends."""
    waiting, done, steps = deque(enumerate(prompts)), [], 0
    open_now = 0
    gc.collect()
    begin = time.perf_counter()
    while waiting or open_now:
        while waiting and open_now < at_once:
            number, prompt = waiting.popleft()
            engine.add(Request(request_id=f"{begin} {number}", prompt_token_ids=prompt, params=params, seed=number))
            open_now += 1
        ended = engine.step()
        steps += 1
        open_now -= len(ended)
        done += ended
    seconds, forwards = time.perf_counter() - begin, sum(one.stats.decode_forwards for one in done)
    fed = sum(map(len, prompts))
    return Done(
        seconds=seconds, steps=steps, tokens=sum(len(one.token_ids) for one in done), forwards=forwards,
        rows=fed + sum(one.stats.rows_forwarded for one in done),
        kv_tokens=forwards * (fed / len(prompts) + params.max_tokens / 2),
    )  # fmt: skip


def figures(scene: Scene, subject: Subject, done: Done) -> dict[str, Any]:
    """Columns of a job. Bytes: weights once per step, and keys and values once per forward."""
    read = done.steps * subject.weight_bytes + done.kv_tokens * subject.kv_bytes
    return {
        "tokens/s": round(done.rate, 1), "step ms": round(1e3 * done.seconds / done.steps, 3),
        "tokens/forward": round(done.tokens / max(1, done.forwards), 2),
        "of bandwidth": round(read / done.seconds / scene.bandwidth, 3),
        "of arithmetic": round(2 * subject.weights * done.rows / done.seconds / scene.gemm_rate, 3),
    }  # fmt: skip


def _ways(scene: Scene, subject: Subject, wanted: Sequence[str]) -> Iterator[tuple[str, SamplingParams]]:
    """The wanted decodings, and their parameters without the number of tokens."""
    for name in wanted:
        if name == "autoregressive":
            yield name, SamplingParams(ignore_eos=True, temperature=_TEMPERATURE, **AUTOREGRESSIVE)
    if scene.model is not None:
        if set(wanted) - {"autoregressive"}:
            yield "verified", SamplingParams(ignore_eos=True, temperature=_TEMPERATURE, **AUTO)
        return
    found = regimes(scene, subject) if set(wanted) - {"autoregressive"} else []
    for one in found:
        if one.name in wanted:
            yield f"verified, {one.name}", SamplingParams(ignore_eos=True, temperature=one.temperature, **AUTO)


def ours(args: argparse.Namespace, numbers: str) -> Iterator[dict[str, Any]]:
    """Lines of our engine with the dtypes of ``numbers``."""
    scene = _scene(args, numbers)
    found = ceilings(scene).facts
    scene.bandwidth, scene.gemm_rate = found["bandwidth"], found["gemm_rate"]
    subject = Subject(scene)
    draw, vocab = torch.Generator().manual_seed(0), scene.scale.config.vocab_size
    for decoding, plain in _ways(scene, subject, args.decodings):
        for prompt, new in args.lengths:
            for at_once in args.at_once:
                line = {"engine": "ours", "numbers": numbers, "decoding": decoding, "in/out": f"{prompt}/{new}",
                        "at once": at_once}  # fmt: skip
                if at_once > subject.capacity(prompt + new):
                    yield {**line, "note": f"the pool holds {subject.capacity(prompt + new)} such sequences"}
                    continue
                ids = torch.randint(vocab - 1, (_ROWS * at_once, prompt), generator=draw).tolist()
                prompts = [tuple(one) for one in ids]
                warm = [one[::-1] for one in prompts[:at_once]]  # other prompts, so that no page is shared
                run_job(subject.engine, warm, replace(plain, max_tokens=min(_WARM, new)), at_once)
                done = run_job(subject.engine, prompts, replace(plain, max_tokens=new), at_once)
                yield {**line, **figures(scene, subject, done)}


def others(args: argparse.Namespace, config: ModelConfig) -> Iterator[dict[str, Any]]:
    """Lines of other engines. The line of an engine that cannot run has the reason."""
    with tempfile.TemporaryDirectory() as place:
        peers.write_folder(config, Path(place), None if args.model is None else Path(args.model))
        for option, (file, ways) in peers.PROGRAMS.items():
            python = getattr(args, option)
            for way in ways:
                line = {"engine": option, "numbers": way, "decoding": "autoregressive"}
                if python is None:
                    yield {**line, "note": f"not run: --{option} names no interpreter that has it"}
                    continue
                for prompt, new in args.lengths:
                    for at_once in args.at_once:
                        task = peers.Task(way=way, random=args.model is None, device=args.device, rows=_ROWS * at_once,
                                          vocab=config.vocab_size, at_once=at_once, prompt=prompt, new=new)  # fmt: skip
                        point = {**line, "in/out": f"{prompt}/{new}", "at once": at_once}
                        try:
                            found = peers.measure(python, file, Path(place), task, _LIMIT)
                        except RuntimeError as error:
                            yield {**point, "note": f"not run: {error}"}
                            continue
                        rate = round(found["tokens"] / found["seconds"], 1)
                        yield {**point, "tokens/s": rate, "note": f"version {found['version']}"}


def _scene(args: argparse.Namespace, numbers: str) -> Scene:
    weights, kv = NUMBERS[numbers]
    small = args.shape == "tiny"
    scale = TOY if small else scale_of(args.shape, weights, tiny=False)
    if args.model is not None:
        scale = replace(scale, config=load_config(Path(args.model)), name=args.model)
    scale = replace(
        scale, row_counts=(1,), batches=args.at_once, contexts=(max(prompt for prompt, _ in args.lengths),),
        max_tokens=max(scale.max_tokens, *(new for _, new in args.lengths)),
    )  # fmt: skip
    if args.device == "cpu" and kv == "fp8_e4m3":
        kv = "int8"
    return Scene(device=torch.device(args.device), scale=scale, clock=Clock(_LIMIT), weight_dtype=weights, kv_dtype=kv,
                 model=args.model)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; return the exit code."""
    args = _parser().parse_args(arguments)
    if args.device != "cpu" and not torch.cuda.is_available():
        print("no GPU here. Run it on a machine with one, or the code with --device cpu --shape tiny.", file=sys.stderr)
        return 2
    folder, today = Path(args.output), datetime.datetime.now(datetime.UTC).date().isoformat()
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"jobs_{today}_{args.shape if args.model is None else Path(args.model).name}.jsonl"
    lines: list[dict[str, Any]] = []

    def write(line: dict[str, Any]) -> None:
        print(*line.values(), sep=" | ", flush=True)
        lines.append(line)
        with file.open("a", encoding="utf-8") as out:
            out.write(json.dumps({**line, "machine": machine()}) + "\n")

    failed = False
    for numbers in args.numbers:
        failed |= not _written(args, numbers, write)
    for line in others(args, _scene(args, args.numbers[0]).scale.config):
        write(line)
    columns = list(dict.fromkeys(name for line in lines for name in line))
    print("\n" + table(columns, ([line.get(name, "") for name in columns] for line in lines)) + f"\nwritten: {file}")
    return 1 if failed else 0


def _written(args: argparse.Namespace, numbers: str, write: Callable[[dict[str, Any]], None]) -> bool:
    """Write each of our lines once it is measured; False if an error ends them. Its line is the last one."""
    try:
        for line in ours(args, numbers):
            write(line)
    except Exception as error:  # the other dtypes are still measured
        write({"engine": "ours", "numbers": numbers, "note": f"failed: {type(error).__name__}: {error}"})
        return False
    finally:
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return True


def _lengths(text: str) -> tuple[int, int]:
    """Tokens of prompts and outputs. Raises :class:`argparse.ArgumentTypeError`."""
    parts = text.split("/")
    if len(parts) != 2:
        raise argparse.ArgumentTypeError(f"{text}: tokens in and out, such as 1000/1000")
    return positive(parts[0]), positive(parts[1])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=["tiny", *SHAPES], default="8b", help="shape of the random model")
    parser.add_argument("--model", help="a model folder, whose weights are used instead of random ones")
    parser.add_argument("--numbers", nargs="+", choices=list(NUMBERS), default=list(NUMBERS))
    parser.add_argument("--decodings", nargs="+", choices=DECODINGS, default=list(DECODINGS))
    parser.add_argument(
        "--lengths", nargs="+", type=_lengths, default=[(128, 1024), (1000, 1000), (2048, 2048)], metavar="IN/OUT"
    )
    parser.add_argument("--at-once", nargs="+", type=positive, default=[1, 32, 64, 128, 256, 512])
    parser.add_argument("--device", default="cuda")
    for name in peers.PROGRAMS:
        parser.add_argument(f"--{name}", metavar="PYTHON", help=f"a Python interpreter that has the package {name}")
    parser.add_argument("--output", default="out/benchmarks", help="folder for the result")
    return parser


if __name__ == "__main__":
    sys.exit(main())
