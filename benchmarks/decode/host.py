"""Section ``host``: the time of a step by phase, and the host's share of it, for up to 1,024 sequences."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from benchmarks.common import table
from benchmarks.decode.section import Goal, Section, Settings
from benchmarks.decode.workloads import held_out_problems, open_subject, prompts_of
from wedlm_core import LLM, EngineConfig, Request, SamplingParams, Strategy
from wedlm_core.engine.forward.profile import StepProfile
from wedlm_core.training.evaluation import REGIMES

__all__ = ["host_time", "steady_steps"]

_PHASES = ("schedule", "pack", "model", "choose", "advance", "fetch", "consume")
_FORWARD = ("model", "choose")
_SHOWN = (1, 32, 256)
_GROWTH = (64, 128, 256, 512, 1024)
_STEPS = 40
_GOAL_SEQUENCES, _GOAL_SECONDS = 256, 2e-3


def host_time(settings: Settings) -> Section:
    """Measure the shipped model with all sequences decoding and no prefill in the measured steps."""
    steps = 8 if settings.quick else _STEPS
    goals, growth, breakdown = [], [], []
    for strategy in (Strategy.AUTOREGRESSIVE, Strategy.VERIFIED):
        for count in sorted({*_SHOWN, *_GROWTH}):
            # Exactly this many engine slots: unused ones cost time too.
            config = EngineConfig(
                max_num_seqs=count, prefix_caching=False, max_model_len=320, max_batch_rows=max(2048, 8 * count)
            )
            with open_subject("tiny", config) as subject:
                phases = steady_steps(subject.llm, strategy, count, steps)
            name = "auto" if strategy == Strategy.VERIFIED else strategy.value
            host = sum(seconds for phase, seconds in phases.items() if phase not in _FORWARD)
            whole = sum(phases.values())
            growth.append((name, count, f"{host * 1e3:.2f}", f"{host / count * 1e6:.2f}", f"{whole * 1e3:.1f}",
                           f"{host / whole:.1%}"))  # fmt: skip
            print(*growth[-1], sep=" | ", flush=True)
            if count in _SHOWN:
                breakdown.append((name, count, *(f"{phases.get(p, 0.0) * 1e3:.2f}" for p in _PHASES)))
            if count == _GOAL_SEQUENCES:
                goals.append(Goal(claim="host time per step at 256 sequences (s)", wanted=_GOAL_SECONDS, found=host,
                                  where=name, at_most=True))  # fmt: skip
    body = (
        f"Medians over {steps} steps with every sequence decoding. Host time is everything but the phases `model` (the "
        "decoder) and `choose` (logits and sampling).\n\n"
        + table(("decoding", "sequences", "host ms/step", "host us/sequence", "step ms", "host share"), growth)
        + "\n\nWhere a step's time goes (ms):\n\n"
        + table(("decoding", "sequences", *_PHASES), breakdown)
    )
    return Section(title="Host time per step", body=body, goals=goals)


def steady_steps(llm: LLM, strategy: Strategy, count: int, steps: int) -> Mapping[str, float]:
    """Median seconds of each phase over steps in which ``count`` sequences decode and none prefills or finishes."""
    engine = llm.engine
    share = -(-count // 3)
    problems = [p for name in REGIMES for p in held_out_problems(name, share)][:count]
    params = SamplingParams(max_tokens=200, strategy=strategy, ignore_eos=True, temperature=1.0)
    ids = [f"{strategy.value}.{i}" for i in range(count)]
    for i, prompt in enumerate(prompts_of(llm, problems)):
        engine.add(Request(request_id=ids[i], prompt_token_ids=tuple(prompt), params=params, seed=i))
    while not all(engine.committed(i) for i in ids):
        engine.step()
    for _ in range(2):  # until windows reach a steady size
        engine.step()
    found: list[Mapping[str, float]] = []
    for _ in range(steps):
        profile = engine.profile = StepProfile()
        if engine.step():
            break
        found.append(profile.seconds)
    for request_id in ids:
        engine.abort(request_id)
    return {phase: statistics.median(f.get(phase, 0.0) for f in found) for phase in _PHASES}
