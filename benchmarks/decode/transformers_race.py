"""Section ``transformers``: this engine against transformers ``generate``, each at its best batch size."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.common import table
from benchmarks.decode.passes import Workload, run_pass
from benchmarks.decode.section import Goal, Section, Settings
from benchmarks.decode.transformers_compare import qwen3_twin, theirs
from benchmarks.decode.workloads import Subject, held_out_problems, open_subject, prompts_of
from jobs.evaluate import MAX_TOKENS
from wedlm_core import LLM, EngineConfig, SamplingParams, Strategy
from wedlm_core.training.evaluation import REGIMES

__all__ = ["transformers_race"]

_PROMPTS = 256
_STATIC_BATCHES = (8, 32, 64, 128)
_OUR_BATCHES = (32, 64, 128)
_ROUNDS = 3
_OURS = (Strategy.AUTOREGRESSIVE, Strategy.VERIFIED)


def transformers_race(settings: Settings) -> Section:
    """Measure 256 prompts of all regimes, and 256 of low and medium entropy, greedy."""
    rounds, count = (1, 32) if settings.quick else (_ROUNDS, _PROMPTS)
    tables, goals = [], []
    config = EngineConfig(max_num_seqs=max(_OUR_BATCHES), prefix_caching=False)
    with open_subject("tiny", config) as subject:
        twin = qwen3_twin(Path(subject.llm.name))
        for title, regimes in (("low, medium and high entropy", REGIMES), ("low and medium entropy", REGIMES[:2])):
            prompts = _prompts(subject.llm, regimes, count)
            best, rows = _best_of(subject, twin, prompts, rounds)
            tables.append(f"{count} prompts of {title}:\n\n" + table(("engine", "batch", "tokens/s", "ratio"), rows))
            plain = best["autoregressive"] / best["transformers"]
            auto = best["verified"] / best["transformers"]
            goals.append(Goal(claim="autoregressive / transformers generate", wanted=2.0, found=plain, where=title))
            if len(regimes) == 2:
                goals.append(Goal(claim="auto / transformers generate", wanted=4.0, found=auto, where=title))
    body = (
        "The shipped model as `Qwen3ForCausalLM` in transformers: static left-padded batches in file order, greedy, "
        "float32; ours takes as many at once, continuously. Best of "
        f"{rounds} alternating passes of each batch size; the ratio is to transformers at its best batch size. Every "
        "prompt gave the same tokens in all (asserted).\n\n"
    )
    return Section(title="Against transformers generate", body=body + "\n\n".join(tables), goals=goals)


def _prompts(llm: LLM, regimes: Sequence[str], count: int) -> list[list[int]]:
    share = -(-count // len(regimes))
    parts = [prompts_of(llm, held_out_problems(name, share)) for name in regimes]
    return [part[i] for i in range(share) for part in parts][:count]


def _best_of(
    subject: Subject, twin: object, prompts: list[list[int]], rounds: int
) -> tuple[dict[str, float], list[tuple[object, ...]]]:
    """The best tokens per second of each engine, and a table row per engine and batch size."""
    llm = subject.llm
    eos, pad = list(llm.engine.eos_token_ids), llm.model_config.pad_token_id or 0
    rates: dict[tuple[str, int], float] = {}
    expected: list[list[int]] | None = None

    def note(name: str, batch: int, seconds: float, ids: list[list[int]]) -> None:
        nonlocal expected
        expected = expected or ids
        if ids != expected:
            different = sum(a != b for a, b in zip(ids, expected, strict=True))
            raise AssertionError(f"{name} at batch {batch}: {different} prompts with other tokens than transformers")
        rates[name, batch] = max(rates.get((name, batch), 0.0), sum(map(len, ids)) / seconds)

    theirs(twin, prompts[:8], 8, 8, eos, pad)
    for _ in range(rounds):
        for batch in _STATIC_BATCHES:
            one = theirs(twin, prompts, batch, MAX_TOKENS, eos, pad)
            note("transformers", batch, one.seconds, one.ids)
        for strategy in _OURS:
            for batch in _OUR_BATCHES:
                params = [SamplingParams(max_tokens=MAX_TOKENS, strategy=strategy)] * len(prompts)
                ours = run_pass(llm, Workload(prompts=prompts, params=params, concurrency=batch))
                note(strategy.value, batch, ours.whole_seconds, [list(ids) for ids in ours.ids or ()])
    best = {name: max(rate for (n, _), rate in rates.items() if n == name) for name, _ in rates}
    names = {
        "transformers": "transformers generate",
        "autoregressive": "ours, autoregressive",
        "verified": "ours, auto",
    }
    rows: list[tuple[object, ...]] = [
        (names[name], batch, f"{rate:.0f}", f"{rate / best['transformers']:.2f}{' (best)' * (rate == best[name])}")
        for (name, batch), rate in rates.items()
    ]
    return best, rows
