"""Measure against llama.cpp, OpenVINO GenAI and transformers: the same weights and sampling, prefill and decode.

    python -m benchmarks.decode.engines [--shapes 25m 0.6b] [--batches 1 8 32 64] [--threads 2]
        [--sampling greedy] [--only "ours int8" "llama.cpp Q8_0" ...]
        [--llama-cpp PYTHON] [--openvino PYTHON] [--transformers PYTHON]

The other engines are programs of their own (:mod:`benchmarks.decode.peers`), each run by the interpreter that an option
names; one that is not named, or does not start, is listed as missing. All are loaded at once and take turns within a
round, so that a busy moment of the machine meets all of them; a figure is a median over rounds. Each begins half a
second after the one before, whose threads may look for more work until then. A prefill is a pass of one new token; a
decode step is the difference to a pass of ``--new`` tokens, divided by its further tokens.

``--sampling`` names the settings of a model card; all engines draw with them, each with noise of its own, so tokens
differ. Lines of ``verified`` keep their temperatures and take the rest.

``--only`` names the engines to run, where memory does not hold all; if one of them does not start, nothing is run.
One of them has to be ours: ratios are to the first line of a table.

``verified`` draws at temperatures that make 25M random weights accept drafts as trained models do in low and medium
entropy (:mod:`benchmarks.decode.random_model`); its tokens per forward stand in its line.
"""

from __future__ import annotations

import argparse
import gc
import json
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from benchmarks.common import SAMPLING, positive, table, write_result
from benchmarks.decode.random_model import SHAPES, TEMPERATURES, random_decoder
from wedlm_core import EngineConfig, Request, SamplingParams, Strategy
from wedlm_core.engine import Engine
from wedlm_core.model.sources import resolve
from wedlm_core.model.weights import load_model, save_model
from wedlm_core.tokenizer import Tokenizer

_PROMPT, _MOST, _LONGEST = 64, 64, 256  # tokens of a prompt; sequences, and tokens of one
_REST = 0.5  # seconds between engines: threads of one look for work for a while, on the cores of the next
_PEERS = Path(__file__).parent / "peers"
_PROGRAMS = {
    "llama_cpp": ("llama_cpp_peer.py", {"llama.cpp F32": "float32", "llama.cpp Q8_0": "q8_0"}),
    "openvino": (
        "openvino_peer.py",
        {
            "OpenVINO f32": "float32",
            "OpenVINO default": "default",
        },
    ),
    "transformers": ("transformers_peer.py", {"transformers float32": "float32"}),
}
_NUMBERS = ("float32", "bfloat16", "int8")
_VERIFIED = ("low", "medium")
Ids = Sequence[Sequence[int]]


class Contender(Protocol):
    """Generates for a batch of prompts: seconds, the tokens, and tokens per forward."""

    def __call__(self, prompts: Ids, new: int) -> tuple[float, Ids, float]:
        """Generate ``new`` tokens for each prompt."""
        ...


class Peer:
    """A program of another engine. Raises :class:`RuntimeError` with its last words if it does not start."""

    def __init__(self, python: str, file: str, folder: Path, args: argparse.Namespace, numbers: str) -> None:
        self._sampling = SAMPLING[args.sampling]
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  # as long as the process
        self._process = subprocess.Popen(
            [python, str(_PEERS / file), str(folder), str(args.threads), numbers],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True,
            env={"PATH": "/usr/bin:/bin", "HOME": str(folder)},
        )  # fmt: skip
        self.about = self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        while line and not line.startswith("{"):
            line = self._process.stdout.readline()
        if not line:
            self._errors.seek(0)
            raise RuntimeError((self._errors.read().strip() or "no answer").splitlines()[-1])
        found: dict[str, Any] = json.loads(line)
        return found

    def __call__(self, prompts: Ids, new: int) -> tuple[float, Ids, float]:
        """Generate ``new`` tokens for each prompt."""
        assert self._process.stdin is not None
        task = {"prompts": prompts, "new": new, "sampling": self._sampling}
        print(json.dumps(task), file=self._process.stdin, flush=True)
        answer = self._read()
        return answer["seconds"], answer["ids"], 1.0

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)


