"""The gain of packing the weights of a CPU model once: matrix products alone, and decoding.

    python -m benchmarks.decode.packed_products [--models tiny random-25m] [--threads 1]

Packed and unpacked products run in turns: all products of one forward, by row count; and the tokens/s of engines that
differ in nothing else.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from unittest import mock

import torch

from benchmarks.common import table, write_result
from benchmarks.decode.passes import run_pass
from benchmarks.decode.workloads import MODELS, Subject, open_subject, regime
from wedlm_core import Strategy
from wedlm_core.model import decoder_cpu
from wedlm_core.model.products import Products, Weight, plain_products, products_of
from wedlm_core.model.weights import load_model

__all__ = ["main"]

ROWS = (4, 16, 32, 64, 128, 256, 512)
BATCHES = (1, 8, 32)
_WAYS = ("torch.mm", "packed")
_STRATEGIES: Mapping[str, Mapping[str, object]] = {
    "autoregressive": {"strategy": Strategy.AUTOREGRESSIVE},
    "auto": {"strategy": Strategy.VERIFIED, "window_size": "auto"},
}


def main() -> None:
    """Measure and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    products, decoding = [], []
    for model in args.models:
        usual = open_subject(model)
        with (
            usual as packed,
            mock.patch.object(decoder_cpu, "products_of", plain_products),
            open_subject(model) as plain,
        ):
            products += _products(packed, args.rounds)
            decoding += _decoding(model, (plain, packed), args.rounds)
    header = ("model", "rows", "torch.mm, ms", "packed, ms", "packed, GFLOP/s", "times as fast")
    rates = ("model", "strategy", "batch", "tokens/s torch.mm", "tokens/s packed", "times as fast")
    body = (
        "The products of all weights of a forward, medians over rounds:\n\n" + table(header, products)
        + "\n\nDecoding at low entropy (see `benchmarks.decode`), medians over rounds of the ratio within a round; row "
        "counts are padded to 16 with `torch.mm`, whose bits differ for fewer rows, and to 4 with packed weights:\n\n"
        + table(rates, decoding)
    )  # fmt: skip
    command = "python -m benchmarks.decode.packed_products"
    if args.threads != 1:
        command += f" --threads {args.threads}"
    write_result("packed-products", "Packed weights on a CPU", command, body, threads=args.threads)


def _products(subject: Subject, rounds: int) -> list[tuple[object, ...]]:
    model = load_model(subject.llm.name)  # the engine has emptied its own
    linears = [m for m in model.modules() if isinstance(m, torch.nn.Linear)]
    weights = [Weight(weight_OI=m.weight, bias_O=m.bias) for m in linears]
    ways = plain_products(weights), products_of(weights)
    size = sum(w.weight_OI.numel() for w in weights)
    found: list[tuple[object, ...]] = []
    for rows in ROWS:
        inputs = {w.weight_OI.shape[1]: torch.randn(rows, w.weight_OI.shape[1]) for w in weights}
        plain, packed = _alternating([_all(way, weights, inputs) for way in ways], rounds)
        flops = 2 * size * rows / packed / 1e9
        found.append(
            (subject.name, rows, f"{plain * 1e3:.3f}", f"{packed * 1e3:.3f}", f"{flops:.0f}", f"{plain / packed:.2f}")
        )
        print(*found[-1], sep=" | ", flush=True)
    return found


def _all(way: Products, weights: Sequence[Weight], inputs: dict[int, torch.Tensor]) -> Callable[[], object]:
    def run() -> None:
        for product, weight in zip(way.products, weights, strict=True):
            product(inputs[weight.weight_OI.shape[1]])

    return run


@torch.inference_mode()
def _alternating(runs: Sequence[Callable[[], object]], rounds: int) -> list[float]:
    """The median seconds of each, measured in turns after two warm-up runs."""
    for run in runs:
        run()
        run()
    seconds: list[list[float]] = [[] for _ in runs]
    for _ in range(4 * rounds):
        for run, own in zip(runs, seconds, strict=True):
            begin = time.perf_counter()
            run()
            own.append(time.perf_counter() - begin)
    return [statistics.median(own) for own in seconds]


def _decoding(model: str, subjects: Sequence[Subject], rounds: int) -> list[tuple[object, ...]]:
    found: list[tuple[object, ...]] = []
    for batch in BATCHES:
        work = regime(subjects[0], "low", batch)
        for name, settings in _STRATEGIES.items():
            rates: list[list[float]] = [
                [run_pass(s.llm, work, settings).rate for s in subjects] for _ in range(rounds + 1)
            ]
            timed = rates[1:]
            plain, packed = (statistics.median(r[way] for r in timed) for way in range(len(_WAYS)))
            ratio = statistics.median(r[1] / r[0] for r in timed)
            found.append((model, name, batch, f"{plain:.0f}", f"{packed:.0f}", f"{ratio:.2f}"))
            print(*found[-1], sep=" | ", flush=True)
    return found


if __name__ == "__main__":
    main()
