"""Float32 on a CPU with matrix units: by digits, by vectors, and by oneDNN; products alone, and engines.

    python -m benchmarks.decode.float32_products [--shapes 25m 0.6b] [--rows 1 4 8 16 32 64 128 512]
        [--batches 1 8 32 64] [--threads 2] [--rounds 9]

The products of all layers of a shape run in turns, with rows of normal numbers; a ratio is taken within a round. Each
kind begins a quarter of a second behind the one before, whose threads may look for more work until then. How far
results are off is the root mean square of the difference to a product in float64, by that of the product: of a layer's
last product, with weights of 24 bits, and with the same rounded to bfloat16, as checkpoints have them. Engines
decode random prompts greedily, each 20 ms in its turn (:mod:`benchmarks.decode.turns`).
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from unittest import mock

import torch
from torch import Tensor

from benchmarks.common import positive, table, write_result
from benchmarks.decode.narrow_numbers import SHAPES
from benchmarks.decode.random_model import random_decoder
from benchmarks.decode.turns import Passage, take_turns
from wedlm_core import EngineConfig, Request, SamplingParams, Strategy
from wedlm_core.config import StepCost
from wedlm_core.engine import Engine
from wedlm_core.kernels.cpu.panels import numbers_here, numeric_kind
from wedlm_core.model import decoder_team
from wedlm_core.model.panel_layers import PROJECTIONS
from wedlm_core.model.panels import PanelWeight, pack
from wedlm_core.model.products import Product, Weight, products_of
from wedlm_core.model.sources import resolve
from wedlm_core.model.team import Team
from wedlm_core.tokenizer import Tokenizer

__all__ = ["main"]

_KINDS = {"digits": "float32_amx", "vectors": "float32"}
_BASE, _LIBRARY = "vectors", "oneDNN, packed"
_PROMPT, _NEW, _LONGEST = 64, 48, 256
_REST = 0.25  # seconds
_Run = Callable[[], Sequence[Tensor]]


def main() -> None:
    """Measure and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=["25m", "0.6b"], choices=list(SHAPES))
    parser.add_argument("--rows", nargs="+", type=positive, default=[1, 4, 8, 16, 32, 64, 128, 512])
    parser.add_argument("--batches", nargs="+", type=positive, default=[1, 8, 32, 64])
    parser.add_argument("--threads", type=positive, default=2)
    parser.add_argument("--rounds", type=positive, default=9)
    args = parser.parse_args()
    if _KINDS["digits"] not in numbers_here():
        raise SystemExit("this CPU has no matrix units for int8 (AMX): there float32 is multiplied by vectors only")
    torch.set_num_threads(args.threads)
    body = []
    for shape in args.shapes:
        products = _products(shape, args.rows, args.rounds)
        engines = _engines(shape, args.batches, args.rounds)
        header = ("rows", "kind", "ms", "GFLOP/s", f"times as fast as {_BASE}", "over rounds", "off",
                  "off, weights of bfloat16")  # fmt: skip
        rates = ("sequences", "kind", "tokens/s", f"times as fast as {_BASE}", "over rounds", "rows with equal tokens")
        body.append(f"## {shape}\n\n{table(header, products)}\n\n{table(rates, engines)}")
    command = f"python -m benchmarks.decode.float32_products --shapes {' '.join(args.shapes)} --rounds {args.rounds}"
    write_result("float32-products", "Float32 by digits", command, "\n\n".join(body), threads=args.threads)


@torch.inference_mode()
def _products(shape: str, counts: Sequence[int], rounds: int) -> list[tuple[object, ...]]:
    """Rows of the table of products of one shape."""
    model = random_decoder(SHAPES[shape], device="cpu", dtype=torch.float32, max_positions=8)
    weights = [getattr(layer, name).weight.detach() for layer in model.layers for name in PROJECTIONS]
    team, size = Team(), sum(weight.numel() for weight in weights)
    packed = {kind: [pack(weight, numbers) for weight in weights] for kind, numbers in _KINDS.items()}
    library = products_of([Weight(weight_OI=weight) for weight in weights]).products
    found: list[tuple[object, ...]] = []
    for rows in counts:
        inputs = {width: torch.randn(rows, width) for width in {weight.shape[1] for weight in weights}}
        given = [inputs[weight.shape[1]] for weight in weights]
        runs: dict[str, _Run] = {kind: partial(_multiply_panels, team, ones, given) for kind, ones in packed.items()}
        runs[_LIBRARY] = partial(_multiply, library, given)
        off = [_off(team, weight, given[-1]) for weight in (weights[-1], weights[-1].bfloat16().float())]
        seconds = _in_turns(runs, 2 * rounds)
        for kind, own in seconds.items():
            middle, ratio = statistics.median(own), _ratios(seconds[_BASE], own)
            found.append((rows, kind, f"{1e3 * middle:.2f}", f"{2 * size * rows / middle / 1e9:.0f}", *ratio,
                          *(f"{one[kind]:.1e}" for one in off)))  # fmt: skip
            print(*found[-1], sep=" | ", flush=True)
    return found


