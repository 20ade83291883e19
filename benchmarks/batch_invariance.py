"""What batch invariance costs on this CPU: tokens/s of the tiled path against padded torch SDPA.

    python -m benchmarks.batch_invariance [--threads 1]

The same prompts through two engines that differ in ``batch_invariant`` and attention backend only, passes
alternating, best of ``--repeats``; and how many prompts the two paths answer with different tokens (ties
that float rounding decides).
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
        engines = {
            True: LLM(args.model, config=EngineConfig(max_num_seqs=batch, prefix_caching=False), device="cpu"),
            False: LLM(
                args.model, device="cpu",
                config=EngineConfig(
                    max_num_seqs=batch, prefix_caching=False, batch_invariant=False, attention="sdpa"
                ),
            ),
        }  # fmt: skip
        for strategy in (Strategy.AUTOREGRESSIVE, Strategy.VERIFIED):
            params = SamplingParams(max_tokens=128, strategy=strategy)
            rate: dict[bool, float] = {}
            ids: dict[bool, list[tuple[int, ...]]] = {}
            for _ in range(args.repeats):
                for invariant, llm in engines.items():
                    start = time.perf_counter()
                    out = llm.generate(prompts, params)
                    speed = sum(len(g.token_ids) for g in out) / (time.perf_counter() - start)
                    rate[invariant] = max(rate.get(invariant, 0.0), speed)
                    ids[invariant] = [g.token_ids for g in out]
            differ = sum(a != b for a, b in zip(ids[True], ids[False], strict=True))
            rows.append((strategy.value, batch, rate[False], rate[True], f"{1 - rate[True] / rate[False]:+.1%}",
                         f"{differ} of {len(prompts)}"))  # fmt: skip
    header = ("strategy", "batch", "tokens/s plain", "tokens/s invariant", "cost", "prompts that differ")
    body = table(header, rows) + f"\n\nGreedy, float32, best of {args.repeats} alternating passes."
    write_result("batch-invariance", "The cost of batch invariance", "python -m benchmarks.batch_invariance", body,
                 threads=args.threads)  # fmt: skip


if __name__ == "__main__":
    main()
