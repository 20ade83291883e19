"""The gain of prefix caching: a system prompt of 300 tokens before every prompt, caching on and off.

    python -m benchmarks.decode.prefix_sharing [--threads 1] [--models tiny random-25m]

Two engines that differ only in ``prefix_caching`` decode the same chat prompts, in alternating passes. Each round has
new questions, so that only the system prompt is shared.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence

import torch

from benchmarks.common import table, write_result
from benchmarks.decode.passes import Pass, Workload, run_pass
from benchmarks.decode.section import Section
from benchmarks.decode.workloads import MODELS, held_out_problems, open_subject
from wedlm_core import LLM, EngineConfig, SamplingParams
from wedlm_core.training.evaluation import REGIMES

__all__ = ["main", "prefix_sharing"]

SYSTEM_TOKENS = 300
_CONCURRENCY = 32
_PER_ROUND = 64
_NEW_TOKENS = 32
_SENTENCE = "You answer every question in few words and show your work where there is work to show. "


def prefix_sharing(models: Sequence[str], rounds: int) -> Section:
    """Median ratios of tokens per second, and the share of prompt tokens found in the cache."""
    rows = []
    for model in models:
        with open_subject(model, _config(caching=True)) as shared, open_subject(model, _config(caching=False)) as plain:
            system = _system_prompt(shared.llm)
            on, off = [], []
            for i in range(rounds + 1):
                work = _workload(shared.llm, system, i)
                pair = [run_pass(llm, work) for llm in (shared.llm, plain.llm)[:: 1 if i % 2 else -1]]
                one, other = pair if i % 2 else pair[::-1]
                if one.ids != other.ids:
                    raise AssertionError(f"{model}: prefix caching changed tokens")
                on.append(one)
                off.append(other)
        rows.append(_row(model, on[1:], off[1:]))  # the first round warms up and fills the cache
        print(*rows[-1], sep=" | ", flush=True)
    header = ("model", "prompt tokens", "found in the cache", "tokens/s off", "tokens/s on", "on / off")
    body = (
        f"A system prompt of {SYSTEM_TOKENS} tokens, {_PER_ROUND} new questions a round, {_CONCURRENCY} sequences at "
        f"once, at most {_NEW_TOKENS} tokens each, automatic windows, pages of 64 tokens. Medians of {rounds} rounds; "
        "the same tokens with caching on and off (asserted).\n\n" + table(header, rows)
    )
    return Section(title="Sharing the pages of a system prompt", body=body)


def _config(*, caching: bool) -> EngineConfig:
    return EngineConfig(max_num_seqs=_CONCURRENCY, prefix_caching=caching, max_model_len=1024)


def _system_prompt(llm: LLM) -> str:
    """Text of exactly 300 tokens under the model's tokenizer."""
    ids = llm.tokenizer.encode(_SENTENCE * SYSTEM_TOKENS)[:SYSTEM_TOKENS]
    text = llm.tokenizer.decode(ids, skip_special_tokens=True)
    assert len(llm.tokenizer.encode(text)) == SYSTEM_TOKENS
    return text


def _workload(llm: LLM, system: str, number: int) -> Workload:
    problems = [p for name in REGIMES for p in held_out_problems(name, _PER_ROUND)]
    # A number before the question makes the questions of different rounds different.
    chosen = [problems[(number * _PER_ROUND + i * 7) % len(problems)] for i in range(_PER_ROUND)]
    prompts = [
        llm.tokenizer.apply_chat_template(
            [{"role": "system", "content": system}, {"role": "user", "content": f"{number}.{i} {p.prompt}"}]
        )
        for i, p in enumerate(chosen)
    ]
    params = SamplingParams(max_tokens=_NEW_TOKENS)
    return Workload(prompts=prompts, params=[params] * len(prompts), concurrency=_CONCURRENCY)


def _row(model: str, on: Sequence[Pass], off: Sequence[Pass]) -> tuple[object, ...]:
    outputs = [g for one in on for g in one.outputs or ()]
    prompt, found = sum(g.prompt_tokens for g in outputs), sum(g.stats.cached_prompt_tokens for g in outputs)
    ratio = statistics.median(a.rate / b.rate for a, b in zip(on, off, strict=True))
    rates = (f"{statistics.median(p.rate for p in passes):.0f}" for passes in (off, on))
    return (model, f"{prompt / len(outputs):.0f} each", f"{found / prompt:.1%}", *rates, f"{ratio:.2f}")


def main() -> None:
    """Measure and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    section = prefix_sharing(args.models, args.rounds)
    write_result("prefix-sharing", section.title, "python -m benchmarks.decode.prefix_sharing", section.body,
                 threads=args.threads)  # fmt: skip


if __name__ == "__main__":
    main()