def _off(team: Team, weight_OI: Tensor, x_RI: Tensor) -> dict[str, float]:
    """How far a product is off, by kind."""
    exact_RO = (x_RI.double() @ weight_OI.double().t()).float()
    found = {kind: team.product(pack(weight_OI, numbers), x_RI) for kind, numbers in _KINDS.items()}
    found[_LIBRARY] = products_of([Weight(weight_OI=weight_OI)]).products[0](x_RI)
    return {kind: float((one - exact_RO).square().mean().sqrt() / exact_RO.square().mean().sqrt())
            for kind, one in found.items()}  # fmt: skip


def _multiply_panels(team: Team, weights: Sequence[PanelWeight], given: Sequence[Tensor]) -> list[Tensor]:
    return [team.product(weight, x) for weight, x in zip(weights, given, strict=True)]


def _multiply(products: Sequence[Product], given: Sequence[Tensor]) -> list[Tensor]:
    return [product(x) for product, x in zip(products, given, strict=True)]


def _in_turns(runs: Mapping[str, _Run], rounds: int) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {kind: [] for kind in runs}
    for _ in range(rounds):
        for kind, run in runs.items():
            time.sleep(_REST)
            begin = time.perf_counter()
            run()
            seconds[kind].append(time.perf_counter() - begin)
    return seconds


def _ratios(base: Sequence[float], own: Sequence[float]) -> tuple[str, str]:
    """The median of the ratios of rounds, and their range."""
    ratios = [a / b for a, b in zip(base, own, strict=True)]
    return f"{statistics.median(ratios):.2f}", f"{min(ratios):.2f} to {max(ratios):.2f}"


@contextmanager
def _only(numbers: str) -> Iterator[None]:
    """Engines that are built meanwhile hold float32 as ``numbers``."""
    kept = tuple(one for one in numbers_here() if numeric_kind(one) != "float32" or one == numbers)
    with mock.patch.object(decoder_team, "numbers_here", return_value=kept):
        yield


def _engines(shape: str, batches: Sequence[int], rounds: int) -> list[tuple[object, ...]]:
    """Rows of the table of engines of one shape."""
    config = EngineConfig(
        max_num_seqs=max(batches), max_model_len=_LONGEST, prefix_caching=False,
        step_cost=StepCost.linear(fixed=1.0, per_row=1 / 64, floor_rows=16),
    )  # fmt: skip
    engines, tokenizer = {}, Tokenizer.load(resolve("tiny"))
    for kind, numbers in _KINDS.items():
        model = random_decoder(SHAPES[shape], device="cpu", dtype=torch.float32, max_positions=2 * _LONGEST)
        with _only(numbers):
            engines[kind] = Engine(model, tokenizer, config, keep_weights=False)
    found: list[tuple[object, ...]] = []
    for batch in batches:
        seconds: dict[str, list[float]] = {kind: [] for kind in engines}
        equal = 0
        for turn in range(rounds + 1):
            passages = {
                kind: Passage(engine=engine, requests=_requests(batch, turn), batch=batch)
                for kind, engine in engines.items()
            }
            take_turns(list(passages.values()))
            if turn:  # the first one warms up
                for kind, passage in passages.items():
                    seconds[kind].append(passage.seconds)
                one, other = ({done.request_id: done.token_ids for done in each.done} for each in passages.values())
                equal += sum(one[name] == other[name] for name in one)
        for kind, own in seconds.items():
            rate, ratio = batch * _NEW / statistics.median(own), _ratios(seconds[_BASE], own)
            found.append((batch, kind, f"{rate:.0f}", *ratio, f"{equal / batch / rounds:.0%}"))
            print(*found[-1], sep=" | ", flush=True)
    return found


def _requests(batch: int, turn: int) -> list[Request]:
    params = SamplingParams(max_tokens=_NEW, ignore_eos=True, strategy=Strategy.AUTOREGRESSIVE)
    generator = torch.Generator().manual_seed(turn)
    ids = torch.randint(10, 900, (batch, _PROMPT), generator=generator).tolist()
    return [Request(request_id=str(n), prompt_token_ids=tuple(own), params=params, seed=n) for n, own in enumerate(ids)]


if __name__ == "__main__":
    main()