class Ours:
    """Our engine with the weights of a folder in some numbers."""

    def __init__(self, folder: Path, numbers: str, args: argparse.Namespace) -> None:
        dtype = torch.bfloat16 if numbers == "bfloat16" else torch.float32
        weights: Any = "int8" if numbers == "int8" else "auto"
        model = load_model(folder, device="cpu", dtype=dtype, weight_dtype=weights, max_positions=1024, packed=True)
        config = EngineConfig(
            weight_dtype=weights, max_num_seqs=_MOST, max_model_len=_LONGEST,
            num_pages=_MOST * _LONGEST // EngineConfig.page_size, prefix_caching=False,
        )  # fmt: skip
        self._engine = Engine(model, Tokenizer.load(resolve("tiny")), config)
        self._sampling, self._ids = SAMPLING[args.sampling], iter(range(10**9))

    def run(self, prompts: Ids, params: SamplingParams) -> tuple[float, Ids, float]:
        """See :class:`Contender`."""
        numbers = [next(self._ids) for _ in prompts]
        for number, prompt in zip(numbers, prompts, strict=True):
            self._engine.add(
                Request(request_id=str(number), prompt_token_ids=tuple(prompt), params=params, seed=number)
            )
        gc.collect()
        begin, done = time.perf_counter(), {}
        while self._engine.has_work():
            done.update({int(one.request_id): one for one in self._engine.step()})
        seconds = time.perf_counter() - begin
        forwards = sum(one.stats.decode_forwards for one in done.values())
        tokens = sum(one.stats.generated_tokens for one in done.values())
        return seconds, [done[number].token_ids for number in numbers], tokens / max(1, forwards)

    def contender(self, strategy: Strategy, temperature: float | None) -> Contender:
        """Our engine with a strategy, and a temperature of its own in place of the run's."""
        own = {} if temperature is None else {"temperature": temperature}

        def generate(prompts: Ids, new: int) -> tuple[float, Ids, float]:
            settings: dict[str, Any] = {**self._sampling, **own}
            params = SamplingParams(max_tokens=new, ignore_eos=True, strategy=strategy, **settings)
            return self.run(prompts, params)

        return generate


def _ways(numbers: str) -> dict[str, tuple[Strategy, float | None]]:
    """The lines of our engine in some numbers, and the strategy and own temperature of each."""
    ways: dict[str, tuple[Strategy, float | None]] = {f"ours {numbers}": (Strategy.AUTOREGRESSIVE, None)}
    for regime in _VERIFIED if numbers != "bfloat16" else ():
        ways[f"ours {numbers}, verified, {regime} entropy"] = Strategy.VERIFIED, TEMPERATURES[regime]
    return ways


def _names() -> list[str]:
    """The lines of a table, those of our engine first."""
    ours = (name for numbers in _NUMBERS for name in _ways(numbers))
    return [*ours, *(name for _, kinds in _PROGRAMS.values() for name in kinds)]


def _contenders(folder: Path, args: argparse.Namespace) -> tuple[dict[str, Contender], dict[str, str], list[Peer]]:
    """All that run here, why others do not, and the processes to end."""
    found: dict[str, Contender] = {}
    missing: dict[str, str] = {}
    peers: list[Peer] = []

    def wanted(name: str) -> bool:
        return args.only is None or name in args.only

    for numbers in _NUMBERS:
        ways = {name: way for name, way in _ways(numbers).items() if wanted(name)}
        if ways:
            engine = Ours(folder, numbers, args)
            found.update({name: engine.contender(*way) for name, way in ways.items()})
    for option, (file, kinds) in _PROGRAMS.items():
        python = getattr(args, option)
        for name, numbers in kinds.items():
            if not wanted(name):
                continue
            try:
                if python is None:
                    raise RuntimeError(f"no interpreter given (--{option.replace('_', '-')})")
                peer = Peer(python, file, folder, args, numbers)
            except (RuntimeError, OSError) as error:
                missing[name] = str(error)
                print(name, "is missing:", error, flush=True)
                continue
            peers.append(peer)
            found[name] = peer
            print(name, peer.about, flush=True)
    if args.only is not None and missing:  # a run takes a quarter of an hour, and is made for these
        for peer in peers:
            peer.close()
        name, why = next(iter(missing.items()))
        raise SystemExit(f"--only {name!r}: it does not start ({why}). Give an interpreter that has its packages")
    return found, missing, peers


def _prompts(batch: int, turn: int) -> list[list[int]]:
    """Other ones in each pass: an engine may keep results of earlier ones."""
    return [[10 + (7 * i + 13 * s + 101 * turn) % 900 for i in range(_PROMPT)] for s in range(batch)]


