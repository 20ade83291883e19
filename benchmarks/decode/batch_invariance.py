"""The cost of batch invariance on this CPU: tokens/s of the invariant backends against padded torch SDPA.

    python -m benchmarks.decode.batch_invariance [--threads 1]

Engines that differ only in ``batch_invariant`` and the attention backend decode the same prompts, in alternating
passes; the best of ``--repeats`` counts. It also counts the prompts to which the default and the SDPA engine give
different tokens, because rounding decides a near-tie.
"""

from __future__ import annotations

import argparse
import time

import torch

from benchmarks.common import table, write_result
from wedlm_core import LLM, EngineConfig, SamplingParams, Strategy

__all__ = ["main"]


def main() -> None:
    """Measure and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--prompts", default="jobs/data/demo_prompts.parquet")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--per-batch", type=int, default=4, help="prompts per slot")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    import pyarrow.parquet as pq

    texts = pq.read_table(args.prompts)["prompt"].to_pylist()
    rows = []
    for batch in args.batches:
        prompts = [texts[i * 37 % len(texts)] for i in range(batch * args.per_batch)]
        engines = {name: _engine(args.model, batch, name) for name in ("sdpa", "tiled", "compiled")}
        for strategy in (Strategy.AUTOREGRESSIVE, Strategy.VERIFIED):
            params = SamplingParams(max_tokens=128, strategy=strategy, window_size=16)
            rate, ids = _race(engines, prompts, params, args.repeats)
            differ = sum(a != b for a, b in zip(ids["compiled"], ids["sdpa"], strict=True))
            rows.append(
                (strategy.value, batch, rate["sdpa"], rate["tiled"], rate["compiled"],
                 f"{1 - rate['tiled'] / rate['sdpa']:+.1%}", f"{1 - rate['compiled'] / rate['sdpa']:+.1%}",
                 f"{differ} of {len(prompts)}")
            )  # fmt: skip
    header = ("strategy", "batch", "tokens/s sdpa (not invariant)", "tiled (invariant)", "default (invariant)",
              "cost, tiled", "cost, default", "prompts that differ")  # fmt: skip
    body = table(header, rows) + f"\n\nGreedy, W=16, float32, best of {args.repeats} alternating passes."
    body += (
        " `compiled` is faster for other reasons too (fewer operations to dispatch); `tiled` shows what the order of"
    )
    body += " sums alone costs within torch."
    write_result("batch-invariance", "The cost of batch invariance",
                 "python -m benchmarks.decode.batch_invariance", body,
                 threads=args.threads)  # fmt: skip


def _engine(model: str, batch: int, attention: str) -> LLM:
    config = EngineConfig(
        max_num_seqs=batch, prefix_caching=False, batch_invariant=attention != "sdpa", attention=attention
    )
    return LLM(model, config=config, device="cpu")


def _race(
    engines: dict[str, LLM], prompts: list[str], params: SamplingParams, repeats: int
) -> tuple[dict[str, float], dict[str, list[tuple[int, ...]]]]:
    """The best tokens/s and the tokens of each engine, over alternating passes."""
    rate: dict[str, float] = {}
    ids: dict[str, list[tuple[int, ...]]] = {}
    for _ in range(repeats):
        for name, llm in engines.items():
            start = time.perf_counter()
            out = llm.generate(prompts, params)
            speed = sum(len(g.token_ids) for g in out) / (time.perf_counter() - start)
            rate[name] = max(rate.get(name, 0.0), speed)
            ids[name] = [g.token_ids for g in out]
    return rate, ids


if __name__ == "__main__":
    main()