def _measure(found: dict[str, Contender], batch: int, args: argparse.Namespace) -> list[tuple[object, ...]]:
    """Rows of the table of one batch size."""
    first: dict[str, list[float]] = {name: [] for name in found}
    step: dict[str, list[float]] = {name: [] for name in found}
    ids: dict[str, Ids] = {}
    rate: dict[str, float] = {}
    for one in found.values():
        one(_prompts(batch, 0), 2)
    for turn in range(args.rounds):
        for name, one in found.items():
            time.sleep(_REST)
            short, _, _ = one(_prompts(batch, 2 * turn + 1), 1)
            whole, ids[name], rate[name] = one(_prompts(batch, 2 * turn + 2), args.new)
            first[name].append(short)
            step[name].append((whole - short) / (args.new - 1))
    rows: list[tuple[object, ...]] = []
    base = next(iter(found))
    want = ids[base]
    for name in found:
        ratio = statistics.median(other / own for other, own in zip(step[base], step[name], strict=True))
        pairs = zip(ids[name], want, strict=True)
        same = sum(a == b for one, two in pairs for a, b in zip(one, two, strict=True))
        # Of few passes of the difference, where the machine changed its speed in between, not even the sign is right.
        fast, middle, slow = statistics.quantiles(step[name] * (2 if args.rounds == 1 else 1), n=4, method="inclusive")
        rows.append((
            batch, name, f"{batch * _PROMPT / statistics.median(first[name]):.0f}", f"{batch / middle:.0f}",
            f"{batch / slow:.0f} to {batch / fast:.0f}", f"{ratio:.2f}",
            f"{rate[name]:.1f}",
            "" if "verified" in name or args.sampling != "greedy" else f"{same / batch / args.new:.0%}",
        ))  # fmt: skip
        print(*rows[-1], sep=" | ", flush=True)
    return rows


def _check_sizes(args: argparse.Namespace) -> None:
    """End the program where a pass would not match its line: our engines have room for so much, and no more."""
    if not 2 <= args.new <= _LONGEST - _PROMPT:
        rule = f"a step is timed by further tokens, and a sequence has {_LONGEST} with its prompt"
        raise SystemExit(f"--new {args.new}: {rule}. Give 2 to {_LONGEST - _PROMPT}")
    if max(args.batches) > _MOST:
        raise SystemExit(f"--batches {max(args.batches)}: at most {_MOST} sequences run at once. Give fewer")


def _header(base: str) -> tuple[str, ...]:
    return ("batch", "engine", "prefill, tokens/s", "decode, tokens/s", "middle half of rounds", f"of {base}",
            "tokens/forward", f"tokens as {base}")  # fmt: skip


def main() -> None:
    """Measure and write the tables."""
    args = _parser().parse_args()
    _check_sizes(args)
    torch.set_num_threads(args.threads)
    parts = []
    with tempfile.TemporaryDirectory(dir=args.folder) as place:
        for shape in args.shapes:
            folder = Path(place) / shape
            model = random_decoder(SHAPES[shape], device="cpu", dtype=torch.float32, max_positions=64)
            save_model(model, folder)
            del model
            found, missing, peers = _contenders(folder, args)
            rows = [row for batch in args.batches for row in _measure(found, batch, args)]
            parts.append(f"## {shape}\n\n" + table(_header(next(iter(found))), rows))
            parts += ["Missing: " + "; ".join(f"{name} ({why})" for name, why in missing.items())] if missing else []
            for peer in peers:
                peer.close()
            del found
            gc.collect()
    body = (
        f"Wall clock, {_PROMPT} tokens of prompt and {args.new} generated, "
        f"{args.rounds} rounds in turns, {args.sampling}. {args.note}\n\n" + "\n\n".join(parts)
    )
    slug = "engines" if "25m" in args.shapes else "-".join(["engines", *args.shapes])
    slug += "" if args.sampling == "greedy" else f"-{args.sampling}"
    write_result(slug, "Against other engines on a CPU", f"python -m {' '.join(_command())}", body,
                 threads=args.threads)  # fmt: skip


def _command() -> list[str]:
    """The command line, without the paths of this machine."""
    words = ["benchmarks.decode.engines"]
    for word in sys.argv[1:]:
        is_path = "/" in word and words[-1].startswith("--")
        words.append(("FOLDER" if words[-1] == "--folder" else "PYTHON") if is_path else shlex.quote(word))
    return words


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=["25m", "0.6b"], choices=list(SHAPES))
    parser.add_argument("--batches", nargs="+", type=positive, default=[1, 8, 32, 64], help=f"{_MOST} at most")
    parser.add_argument("--only", nargs="+", choices=_names(), help="default: all that install")
    parser.add_argument("--threads", type=positive, default=2)
    parser.add_argument("--rounds", type=positive, default=5)
    parser.add_argument("--new", type=positive, default=48, help=f"tokens of a pass, 2 to {_LONGEST - _PROMPT}")
    parser.add_argument("--sampling", default="greedy", choices=[name for name in SAMPLING if name != "own"])
    parser.add_argument("--folder", default=None, help="where the model is written; default: the system's")
    parser.add_argument("--note", default="", help="a sentence on the state of the machine")
    for option, (file, _) in _PROGRAMS.items():
        own = sys.executable if option == "transformers" else None
        help_text = f"interpreter for peers/{file}"
        parser.add_argument(f"--{option.replace('_', '-')}", default=own, metavar="PYTHON", help=help_text)
    return parser


if __name__ == "__main__":
    main()
